"""How much is computed: numbers of tasks by the cost of a method, and trials of searches."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from fewcal.errors import InputError

# 5-way tasks with 15 queries a class.
WAY, QUERY = 5, 15
# The paper's numbers: tasks of table 4 and figure 3, trials of table 4.
PAPER_STUDY_TASKS, PAPER_TRIALS = 200, 100


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much is computed.

    Attributes
    ----------
    tasks : int
        Novel tasks of methods that draw no points.
    sampled : int
        Of methods that train on drawn points by L-BFGS; the first ones of the same tasks.
    sgd : int
        Of the paper's head, 200 epochs of SGD.
    first : int or None
        Where a number, methods with SGD begin with so many tasks and get twice as many until every statement about them
        is decided, up to `sgd` tasks divided by the number of shots. None: `sgd` tasks, whatever they show.
    trials, trial_tasks : int
        Settings that a search tries, and the validation tasks of each.
    sgd_trials, sgd_trial_tasks : int
        The same where every trial trains the paper's head.
    seed : int

    >>> Budget.make(tasks=5000).sgd, Budget.make().looks(shot=1), Budget.make(quick=True).looks(shot=5)
    (5000, [25, 50, 100, 200], [10, 20])
    """

    tasks: int = 1000
    sampled: int = 200
    sgd: int = 200
    first: int | None = None
    trials: int = PAPER_TRIALS
    trial_tasks: int = PAPER_STUDY_TASKS
    sgd_trials: int = 10
    sgd_trial_tasks: int = PAPER_STUDY_TASKS
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            least = 0 if name == "seed" else 1
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise InputError(f"{name} is {value!r}; use a whole number from {least}")

    @classmethod
    def make(
        cls,
        tasks: int | None = None,
        *,
        sgd: int | None = None,
        trials: int | None = None,
        quick: bool = False,
        device: str = "cpu",
        seed: int = 0,
    ) -> Budget:
        """A budget from what is given; without numbers, what two CPU cores do in hours, or minutes with `quick`.

        A number of tasks holds for every method, `sgd` for those with SGD; trials hold for every search.
        """
        gpu = device.startswith("cuda")
        usual: dict[str, Any] = {"tasks": 400, "sampled": 100, "sgd": 100, "first": 10} if quick else {"first": 25}
        usual |= {"trials": 20, "trial_tasks": 100} if quick else {}
        usual |= dict(zip(("sgd_trials", "sgd_trial_tasks"), (4, 10) if quick else (10, 30), strict=True))
        if gpu:
            usual = {"tasks": 200 if quick else 1000, "sgd_trials": 20 if quick else PAPER_TRIALS}
            usual |= {"sampled": usual["tasks"], "sgd": usual["tasks"]}
        if tasks is not None:
            usual |= {"tasks": tasks, "sampled": tasks, "sgd": tasks}
        if sgd is not None:
            usual["sgd"] = sgd
        if trials is not None:
            usual |= dict.fromkeys(("trials", "sgd_trials"), trials)
            usual |= dict.fromkeys(("trial_tasks", "sgd_trial_tasks"), PAPER_STUDY_TASKS)
        first = None if gpu or tasks is not None or sgd is not None else usual.get("first")
        return cls(**usual | {"seed": seed, "first": first})

    def looks(self, shot: int) -> list[int]:
        """Numbers of tasks with SGD after which statements are judged."""
        if self.first is None:
            return [self.sgd]
        most = max(self.first, self.sgd // max(shot, 1))
        counts = [self.first]
        while 2 * counts[-1] <= most:
            counts.append(2 * counts[-1])
        return counts

    def to_dict(self) -> dict[str, int | None]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)

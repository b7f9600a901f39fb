"""How much is computed, and on what: with the features these fix every number of a record."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from fewcal.errors import InputError
from fewcal.features import FeatureSet
from fewcal.paper.evaluations import Evaluations

# More features than this are many: work that grows with D² or D³ is cut down then. Eigenvalues of a D×D matrix for each
# support point, as the authors' script takes them, are for so many tasks at most, on any device.
LARGEST, EIGEN_TASKS = 700, 100
# By kind of device and whether quick. Novel tasks that are not named are as many as asked for, and trials of SGD as
# many as others: a GPU spares nothing of the paper's head as printed.
_USUAL: dict[tuple[str, bool], dict[str, int]] = {
    ("cpu", False): {
        "sampled": 200,
        "sgd": 40,
        "sgd_study": 10,
        "study": 150,
        "trials": 10,
        "trial_tasks": 80,
        "sgd_trials": 8,
        "sgd_trial_tasks": 20,
    },
    ("cpu", True): {
        "sampled": 24,
        "sgd": 8,
        "sgd_study": 2,
        "study": 30,
        "trials": 5,
        "trial_tasks": 40,
        "sgd_trials": 3,
        "sgd_trial_tasks": 10,
    },
    # The paper's ablation has 100 settings on 200 tasks: `trials=100`.
    ("cuda", False): {
        "sgd_study": 500,
        "trials": 40,
        "trial_tasks": 200,
        "sgd_trial_tasks": 200,
    },
    ("cuda", True): {
        "sgd_study": 200,
        "trials": 20,
        "trial_tasks": 50,
        "sgd_trial_tasks": 50,
    },
}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much is computed; with the features it fixes every number.

    Attributes
    ----------
    tasks : int
        Novel tasks of methods in closed form.
    sampled : int
        Of methods that draw points and train on them by L-BFGS; the first ones of the same tasks.
    sgd : int
        Of the paper's own head, 200 epochs of SGD on 750 points a support point, with 640 features at one shot; where a
        task costs more or less, fewer or more of them (`Case.sgd_tasks`). As many as `tasks` spares nothing.
    sgd_study : int
        The same for each variant that stands beside the printed setting.
    study : int
        Of each variant in studies with many of them.
    trials, trial_tasks : int
        Settings tried in a search on validation classes, and the tasks of each.
    sgd_trials, sgd_trial_tasks : int
        The same where every trial trains the paper's own head.
    seed : int

    >>> Budget.of(tasks=50).sampled, Budget.of(quick=True).tasks, Budget.of(tasks=5000, device="cuda").sgd
    (50, 200, 5000)
    """

    tasks: int
    sampled: int
    sgd: int
    study: int
    trials: int
    trial_tasks: int
    sgd_study: int = 1
    sgd_trials: int = 4
    sgd_trial_tasks: int = 10
    seed: int = 0

    @classmethod
    def of(
        cls,
        tasks: int | None = None,
        *,
        quick: bool = False,
        device: str = "cpu",
        seed: int = 0,
        sampled: int | None = None,
        sgd: int | None = None,
        trials: int | None = None,
    ) -> Budget:
        """What two CPU cores are to manage in less than an hour at 1000 tasks, a GPU in a quarter of one at 5000.

        What is asked for replaces what is usual; nothing gets more novel tasks than there are.
        """
        most = tasks if tasks is not None else 200 if quick else 1000
        usual = _USUAL["cuda" if device.startswith("cuda") else "cpu", quick]
        asked = {"sampled": sampled, "sgd": sgd, "trials": trials}
        chosen = usual | {name: value for name, value in asked.items() if value is not None}
        novel = {name: min(most, chosen.get(name, most)) for name in ("sampled", "sgd", "sgd_study", "study")}
        search = {name: chosen[name] for name in ("trials", "trial_tasks", "sgd_trial_tasks")}
        search["sgd_trials"] = min(search["trials"], chosen.get("sgd_trials", search["trials"]))
        made = cls(tasks=most, **novel, **search, seed=seed)
        for name, value in made.to_dict().items():
            if name != "seed" and (isinstance(value, bool) or value < 1):
                raise InputError(f"{name} is {value!r}; it must be an integer of at least 1")
        return made

    def to_dict(self) -> dict[str, int]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Case:
    """What one record is computed on.

    Attributes
    ----------
    features : FeatureSet
    dataset : str
        One of the paper's, or the name of the folder.
    shot : int
        Support points a class; `WHOLE` for an experiment with a single record for a feature set.
    budget : Budget
    device : str
    evaluations : Evaluations
        What the run has computed so far.
    """

    features: FeatureSet
    dataset: str
    shot: int
    budget: Budget
    device: str = "cpu"
    evaluations: Evaluations = field(default_factory=Evaluations)

    @property
    def study_tasks(self) -> int:
        """Tasks of each variant in a study; half of them where a CPU has many features to deal with."""
        many = self.device == "cpu" and self.features.dimension > LARGEST
        return max(1, self.budget.study // 2) if many else self.budget.study

    @property
    def spares_nothing(self) -> bool:
        """Whether the paper's own head gets as many tasks as the closed form: the budget of a GPU."""
        return self.budget.sgd >= self.budget.tasks

    @property
    def sampled_trial_tasks(self) -> int:
        """Validation tasks of a trial that trains on sampled points: a quarter where something is spared."""
        tasks = self.budget.trial_tasks
        return tasks if self.spares_nothing else max(1, tasks // 4)

    def sgd_tasks(self, part: float = 1.0, *, study: bool = False, shot: int | None = None) -> int:
        """Tasks that train the paper's own head on 750 points a support point; `study` for variants beside it.

        `part` of the budget's where it spares nothing; else so many that the time is about that of the budget's at 640
        features and one shot, and never fewer than a tenth of that, with the wide interval that follows.
        """
        budget = self.budget
        asked = part * (budget.sgd_study if study else budget.sgd)
        # A step costs as much as 100 features more (64, 640 and 1600 on two cores). With 300, data sets of few features
        # get fewer tasks than that: Stanford Dogs has the most tables and figures.
        cost = ((self.shot if shot is None else shot) or 1) * (self.features.dimension + 300) / 940
        wanted = asked if self.spares_nothing else max(asked / 10, asked / cost)
        return min(budget.tasks, max(1, round(wanted)))


# Shots of an experiment that has a single record for a feature set, whatever it looks at.
WHOLE = 0

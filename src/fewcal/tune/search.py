"""What a search is: features, tasks, space, pruner; and its trials, one after another, in this process.

Two protocols. `paper`: the TPE sampler, 200 validation tasks, the median pruner from the hundredth task on, the three
best on validation compared on novel classes. `default`: the same tasks for every trial, so that trials are paired; the
Wilcoxon pruner; selection on validation alone (`fewcal.tune.selection`).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fewcal.domain_match import whitening_shrinkage
from fewcal.episodes import EpisodeSpec, sample_episodes
from fewcal.errors import InputError
from fewcal.features import FeatureSet
from fewcal.presets import get_preset
from fewcal.tune.spaces import Space, make_space
from fewcal.tune.storage import count, drop_lost, give_up, me, require_optuna
from fewcal.tune.trials import TrialRunner, steps

if TYPE_CHECKING:
    import optuna

PROTOCOLS = ("default", "paper")
# Paired trials: tasks whose mean is one step, and tasks between two tests. With 14 pairs or more Wilcoxon's test is the
# quick one; below, SciPy tries thousands of permutations.
_STEP, _CHECK = 4, 60
# The paper: the mean so far is looked at every 10 tasks, after the first 100.
_PAPER_STEP, _WARM_UP = 10, 100


@dataclass(frozen=True)
class Search:
    """Settings of a search; with the features they fix every number of it.

    >>> Search(shot=5).space
    'default'
    """

    protocol: str = "default"
    space: str = "default"
    heads: tuple[str, ...] = ("closed_form", "lbfgs")
    trials: int = 1000
    tasks: int = 200
    way: int = 5
    shot: int = 1
    query: int = 15
    seed: int = 0
    split: str = "val"
    finalists: int = 12
    final_tasks: int = 1000

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise InputError(f"protocol {self.protocol!r} is unknown; use one of {', '.join(PROTOCOLS)}")
        for name in ("trials", "tasks", "finalists", "final_tasks"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name}={value!r} must be a whole number from 1 on")
        if not self.heads:
            raise InputError("no head was given; use closed_form, lbfgs or sgd")
        _ = self.spec

    @property
    def spec(self) -> EpisodeSpec:
        """How tasks are drawn."""
        return EpisodeSpec(self.way, self.shot, self.query, self.seed, True)

    @property
    def final_spec(self) -> EpisodeSpec:
        """How the tasks are drawn on which finalists meet: as the others, but none of them."""
        return EpisodeSpec(self.way, self.shot, self.query, self.seed + 1_000_003, True)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"heads": list(self.heads)}

    def make_space(self, n_classes: int) -> Space:
        """Its space, for a bank of so many classes."""
        return make_space(self.space, n_classes, self.heads)

    def sampler(self, seed: int) -> Any:
        """Optuna's sampler: TPE."""
        samplers = require_optuna().samplers
        if self.protocol == "paper":
            return samplers.TPESampler(seed=seed, constant_liar=True)
        return samplers.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=40)

    def pruner(self) -> Any:
        """Optuna's pruner: the paper's, or Wilcoxon's test on paired tasks."""
        pruners = require_optuna().pruners
        if self.protocol == "paper":
            return pruners.MedianPruner(n_startup_trials=100, n_warmup_steps=_WARM_UP, interval_steps=_PAPER_STEP)
        return pruners.WilcoxonPruner(p_threshold=0.05, n_startup_steps=_CHECK // _STEP)


@dataclass(frozen=True)
class SearchData:
    """What trials are computed on: base rows, and the split that tasks are drawn from."""

    base: tuple[np.ndarray, np.ndarray]
    features: np.ndarray
    labels: np.ndarray
    fingerprints: dict[str, str]

    @classmethod
    def of(cls, features: FeatureSet, search: Search) -> SearchData:
        """From a feature set."""
        base = features.split("base")
        if search.split == "base":
            raise InputError("tasks of a search are drawn from classes outside the bank; use split='val'")
        held = features.split(search.split)
        fingerprints = {"base": base.fingerprint(), search.split: held.fingerprint()}
        labels = held.require_labels()
        sample_episodes(labels, search.spec, range(1), held.classes)  # refuses classes or rows that do not suffice
        return cls((base.features, base.require_labels()), held.features, labels, fingerprints)

    def runner(self, search: Search, device: str, *, final: bool = False) -> TrialRunner:
        """Ready for trials, or for finalists."""
        spec, tasks = (search.final_spec, search.final_tasks) if final else (search.spec, search.tasks)
        return TrialRunner(self.base, self.features, self.labels, spec, tasks, device)


def start_points(space: Space, runner: TrialRunner) -> list[dict[str, Any]]:
    """Trials to begin with: presets that lie in the space, so that a search cannot end below them on its tasks."""
    default = get_preset("default")
    seen = runner.bank.transformed(beta=default.beta, center=default.center, l2=default.l2, moments=True)
    k = min(default.k, len(runner.bank))
    whiten = float(np.clip(whitening_shrinkage(seen, k), 0.05, 1000.0))
    shrunk = {
        "cov": "independent",
        "whiten": False,
        "trust": 1.0,
        "query_strength": 0.0,
        "strength": 1.0,
        "k": min(4, k),
    }
    candidates = [
        default.with_changes(k=k, whiten=whiten),
        # The setting found first on validation classes, with class covariances (see docs/method.md).
        default.with_changes(
            **shrunk, m=2.0, alpha1=100.0, alpha2_ratio=10.0, distance_scale_of="one", distance_scale=1.0
        ),
        get_preset("paper").with_changes(k=max(1, min(8, len(runner.bank)) // 2 * 2)),
    ]
    found = [space.values(p) for p in candidates]
    return [values for values in found if values is not None]


def run_trial(
    study: optuna.Study, trial: optuna.Trial, space: Space, runner: TrialRunner, search: Search
) -> float | None:
    """Compute one trial and tell the study; its accuracy, or None if it was pruned or refused."""
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    try:
        params = space.suggest(trial)
        done: list[np.ndarray] = []
        for part in runner.run(
            params, *((_WARM_UP, 2 * _PAPER_STEP) if search.protocol == "paper" else (_CHECK, _CHECK))
        ):
            done.append(part)
            if report_steps(trial, np.concatenate(done), len(part), search):
                study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
                return None
        value = float(np.concatenate(done).mean())
        study.tell(trial, value, skip_if_finished=True)
        return value
    except InputError as error:  # parameters that these features do not admit
        refuse(study, trial, error)
        return None
    except UpdateFinishedTrialError:  # another worker took it for lost, and over
        return None
    except Exception:
        study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
        raise
    except BaseException:  # Ctrl-C: whoever goes on begins with these parameters
        give_up(study, trial._trial_id)
        raise


def refuse(study: optuna.Study, trial: optuna.Trial, error: Exception) -> None:
    """End a trial whose parameters these features do not admit."""
    from optuna.trial import TrialState

    trial.set_user_attr("refused", str(error)[:500])
    study.tell(trial, state=TrialState.FAIL)


def report_steps(trial: optuna.Trial, accuracy: np.ndarray, fresh: int, search: Search) -> bool:
    """Report the newest `fresh` tasks step by step; whether the pruner wants to stop there.

    The Wilcoxon test pairs each step's mean with that of the best trial; the median pruner compares means so far.
    """
    paper = search.protocol == "paper"
    size = _PAPER_STEP if paper else _STEP
    means = steps(accuracy, size)
    for i in range((len(accuracy) - fresh) // size, len(means)):
        seen = min((i + 1) * size, len(accuracy))
        if paper:
            trial.report(float(accuracy[:seen].mean()), seen)
        else:
            trial.report(float(means[i]), i)
        if seen < search.tasks and (paper or seen % _CHECK == 0) and trial.should_prune():
            return True
    return False


def work(
    study: optuna.Study,
    runner: TrialRunner,
    search: Search,
    after: Callable[[], None] | None = None,
) -> None:
    """Run trials until the study has as many as asked for, counting those that others are busy with."""
    space = search.make_space(len(runner.bank))
    while True:
        drop_lost(study)
        now = count(study)
        if now.finished + now.running >= search.trials:
            return
        trial = study.ask()
        trial.set_user_attr("worker", me())
        run_trial(study, trial, space, runner, search)
        if after is not None:
            after()


def sampler_seed(search: Search, first: bool) -> int:
    """A sampler's seed: that of the search for the process that begins a study, another one for all that join it."""
    parts = [search.seed]
    if not first:
        worker = me()
        parts += [zlib.crc32(worker["host"].encode()), worker["pid"], time.time_ns() & 0xFFFFFFFF]
    return int(np.random.SeedSequence(parts).generate_state(1)[0])

"""What a search is: its settings and data; and its trials, one after another, in this process."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fewcal._utils.types import JSONObject
from fewcal.episodes import EpisodeSpec, sample_episodes
from fewcal.errors import InputError
from fewcal.features import FeatureSet
from fewcal.tuning.protocols import ENQUEUE, TuningProtocol, find_protocol
from fewcal.tuning.spaces import Space, find_space, make_space
from fewcal.tuning.storage import count, drop_lost, give_up
from fewcal.tuning.trials import TrialRunner
from fewcal.tuning.worker_process import me

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Search:
    """Settings of a search; with the features they fix every number of it.

    `enqueue` names the trials that it begins with (`fewcal.tuning.protocols.ENQUEUE`); None: those of its protocol.

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
    enqueue: str | None = None

    def __post_init__(self) -> None:
        find_protocol(self.protocol)
        if self.enqueue not in (None, *ENQUEUE):
            raise InputError(f"enqueue={self.enqueue!r} is unknown; use one of {', '.join(ENQUEUE)}")
        for name in ("trials", "tasks", "finalists", "final_tasks"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name}={value!r} must be a whole number from 1 on")
        if not self.heads:
            raise InputError("no head was given; use closed_form, lbfgs or sgd")
        _ = self.spec

    @classmethod
    def for_features(
        cls,
        features: FeatureSet,
        *,
        protocol: str = "default",
        space: str | None = None,
        heads: Sequence[str] | None = None,
        **settings: Any,
    ) -> Search:
        """A search with the space of its protocol for these features and the heads of that space, unless given.

        `settings` are the other fields.
        """
        if space is None:
            space = find_protocol(protocol).space_for(signed=bool((features.split("base").features < 0).any()))
        return cls(protocol, space, tuple(heads or find_space(space).heads), **settings)

    @property
    def rules(self) -> TuningProtocol:
        """Its protocol."""
        return find_protocol(self.protocol)

    @property
    def spec(self) -> EpisodeSpec:
        """How tasks are drawn."""
        return EpisodeSpec(self.way, self.shot, self.query, self.seed, True)

    @property
    def final_spec(self) -> EpisodeSpec:
        """How the tasks are drawn on which finalists are compared: as the others, but none of them."""
        return EpisodeSpec(self.way, self.shot, self.query, self.seed + 1_000_003, True)

    def to_dict(self) -> JSONObject:
        """Plain values, for JSON."""
        return asdict(self) | {"heads": list(self.heads)}

    def make_space(self, n_classes: int) -> Space:
        """Its space, for a bank of so many classes."""
        return make_space(self.space, n_classes, self.heads)


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


def run_trial(
    study: optuna.Study, trial: optuna.Trial, space: Space, runner: TrialRunner, search: Search
) -> float | None:
    """Compute one trial and tell the study; its accuracy, or None if it was pruned or refused."""
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    try:
        params = space.suggest(trial)
        done: list[np.ndarray] = []
        pruning = search.rules.pruning
        for part in runner.run(params, pruning.first, pruning.then):
            done.append(part)
            if pruning.report(trial, np.concatenate(done), len(part), search.tasks):
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
        give_up(study, trial)
        raise


def refuse(study: optuna.Study, trial: optuna.Trial, error: Exception) -> None:
    """End a trial whose parameters these features do not admit."""
    from optuna.trial import TrialState

    trial.set_user_attr("refused", str(error)[:500])
    study.tell(trial, state=TrialState.FAIL)


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
        run_trial(study, study.ask(), space, runner, search)
        if after is not None:
            after()


def sampler_seed(search: Search, first: bool) -> int:
    """A sampler's seed: that of the search for the process that begins a study, another one for all that join it."""
    parts = [search.seed]
    if not first:
        worker = me()
        parts += [zlib.crc32(worker["host"].encode()), worker["pid"], time.time_ns() & 0xFFFFFFFF]
    return int(np.random.SeedSequence(parts).generate_state(1)[0])

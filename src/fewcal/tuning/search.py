"""What a search is: its settings, and the protocol by which trials are proposed, stopped and chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from fewcal._utils.names import nearest_names
from fewcal._utils.types import JSON, JSONObject
from fewcal.errors import InputError
from fewcal.evaluation import Protocol
from fewcal.features import FeatureSet
from fewcal.presets import get_preset, list_presets
from fewcal.tuning.spaces import Space, find_space
from fewcal.tuning.storage import require_optuna

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

# Fresh tasks are drawn by the seed of the search and this: none of them is a task of the search.
FRESH_SEED = 1_000_003


@dataclass(frozen=True)
class TuningProtocol:
    """How a search proposes, stops and chooses.

    `finalists` trials are measured on fresh tasks beside the default; the pruner looks every `interval` tasks. With
    `keeps_default` the default stays unless a trial is significantly above it; otherwise the best trial is taken, or
    with novel classes the best finalist there.
    """

    name: str
    summary: str
    trials: int
    finalists: int
    interval: int
    sampler: Callable[[int | None], BaseSampler]
    pruner: Callable[[], BasePruner]
    keeps_default: bool


def _tpe(**settings: object) -> Callable[[int | None], BaseSampler]:
    return lambda seed: require_optuna().samplers.TPESampler(seed=seed, constant_liar=True, **settings)


PROTOCOLS = {
    p.name: p
    for p in (
        TuningProtocol(
            "default",
            "trials compared task by task; the default kept unless a trial is significantly above it on fresh tasks",
            trials=100,
            finalists=5,
            interval=60,
            sampler=_tpe(multivariate=True, group=True, n_startup_trials=20),
            pruner=lambda: require_optuna().pruners.WilcoxonPruner(p_threshold=0.05),
            keeps_default=True,
        ),
        TuningProtocol(
            "paper",
            "the paper's search: TPE, median pruning after 100 tasks, the best of three on novel classes if opened",
            trials=1000,
            finalists=3,
            interval=100,
            sampler=_tpe(),
            pruner=lambda: require_optuna().pruners.MedianPruner(n_warmup_steps=100),
            keeps_default=False,
        ),
    )
}


@dataclass(frozen=True)
class Search:
    """Settings of a search; with the features they fix every number of it.

    Parameters
    ----------
    protocol : str
        One of `PROTOCOLS`: "default" or "paper".
    space : str, Space or None
        A name in `SPACES`, or a space of your own; None: "hgdc", and for the paper's protocol the paper's space for
        features of that sign.
    head : str or None
        The one head of a space of GDC; None: those of the space.
    trials : int or None
        Number of trials, those of all workers together; None: 100, and 1000 for the paper's protocol.
    tasks : int
        Tasks of a trial, the same for all.
    way, shot, query, seed, split
        How tasks are drawn, see `Protocol`.
    final_tasks : int
        Fresh validation tasks on which finalists are compared with the default.
    published : bool
        Begin with the paper's setting for a space of the paper and this number of shots.

    Examples
    --------
    >>> Search(protocol="paper", space="ablation", trials=100).tasks
    200
    """

    protocol: str = "default"
    space: str | Space | None = None
    head: str | None = None
    trials: int | None = None
    tasks: int = 200
    way: int = 5
    shot: int = 1
    query: int = 15
    seed: int = 0
    split: str = "val"
    final_tasks: int = 1000
    published: bool = False

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise InputError(f"protocol {self.protocol!r} is unknown{nearest_names(self.protocol, PROTOCOLS)}")
        if self.space is not None:
            find_space(self.space, self.head)
        for name in ("trials", "tasks", "final_tasks"):
            value = getattr(self, name)
            if (name, value) != ("trials", None) and (type(value) is not int or value < 1):
                raise InputError(f"{name}={value!r} must be an integer of at least 1")
        _ = self.search_tasks  # raises for ways, shots or queries out of range

    def for_features(self, features: FeatureSet) -> Search:
        """The same search with its space and its number of trials filled in."""
        space = self.space
        if space is None and self.protocol == "paper":
            # The paper's families: α up to 10,000 for features after a ReLU, a finer range for signed ones.
            space = "paper/dogs" if (features.split("base").features < 0).any() else "paper/mini"
        return replace(self, space=space or "hgdc", trials=self.trials or self.rules.trials)

    @property
    def rules(self) -> TuningProtocol:
        """Its protocol."""
        return PROTOCOLS[self.protocol]

    def make_space(self) -> Space:
        """Its space."""
        return find_space(self.space or "hgdc", self.head)

    @property
    def search_tasks(self) -> Protocol:
        """How the tasks of trials are drawn."""
        return Protocol(self.way, self.shot, self.query, self.tasks, self.seed, self.split)

    @property
    def fresh_tasks(self) -> Protocol:
        """How the tasks of finalists are drawn."""
        return replace(self.search_tasks, tasks=self.final_tasks, seed=self.seed + FRESH_SEED)

    def first_trial(self) -> dict[str, JSON]:
        """The default of the space, or the paper's setting; empty where the sampler proposes the first trial."""
        space = self.make_space()
        if self.published:
            name = f"{space.name}/{self.shot}shot"
            if name not in list_presets():
                raise InputError(f"the paper has no setting for space {space.name!r} and {self.shot} shots")
            return get_preset(name).as_dict()
        return dict(space.first)

    def to_dict(self) -> JSONObject:
        """Plain values, for JSON."""
        space = self.space.name if isinstance(self.space, Space) else self.space
        return asdict(replace(self, space=None)) | {"space": space}

"""Protocols of tuning: how trials are proposed and stopped, how one is chosen, and what novel classes may decide.

A protocol is an entry of `PROTOCOLS`; its name and summary are what `fewcal tune --help` shows.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from fewcal._utils.names import nearest_names
from fewcal.errors import FewcalWarning, InputError
from fewcal.tuning.pruning import MedianPruning, PairedPruning, Pruning
from fewcal.tuning.selection import Finalist, choose, from_trial, rerun_finalists, top
from fewcal.tuning.spaces import Picks, Space
from fewcal.tuning.storage import require_optuna

if TYPE_CHECKING:
    import optuna

    from fewcal.tuning.trials import TrialRunner


# What a search may begin with, by name, in words.
ENQUEUE = {
    "none": "no trial is given",
    "default": "presets of fewcal that lie in the space",
    "published": "the paper's setting for the space and the shots",
}


class TuningProtocol(ABC):
    """How a search proposes, stops and chooses.

    Attributes
    ----------
    name, summary : str
    enqueue : str
        What a search begins with where nothing is said, one of `ENQUEUE`.
    pruning : Pruning
    fresh_tasks : bool
        Whether finalists are measured again, on fresh validation tasks.
    novel_tasks : int
        Tasks on the novel classes, where they are opened.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    enqueue: ClassVar[str]
    pruning: ClassVar[Pruning]
    fresh_tasks: ClassVar[bool]
    novel_tasks: ClassVar[int]

    @abstractmethod
    def space_for(self, signed: bool) -> str:
        """The space for features, signed or all ≥ 0, where none is asked for."""

    @abstractmethod
    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Optuna's sampler."""

    @abstractmethod
    def select(
        self,
        study: optuna.Study,
        space: Space,
        start: Sequence[Picks],
        final_runner: Callable[[], TrialRunner],
        most: int,
    ) -> tuple[list[Finalist], Finalist]:
        """Finalists, at most `most` and the best first, and the one chosen by validation classes."""

    @abstractmethod
    def novel_candidates(self, finalists: Sequence[Finalist], chosen: Finalist) -> Sequence[Finalist]:
        """Those that are measured on the novel classes."""

    @abstractmethod
    def after_novel(
        self, study: optuna.Study, space: Space, finalists: list[Finalist], chosen: Finalist, novel_trial: int
    ) -> tuple[list[Finalist], Finalist]:
        """Finalists and choice, given the trial that the record of the novel classes names."""

    @abstractmethod
    def selection_rule(self, novel_opened: bool) -> str:
        """How the choice was made, for the record."""


class DefaultProtocol(TuningProtocol):
    """The same tasks for every trial, so that trials are paired; selection on validation alone."""

    name = "default"
    summary = "trials compared task by task, the choice on fresh validation tasks"
    enqueue = "default"
    pruning = PairedPruning()
    fresh_tasks = True
    novel_tasks = 1000

    def space_for(self, signed: bool) -> str:
        return "default"

    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        sampler: optuna.samplers.BaseSampler = require_optuna().samplers.TPESampler(
            seed=seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=40
        )
        return sampler

    def select(
        self,
        study: optuna.Study,
        space: Space,
        start: Sequence[Picks],
        final_runner: Callable[[], TrialRunner],
        most: int,
    ) -> tuple[list[Finalist], Finalist]:
        finalists = rerun_finalists(study, space, start[:1], final_runner(), most)
        simplest = start[0] if space.prefer_default and start else None
        return finalists, choose(finalists, space, simplest)

    def novel_candidates(self, finalists: Sequence[Finalist], chosen: Finalist) -> Sequence[Finalist]:
        return [chosen]

    def after_novel(
        self, study: optuna.Study, space: Space, finalists: list[Finalist], chosen: Finalist, novel_trial: int
    ) -> tuple[list[Finalist], Finalist]:
        if novel_trial != chosen.number:
            warnings.warn(
                f"the novel classes were opened for trial {novel_trial}; after more trials the choice is trial "
                f"{chosen.number}, and the figures recorded are not its own",
                FewcalWarning,
                stacklevel=3,
            )
        return finalists, chosen

    def selection_rule(self, novel_opened: bool) -> str:
        return "one-standard-error rule on fresh validation tasks"


class PaperProtocol(TuningProtocol):
    """The paper's search as it describes it; with novel classes, the best of three on them."""

    name = "paper"
    summary = "the paper's search as it describes it"
    enqueue = "none"
    pruning = MedianPruning()
    fresh_tasks = False
    novel_tasks = 5000

    def space_for(self, signed: bool) -> str:
        # The paper's families: α up to 10,000 for features after a ReLU, a finer range for signed ones.
        return "paper/dogs" if signed else "paper/mini"

    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        sampler: optuna.samplers.BaseSampler = require_optuna().samplers.TPESampler(seed=seed, constant_liar=True)
        return sampler

    def select(
        self,
        study: optuna.Study,
        space: Space,
        start: Sequence[Picks],
        final_runner: Callable[[], TrialRunner],
        most: int,
    ) -> tuple[list[Finalist], Finalist]:
        finalists = top(study, space)
        return finalists, finalists[0]

    def novel_candidates(self, finalists: Sequence[Finalist], chosen: Finalist) -> Sequence[Finalist]:
        return finalists

    def after_novel(
        self, study: optuna.Study, space: Space, finalists: list[Finalist], chosen: Finalist, novel_trial: int
    ) -> tuple[list[Finalist], Finalist]:
        for finalist in finalists:
            if finalist.number == novel_trial:
                return finalists, finalist
        # Trials that came later are better on validation; the record stands.
        recorded = from_trial(study.trials[novel_trial], space)
        return [*finalists, recorded], recorded

    def selection_rule(self, novel_opened: bool) -> str:
        if novel_opened:
            return "the best of three on the novel classes, as in the paper"
        return "the best on validation"


PROTOCOLS: dict[str, TuningProtocol] = {p.name: p for p in (DefaultProtocol(), PaperProtocol())}


def find_protocol(name: str) -> TuningProtocol:
    """A protocol by its name."""
    if name not in PROTOCOLS:
        raise InputError(f"protocol {name!r} is unknown{nearest_names(name, PROTOCOLS)}")
    return PROTOCOLS[name]

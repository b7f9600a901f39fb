"""The outcome of a search."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fewcal._utils.types import JSONObject
from fewcal.params import GDCParams
from fewcal.tuning.novel import NovelRecord
from fewcal.tuning.selection import Finalist
from fewcal.tuning.storage import Counts

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True, eq=False)
class Tuning:
    """The outcome of a search.

    Attributes
    ----------
    params : GDCParams
        The parameters chosen.
    chosen : Finalist
    finalists : list of Finalist, best first
    counts : Counts
    fresh, searched : int, float
        Trials that ended during this call, and the seconds that they took, selection and plots not counted.
    seconds : float
        Of this call in all.
    novel : NovelRecord or None
        What the novel classes said, if they were opened.
    study : optuna.Study
    """

    chosen: Finalist
    finalists: list[Finalist]
    counts: Counts
    fresh: int
    searched: float
    seconds: float
    novel: NovelRecord | None
    study: optuna.Study

    @property
    def params(self) -> GDCParams:
        """The parameters chosen."""
        return self.chosen.params

    def to_dict(self, folder: Path, fresh_tasks: bool) -> JSONObject:
        """The outcome in plain values, with the preset file in `folder`."""
        return {
            "preset": str(folder / "preset.json"),
            "trials": self.counts.finished,
            "pruned": self.counts.pruned,
            "seconds": self.seconds,
            "trial": self.chosen.number,
            "accuracy": self.chosen.accuracies(fresh_tasks),
            "params": self.params.as_dict(),
            "novel": None if self.novel is None else self.novel.to_dict(),
        }

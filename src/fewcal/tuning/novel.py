"""The novel classes, opened once, after the choice: what they said, as it is kept in the study."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fewcal._utils.types import JSONObject
from fewcal.episodes import sample_episodes
from fewcal.errors import InputError
from fewcal.evaluation import Paired, Protocol, evaluate
from fewcal.features import FeatureSet
from fewcal.methods import make_method
from fewcal.methods.gdc import GDC
from fewcal.tuning.search import Search
from fewcal.tuning.selection import Finalist

if TYPE_CHECKING:
    import optuna

# Methods beside the tuned one.
PLAIN = ("simpleshot", "lr")


@dataclass(frozen=True)
class NovelFigure:
    """Mean accuracy on novel tasks and the half-width of its 95% interval, NaN for a single task."""

    accuracy: float
    ci95: float
    tasks: int


@dataclass(frozen=True)
class NovelRecord:
    """What the novel classes said.

    Attributes
    ----------
    opened : str
        Date and time.
    protocol : dict
    features : str
        Fingerprint of the novel split.
    figures : dict of NovelFigure, by method; tuned ones are called "trial NUMBER"
    paired : list of Paired
    chosen_trial : int
        The best of those that were measured.
    params : dict
        Parameters of the choice on validation classes.
    """

    opened: str
    protocol: JSONObject
    features: str
    figures: dict[str, NovelFigure]
    paired: list[Paired]
    chosen_trial: int
    params: JSONObject

    def to_dict(self) -> JSONObject:
        """Plain values, as the study keeps them."""
        figures = {
            name: dataclasses.asdict(f) | {"ci95": None if math.isnan(f.ci95) else f.ci95}
            for name, f in self.figures.items()
        }
        return {
            "opened": self.opened,
            "protocol": self.protocol,
            "features": self.features,
            "figures": figures,
            "paired": [pair.to_dict() for pair in self.paired],
            "chosen_trial": self.chosen_trial,
            "params": self.params,
        }

    @classmethod
    def from_dict(cls, plain: JSONObject) -> NovelRecord:
        """The record that `to_dict` made plain."""
        figures = {
            name: NovelFigure(f["accuracy"], math.nan if f["ci95"] is None else f["ci95"], f["tasks"])
            for name, f in plain["figures"].items()
        }
        paired = [Paired.from_dict(pair) for pair in plain["paired"]]
        return cls(**{**plain, "figures": figures, "paired": paired})

    def difference(self, method: str) -> Paired:
        """The chosen trial minus a method on the same tasks."""
        chosen = f"trial {self.chosen_trial}"
        [pair] = [p for p in self.paired if {p.a, p.b} == {chosen, method}]
        return pair if pair.a == chosen else pair.reversed()


def check_novel(features: FeatureSet, search: Search, tasks: int) -> None:
    """Refuse tasks that the novel classes do not suffice for: before the search, not after it."""
    if features.novel is None:
        raise InputError("the features have no novel split to open")
    _protocol(search, tasks)
    sample_episodes(features.novel.require_labels(), search.spec, range(1), features.novel.classes)


def recorded_novel(study: optuna.Study) -> NovelRecord | None:
    """What the novel classes said earlier."""
    plain = study.user_attrs.get("novel")
    return None if plain is None else NovelRecord.from_dict(plain)


def open_novel(
    study: optuna.Study,
    features: FeatureSet,
    search: Search,
    finalists: Sequence[Finalist],
    chosen: Finalist,
    tasks: int,
    device: str,
) -> NovelRecord:
    """Measure on the novel classes, beside the plain methods, and record it in the study."""
    protocol = _protocol(search, tasks)
    candidates = search.rules.novel_candidates(finalists, chosen)
    tuned = {f"trial {f.number}": GDC(f.params, cap_k=True) for f in candidates}
    results = evaluate({name: make_method(name) for name in PLAIN} | tuned, features, protocol, device)
    summary = results.summary(class_intervals=False)
    best = max(tuned, key=lambda name: summary.methods[name].accuracy)
    record = NovelRecord(
        datetime.now(UTC).isoformat(timespec="seconds"),
        protocol.to_dict(),
        features.split("novel").fingerprint(),
        {name: NovelFigure(m.accuracy, m.ci95, m.tasks) for name, m in summary.methods.items()},
        summary.paired,
        int(best.removeprefix("trial ")),
        chosen.params.as_dict(),
    )
    study.set_user_attr("novel", record.to_dict())
    return record


def _protocol(search: Search, tasks: int) -> Protocol:
    return Protocol(search.way, search.shot, search.query, tasks, search.seed, "novel")

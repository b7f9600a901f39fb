"""From trials to one model: finalists beside the default on fresh tasks; and novel classes, opened once.

The best of many trials on few tasks owes part of its lead to luck. So the best trials and the default, HGDC as it is,
classify fresh tasks of the same classes, and their differences are paired task by task. The default is kept unless the
best trial is significantly above it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from fewcal._utils.types import JSONObject
from fewcal.errors import FewcalError, FewcalWarning
from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet
from fewcal.methods import HGDC, Method
from fewcal.tuning.objective import Objective
from fewcal.tuning.search import Search
from fewcal.tuning.study import complete_trials

if TYPE_CHECKING:
    from optuna import Study

DEFAULT, NOVEL = "default", "novel"
# Standard errors by which a gain is significant: the two-sided 5% of a normal distribution.
SIGNIFICANT_ERRORS = 1.96


@dataclass(frozen=True)
class Score:
    """Accuracy on tasks, and the mean difference to that of the default on the same ones with its standard error.

    The error is None for one task.
    """

    accuracy: float
    gain: float
    error: float | None
    tasks: int

    @classmethod
    def paired(cls, accuracy: np.ndarray, default: np.ndarray) -> Score:
        """The score of accuracies of tasks `(T,)`, beside those of the default.

        >>> Score.paired(np.array([1.0, 0.5, 0.75, 0.75]), np.full(4, 0.5))
        Score(accuracy=0.75, gain=0.25, error=0.10206207261596575, tasks=4)
        """
        gain, tasks = accuracy - default, len(accuracy)
        error = float(gain.std(ddof=1)) / math.sqrt(tasks) if tasks > 1 else None
        return cls(float(accuracy.mean()), float(gain.mean()), error, tasks)

    @property
    def is_significant(self) -> bool:
        """Whether the default is significantly below."""
        return self.error is not None and self.gain > SIGNIFICANT_ERRORS * self.error


def score(methods: Mapping[str, Method], features: FeatureSet, protocol: Protocol, device: str) -> dict[str, Score]:
    """Scores of methods, the default first, on the same tasks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewcalWarning)
        results = evaluate(methods, features, protocol, device)
    default = results.accuracy(DEFAULT)
    return {name: Score.paired(results.accuracy(name), default) for name in methods}


@dataclass(frozen=True, eq=False)
class Finalist:
    """The default, or a trial that was measured again.

    Attributes
    ----------
    name : str
        "default", or "trial" with its number.
    method : Method
        The model that ran; `method.settings` are its parameters.
    searched : float
        Mean accuracy on the tasks of the search.
    fresh : Score
        On fresh validation tasks.
    values : dict
        What the sampler suggested.
    """

    name: str
    method: Method
    searched: float
    fresh: Score
    values: JSONObject = field(default_factory=dict)

    def to_dict(self) -> JSONObject:
        """Plain values, for JSON."""
        model = {"method": self.method.name, "parameters": self.method.settings}
        return {"name": self.name, **model, "search tasks": self.searched, "fresh tasks": asdict(self.fresh)}


def measure_finalists(
    study: Study, objective: Objective, features: FeatureSet, search: Search, novel: NovelRecord | None
) -> list[Finalist]:
    """The default and the best different trials of a study, measured on fresh tasks.

    Trials stand in the order of the search. Those on record for the novel classes are always among them.
    """
    if not (trials := complete_trials(study)):
        refused = [t.user_attrs["refused"] for t in study.get_trials(deepcopy=False) if "refused" in t.user_attrs]
        reason = f" (the last was refused: {refused[-1]})" if refused else ""
        raise FewcalError(f"no trial of this study is complete{reason}; run more trials or choose another space")
    default = HGDC()
    methods: dict[str, Method] = {DEFAULT: default}
    searched: dict[str, tuple[float, JSONObject]] = {DEFAULT: (float(objective.accuracy(default).mean()), {})}
    for trial in trials:
        name, method = f"trial {trial.number}", objective.method(trial)
        is_new = all((method.name, method.settings) != (m.name, m.settings) for m in methods.values())
        if (is_new and len(methods) <= search.rules.finalists) or (novel is not None and name in novel.scores):
            methods[name], searched[name] = method, (trial.value or 0.0, dict(trial.params))
    scores = score(methods, features, search.fresh_tasks, str(objective.engine.device))
    return [Finalist(n, m, searched[n][0], scores[n], searched[n][1]) for n, m in methods.items()]


def choose(finalists: Sequence[Finalist], search: Search, novel: NovelRecord | None) -> tuple[Finalist, Finalist]:
    """The model that is chosen, and the best trial.

    Novel classes decide by the paper's protocol alone, between the trials that were measured on them.
    """
    default, *trials = finalists
    if not trials:
        return default, default
    if search.rules.keeps_default:
        best = max(trials, key=lambda f: f.fresh.accuracy)
        chosen = best if best.fresh.is_significant else default
    else:
        scores = {} if novel is None else novel.scores
        chosen = best = max(trials, key=lambda f: scores[f.name].accuracy if f.name in scores else -1.0)
    if novel is not None and chosen.name not in novel.scores:
        warnings.warn(
            f"the novel classes were opened for {', '.join(novel.scores)}; after more trials {chosen.name} is "
            "chosen, for which there is no figure",
            FewcalWarning,
            stacklevel=3,
        )
    return chosen, best


@dataclass(frozen=True)
class NovelRecord:
    """What the novel classes showed, as the study keeps it: date, fingerprint of the split, scores by finalist."""

    opened: str
    features: str
    scores: dict[str, Score]

    @classmethod
    def of_study(cls, study: Study) -> NovelRecord | None:
        """The record of a study, if the novel classes were opened in it."""
        record = study.user_attrs.get(NOVEL)
        if record is None:
            return None
        return cls(**{**record, "scores": {name: Score(**score) for name, score in record["scores"].items()}})


def open_novel(
    study: Study, features: FeatureSet, protocol: Protocol, finalists: Sequence[Finalist], device: str
) -> NovelRecord:
    """Measure finalists, the default first, on novel classes and record the scores in the study."""
    scores = score({f.name: f.method for f in finalists}, features, protocol, device)
    opened = datetime.now(UTC).isoformat(timespec="seconds")
    record = NovelRecord(opened, features.split(NOVEL).fingerprint(), scores)
    study.set_user_attr(NOVEL, asdict(record))
    return record

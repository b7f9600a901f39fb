"""From trials to one model: finalists beside the default on fresh tasks; and novel classes, opened once.

The best of many trials on few tasks owes part of its lead to luck. So the best trials and the default, the recommended
model as it is, classify fresh tasks of the same classes, and their differences are paired task by task. The default is
kept unless the best of them is above it by more than one standard error.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from fewcal._utils.types import JSONObject
from fewcal.episodes import sample_episodes
from fewcal.errors import FewcalError, FewcalWarning
from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet
from fewcal.methods import HGDC, Method
from fewcal.tuning.objective import Objective
from fewcal.tuning.search import Search, TuningProtocol
from fewcal.tuning.study import complete_trials
from fewcal.tuning.trials import TaskRunner

if TYPE_CHECKING:
    from optuna import Study

DEFAULT = "default"
NOVEL = "novel"


@dataclass(frozen=True)
class Score:
    """Accuracy on tasks, and how far it is above that of the default on the same ones.

    Attributes
    ----------
    accuracy : float
    gain : float
        Mean of the paired differences to the default.
    error : float or None
        Its standard error; None for one task.
    tasks : int
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
    def is_above_default(self) -> bool:
        """Whether the gain is larger than its standard error."""
        return self.error is not None and self.gain > self.error


@dataclass(frozen=True, eq=False)
class Finalist:
    """The default, or a trial that was measured again.

    Attributes
    ----------
    name : str
        "default", or "trial" with its number.
    method : Method
        The model that ran; `method.settings` are its parameters.
    searched : float or None
        Mean accuracy on the tasks of the search; None for the default.
    fresh : Score
        On fresh validation tasks.
    values : dict
        What the sampler suggested.
    """

    name: str
    method: Method
    searched: float | None
    fresh: Score
    values: JSONObject = field(default_factory=dict)

    def to_dict(self) -> JSONObject:
        """Plain values, for JSON."""
        model = {"method": self.method.name, "parameters": self.method.settings}
        return {"name": self.name, **model, "search tasks": self.searched, "fresh tasks": asdict(self.fresh)}


def measure_finalists(
    study: Study, objective: Objective, features: FeatureSet, search: Search, recorded: NovelRecord | None
) -> list[Finalist]:
    """The default and the best different trials of a study, measured on fresh tasks.

    Trials stand in the order of the search. Those on record for the novel classes are always among them.
    """
    trials = complete_trials(study)
    if not trials:
        raise FewcalError("no trial of this study is complete; run more trials or choose another space")
    runner = objective.runner
    fresh = TaskRunner(features, search.fresh_tasks, str(runner.engine.device), runner.bank)
    default = HGDC()
    accuracy = fresh.accuracy(default)
    found = [Finalist(DEFAULT, default, None, Score.paired(accuracy, accuracy))]
    on_record = set() if recorded is None else set(recorded.scores)
    for trial in trials:
        name, method = f"trial {trial.number}", objective.method(trial)
        is_new = all((method.name, method.settings) != (f.method.name, f.method.settings) for f in found)
        if (is_new and len(found) <= search.rules.finalists) or name in on_record:
            score = Score.paired(fresh.accuracy(method), accuracy)
            found.append(Finalist(name, method, trial.value, score, dict(trial.params)))
    return found


def choose(finalists: Sequence[Finalist], rules: TuningProtocol, recorded: NovelRecord | None) -> tuple[Finalist, Finalist]:
    """The model that is chosen, and the best trial.

    Novel classes decide by the paper's protocol alone, between the trials that were measured on them.
    """
    default, *trials = finalists
    if not trials:
        return default, default
    if rules.keeps_default:
        best = max(trials, key=lambda f: f.fresh.accuracy)
        chosen = best if best.fresh.is_above_default else default
    else:
        scores = {} if recorded is None else recorded.scores
        chosen = best = max(trials, key=lambda f: scores[f.name].accuracy if f.name in scores else -1.0)
    if recorded is not None and chosen.name not in recorded.scores:
        warnings.warn(
            f"the novel classes were opened for {', '.join(recorded.scores)}; after more trials {chosen.name} is "
            "chosen, for which there is no figure",
            FewcalWarning,
            stacklevel=3,
        )
    return chosen, best


# ---- novel classes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NovelRecord:
    """What the novel classes showed, as the study keeps it.

    Attributes
    ----------
    opened : str
        Date and time.
    features : str
        Fingerprint of the novel split.
    scores : dict of Score
        By name of the finalist, the default first.
    """

    opened: str
    features: str
    scores: dict[str, Score]

    @classmethod
    def of_study(cls, study: Study) -> NovelRecord | None:
        """The record of a study, if the novel classes were opened in it."""
        plain = study.user_attrs.get(NOVEL)
        if plain is None:
            return None
        return cls(**{**plain, "scores": {name: Score(**score) for name, score in plain["scores"].items()}})


def novel_protocol(features: FeatureSet, search: Search, tasks: int) -> Protocol:
    """The tasks of novel classes; raises unless these suffice, before a search and not after it."""
    protocol = replace(search.search_tasks, tasks=tasks, split=NOVEL)
    split = features.split(NOVEL)
    sample_episodes(split.require_labels(), protocol.spec, range(1), split.classes)
    return protocol


def open_novel(
    study: Study, features: FeatureSet, protocol: Protocol, finalists: Sequence[Finalist], device: str
) -> NovelRecord:
    """Measure finalists, the default first, on novel classes and record the scores in the study."""
    results = evaluate({f.name: f.method for f in finalists}, features, protocol, device)
    default = results.accuracy(DEFAULT)
    scores = {f.name: Score.paired(results.accuracy(f.name), default) for f in finalists}
    opened = datetime.now(UTC).isoformat(timespec="seconds")
    record = NovelRecord(opened, features.split(NOVEL).fingerprint(), scores)
    study.set_user_attr(NOVEL, asdict(record))
    return record

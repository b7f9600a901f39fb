"""The outcome of a search, and the files that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fewcal._utils.atomic import write_json
from fewcal._utils.types import JSONObject
from fewcal._version import __version__
from fewcal.methods import GDC
from fewcal.methods.settings_file import save_settings
from fewcal.presets import save_preset
from fewcal.tuning.search import Search
from fewcal.tuning.selection import DEFAULT, Finalist, NovelRecord
from fewcal.tuning.storage import require_optuna

if TYPE_CHECKING:
    from optuna import Study

PRESET, SETTINGS = "preset.json", "settings.json"


@dataclass(frozen=True, eq=False)
class Tuning:
    """The outcome of a search.

    Attributes
    ----------
    chosen : Finalist
        The model that is chosen; `chosen.method.settings` are its parameters.
    best : Finalist
        The best trial; it is the one that is chosen unless the default is kept.
    finalists : list of Finalist
        The default first, then trials in the order of the search.
    trials, pruned : int
        Finished trials, and those of them that were stopped early.
    novel : NovelRecord or None
        What the novel classes showed, if they were opened.
    study : optuna.Study
    file : Path
        Where the parameters were written: a preset file for GDC, else a settings file.
    """

    chosen: Finalist
    best: Finalist
    finalists: Sequence[Finalist]
    trials: int
    pruned: int
    novel: NovelRecord | None
    study: Study
    file: Path

    @property
    def verdict(self) -> str:
        """The comparison with the default in words."""
        default, model, fresh = self.finalists[0].method.name, self.best.method.name, self.best.fresh
        if self.best.name == DEFAULT:
            return f"The default ({default}) is kept: no complete trial differs from it."
        error = "" if fresh.error is None else f" (standard error {100 * fresh.error:.2f})"
        gap = f"{abs(100 * fresh.gain):.2f} points {'above' if fresh.gain >= 0 else 'below'} the default ({default})"
        where = f"{gap} on {fresh.tasks} fresh validation tasks{error}"
        if self.chosen.name == DEFAULT:
            how = ", not significantly" if fresh.gain > 0 else ""
            return f"The default is kept: {self.best.name}, the best of {model}, is {where}{how}."
        return f"{self.best.name.capitalize()} of {model} is chosen: {where}."

    def to_dict(self) -> JSONObject:
        """Plain values, for JSON."""
        return {
            "verdict": self.verdict,
            "chosen": self.chosen.name,
            "method": self.chosen.method.name,
            "parameters": self.chosen.method.settings,
            "best trial": self.best.name,
            "file": str(self.file),
            "trials": self.trials,
            "pruned": self.pruned,
            "finalists": [f.to_dict() for f in self.finalists],
            "novel": None if self.novel is None else asdict(self.novel),
        }

    def write(self, search: Search, identity: JSONObject) -> None:
        """Write the parameters, and beside them `tuning.json` with everything else.

        A preset file has the best trial of GDC, a settings file the model that is chosen: both with the verdict.
        """
        libraries = {"fewcal": __version__, "optuna": require_optuna().__version__}
        whole = self.to_dict() | {
            "identity": identity,
            "selection": search.rules.summary,
            "trials in all": search.trials,
            "fresh tasks": search.final_tasks,
            "versions": libraries | {"torch": torch.__version__, "numpy": np.__version__},
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        task = f"{search.way}-way {search.shot}-shot on {search.split}"
        summary = f"tuned for {task}, {search.protocol} protocol, {self.trials} trials of {search.tasks} tasks. "
        provenance = {k: v for k, v in whole.items() if k not in ("finalists", "parameters", "method")}
        if isinstance(self.best.method, GDC):
            save_preset(self.file, self.best.method.params, summary + self.verdict, provenance)
        else:
            method = self.chosen.method
            save_settings(self.file, method.name, method.settings, summary + self.verdict, provenance)
        write_json(self.file.with_name("tuning.json"), whole)


def result_file(folder: Path, best: Finalist) -> Path:
    """Where the parameters go."""
    return folder / (PRESET if isinstance(best.method, GDC) else SETTINGS)

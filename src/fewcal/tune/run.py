"""`tune`: a whole search, from features to a preset file.

    OUT/study.journal   the study, unless it is kept in a database
    OUT/preset.json     the parameters chosen, with their provenance
    OUT/tuning.json     finalists, counts, and what the novel classes said if they were opened
    OUT/plots/          optimisation history, importances, slices, contours
    OUT/tuning.html     all of it as one page

Any number of processes, on one machine or many, may work on a study; each brings the same settings, and what one of
them finishes is kept at once. A killed process loses the trial it was busy with and nothing else.
"""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewcal._utils.arrays import pick_device
from fewcal._utils.atomic import write_json
from fewcal._version import __version__
from fewcal.episodes import sample_episodes
from fewcal.errors import FewcalWarning, InputError
from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet
from fewcal.methods import make_method
from fewcal.methods.gdc import GDC
from fewcal.params import GDCParams
from fewcal.presets import save_preset
from fewcal.tune.search import Search, SearchData, start_points, work
from fewcal.tune.selection import Finalist, choose, from_trial, rerun_finalists, top
from fewcal.tune.spaces import Space
from fewcal.tune.storage import Counts, count, require_optuna
from fewcal.tune.study import open_study
from fewcal.tune.workers import Watch, Watcher, in_processes, on_dask, wait_for_others


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
    novel : dict or None
        What the novel classes said, if they were opened.
    study : optuna.Study
    """

    params: GDCParams
    chosen: Finalist
    finalists: list[Finalist]
    counts: Counts
    fresh: int
    searched: float
    seconds: float
    novel: dict[str, Any] | None
    study: Any


def tune(
    features: FeatureSet | str | os.PathLike[str],
    search: Search | None = None,
    *,
    out: str | os.PathLike[str],
    storage: str | None = None,
    study: str = "fewcal",
    resume: bool = False,
    workers: int = 1,
    scheduler: str | None = None,
    novel_tasks: int | None = None,
    device: str | torch.device | None = None,
    watch: Watch | None = None,
    plots: bool = True,
) -> Tuning:
    """Search parameters of GDC on validation classes.

    Parameters
    ----------
    features : FeatureSet or folder
    search : Search
        Protocol, space, number of trials and tasks.
    out : folder
        Where the study and the result go.
    storage : str or None
        `sqlite:///FILE` or `postgresql://…` instead of a journal file in `out`.
    study : str
        Its name in the storage.
    resume : bool
        Continue, or join, a study that is there; its features and settings must be the same, but for the number of
        trials, which may grow.
    workers : int
        Processes on this machine.
    scheduler : str or None
        Address of a Dask scheduler, or "local:N": the cluster computes the trials, this process keeps the study.
    novel_tasks : int or None
        Open the novel classes, once, with this many tasks; the result is recorded in the study. A second time the
        record is returned.
    device : "cpu", "cuda", "auto"
    watch : callable(Snapshot) or None
    plots : bool
        Draw plots and the page.
    """
    began = time.monotonic()
    if workers < 1 or (scheduler is not None and workers > 1):
        raise InputError(f"workers={workers}: use 1 or more processes, or a Dask scheduler alone")
    fs = features if isinstance(features, FeatureSet) else FeatureSet.load(features)
    search = search or Search()
    if novel_tasks is not None:
        _check_novel(fs, search, novel_tasks)
    chosen_device = str(pick_device(device))
    material = SearchData.of(fs, search)
    # Before the study is made: one with a space that nobody has would be in the way of the next attempt.
    space = search.make_space(len(np.unique(material.base[1])))
    folder = Path(out)
    kept, fresh = open_study(folder, storage, study, search, material, resume)
    runner = material.runner(search, chosen_device)
    if fresh:
        for values in start_points(space, runner):
            kept.enqueue_trial(values)
    see = Watcher(kept, search, watch)
    see()
    before, started = count(kept).finished, time.monotonic()
    if scheduler is not None:
        on_dask(kept, space, search, material, scheduler, see)
    elif workers > 1:
        in_processes(folder, storage, study, search, material, chosen_device, workers, see)
    work(kept, runner, search, see)  # what is left over, which is all of it with one worker
    wait_for_others(kept, search, runner, see)
    counts, searched = count(kept), time.monotonic() - started
    finalists, chosen = _select(kept, space, material, search, chosen_device)
    novel = kept.user_attrs.get("novel")
    if novel_tasks is not None and novel is None:
        novel = _open_novel(kept, fs, search, finalists, chosen, novel_tasks, chosen_device)
    if search.protocol == "paper" and novel is not None:
        # As the paper did: the best of the three on the novel classes.
        chosen = next((f for f in finalists if f.number == novel["chosen_trial"]), None) or from_trial(
            kept.trials[novel["chosen_trial"]], space
        )
        if chosen not in finalists:  # trials that came later are better on validation; the record stands
            finalists.append(chosen)
    elif novel is not None and novel["chosen_trial"] != chosen.number:
        warnings.warn(
            f"the novel classes were opened for trial {novel['chosen_trial']}; after more trials the choice is trial "
            f"{chosen.number}, and the figures recorded are not its own",
            FewcalWarning,
            stacklevel=2,
        )
    result = Tuning(
        chosen.params,
        chosen,
        finalists,
        counts,
        counts.finished - before,
        searched,
        time.monotonic() - began,
        novel,
        kept,
    )
    _write(folder, result, space, search, material, storage, study)
    if plots:
        from fewcal.tune.show import draw

        draw(folder, result, search)
    return result


# ---- the end --------------------------------------------------------------------------------------------------------


def _select(
    study: Any, space: Space, material: SearchData, search: Search, device: str
) -> tuple[list[Finalist], Finalist]:
    if search.protocol == "paper":
        finalists = top(study, space)
        return finalists, finalists[0]
    runner = material.runner(search, device, final=True)
    finalists = rerun_finalists(study, space, runner, search)
    simplest = next(iter(start_points(space, runner)), None) if search.space in ("default", "whitened") else None
    return finalists, choose(finalists, space, simplest)


def _novel_protocol(search: Search, tasks: int) -> Protocol:
    return Protocol(search.way, search.shot, search.query, tasks, search.seed, "novel")


def _check_novel(fs: FeatureSet, search: Search, tasks: int) -> None:
    """Refuse tasks that the novel classes do not suffice for: before the search, not after it."""
    if fs.novel is None:
        raise InputError("the features have no novel split to open")
    _novel_protocol(search, tasks)
    sample_episodes(fs.novel.require_labels(), search.spec, range(1), fs.novel.classes)


def _open_novel(
    study: Any,
    fs: FeatureSet,
    search: Search,
    finalists: list[Finalist],
    chosen: Finalist,
    tasks: int,
    device: str,
) -> dict[str, Any]:
    """Measure on the novel classes, beside the plain methods, and record it in the study."""
    protocol = _novel_protocol(search, tasks)
    candidates = finalists if search.protocol == "paper" else [chosen]
    methods = {f"trial {f.number}": GDC(f.params, cap_k=True) for f in candidates}
    plain = {name: make_method(name) for name in ("simpleshot", "lr")}
    results = evaluate(plain | methods, fs, protocol, device)
    summary = results.summary(class_intervals=False)
    plain_values = summary.to_dict()
    figures = {name: {k: m[k] for k in ("accuracy", "ci95", "tasks")} for name, m in plain_values["methods"].items()}
    best = max(methods, key=lambda name: summary.methods[name].accuracy)
    record = {
        "opened": datetime.now(UTC).isoformat(timespec="seconds"),
        "protocol": protocol.to_dict(),
        "features": fs.split("novel").fingerprint(),
        "figures": figures,
        "paired": plain_values["paired"],
        "chosen_trial": int(best.removeprefix("trial ")),
        "params": chosen.params.as_dict(),
    }
    study.set_user_attr("novel", record)
    return record


def _write(
    folder: Path, result: Tuning, space: Space, search: Search, material: SearchData, storage: str | None, name: str
) -> None:
    optuna = require_optuna()
    how = (
        "the best of three on the novel classes, as in the paper"
        if search.protocol == "paper" and result.novel is not None
        else "the best on validation"
        if search.protocol == "paper"
        else "one-standard-error rule on fresh validation tasks"
    )
    provenance = {
        "features": material.fingerprints,
        "search": search.to_dict(),
        "trials": dataclasses.asdict(result.counts),
        "trial": result.chosen.number,
        "selection": how,
        "accuracy": {
            "search tasks": result.chosen.tuned,
            "fresh tasks": result.chosen.mean if search.protocol == "default" else None,
        },
        "novel": result.novel,
        "study": {"storage": "database" if storage else "journal", "name": name},
        "versions": {
            "fewcal": __version__,
            "optuna": optuna.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    summary = (
        f"tuned for {search.way}-way {search.shot}-shot on {search.split}: {search.protocol} protocol, "
        f"{result.counts.finished} trials of {search.tasks} tasks"
    )
    save_preset(folder / "preset.json", result.params, summary, provenance)
    finalists = [
        {
            "trial": f.number,
            "search tasks": f.tuned,
            "fresh tasks": f.mean if search.protocol == "default" else None,
            "params": f.values,
        }
        for f in result.finalists
    ]
    write_json(
        folder / "tuning.json",
        {"provenance": provenance, "finalists": finalists, "seconds": result.seconds},
    )

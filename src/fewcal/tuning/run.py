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
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from fewcal._utils.arrays import pick_device
from fewcal._utils.atomic import write_json
from fewcal._utils.folder_lock import folder_lock
from fewcal._utils.types import JSONObject, StrPath
from fewcal._version import __version__
from fewcal.errors import InputError
from fewcal.features import FeatureSet
from fewcal.presets import save_preset
from fewcal.tuning.novel import check_novel, open_novel, recorded_novel
from fewcal.tuning.result import Tuning
from fewcal.tuning.search import Search, SearchData, work
from fewcal.tuning.show import draw
from fewcal.tuning.start import first_trials, start_points
from fewcal.tuning.storage import count, enqueued, require_optuna
from fewcal.tuning.study import StudyPlace, open_study
from fewcal.tuning.workers import Watch, Watcher, in_processes, on_dask, wait_for_others

# Seconds that a process waits for another one to begin or to write up the study.
_WAIT = 300.0


def tune(
    features: FeatureSet | StrPath,
    search: Search | None = None,
    *,
    out: StrPath,
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
    """Search parameters of GDC on validation classes; `fewcal tune` does the same.

    Parameters
    ----------
    features : FeatureSet or folder
    search : Search
        Protocol, space, number of trials and tasks; see `Search.for_features`.
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

    Examples
    --------
    >>> import tempfile
    >>> from fewcal.features.synthetic import make_features
    >>> features = make_features(base=12, val=6, novel=0, rows=12, dim=8)
    >>> search = Search(space="whitened", heads=("closed_form",), trials=4, tasks=10, query=5, final_tasks=10)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = tune(features, search, out=folder, plots=False)
    >>> found.counts.finished, found.params.head
    (4, 'closed_form')
    """
    began = time.monotonic()
    if workers < 1 or (scheduler is not None and workers > 1):
        raise InputError(f"workers={workers}: use 1 or more processes, or a Dask scheduler alone")
    fs = features if isinstance(features, FeatureSet) else FeatureSet.load(features)
    search = search or Search()
    if novel_tasks is not None:
        check_novel(fs, search, novel_tasks)
    data = SearchData.of(fs, search)
    # Before the study is made: one with a space that nobody has would be in the way of the next attempt.
    space = search.make_space(len(np.unique(data.base[1])))
    place = StudyPlace(Path(out), storage, study)
    where = str(pick_device(device))
    runner = data.runner(search, where)
    first = first_trials(search, space, runner.bank)
    with folder_lock(place.folder, wait=_WAIT):  # many may work on a study, one begins it
        kept, new = open_study(place, search, data, resume)
        for values in first if new else ():
            kept.enqueue_trial(values)
    see = Watcher(kept, search, watch)
    see()
    before, started = count(kept).finished, time.monotonic()
    if scheduler is not None:
        on_dask(kept, space, search, data, scheduler, see)
    elif workers > 1:
        in_processes(place, search, data, where, workers, see)
    work(kept, runner, search, see)  # what is left over, which is all of it with one worker
    wait_for_others(kept, search, runner, see)
    counts, searched = count(kept), time.monotonic() - started
    rules = search.rules
    presets = start_points(space, runner.bank)
    finalists, chosen = rules.select(
        kept, space, presets, lambda: data.runner(search, where, final=True), search.finalists
    )
    novel = recorded_novel(kept)
    if novel_tasks is not None and novel is None:
        novel = open_novel(kept, fs, search, finalists, chosen, novel_tasks, where)
    if novel is not None:
        finalists, chosen = rules.after_novel(kept, space, finalists, chosen, novel.chosen_trial)
    seconds = time.monotonic() - began
    result = Tuning(chosen, finalists, counts, counts.finished - before, searched, seconds, novel, kept)
    with folder_lock(place.folder, wait=_WAIT):
        write_result(place, result, search, data)
        if plots:
            draw(place.folder, result, search)
    return result


def write_result(place: StudyPlace, result: Tuning, search: Search, data: SearchData) -> None:
    """Write `preset.json` and `tuning.json`."""
    provenance = _provenance(place, result, search, data)
    summary = (
        f"tuned for {search.way}-way {search.shot}-shot on {search.split}: {search.protocol} protocol, "
        f"{result.counts.finished} trials of {search.tasks} tasks"
    )
    save_preset(place.folder / "preset.json", result.params, summary, provenance)
    fresh = search.rules.fresh_tasks
    finalists = [{"trial": f.number, **f.accuracies(fresh), "params": f.values} for f in result.finalists]
    whole = {"provenance": provenance, "finalists": finalists, "seconds": result.seconds}
    write_json(place.folder / "tuning.json", whole)


def _provenance(place: StudyPlace, result: Tuning, search: Search, data: SearchData) -> JSONObject:
    return {
        "features": data.fingerprints,
        "search": search.to_dict(),
        "trials": dataclasses.asdict(result.counts) | {"enqueued": enqueued(result.study)},
        "trial": result.chosen.number,
        "selection": search.rules.selection_rule(result.novel is not None),
        "accuracy": result.chosen.accuracies(search.rules.fresh_tasks),
        "novel": None if result.novel is None else result.novel.to_dict(),
        "study": {"storage": "database" if place.url else "journal", "name": place.name},
        "versions": {
            "fewcal": __version__,
            "optuna": require_optuna().__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
    }

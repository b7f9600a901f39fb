"""`tune`: a whole search, from features to parameters.

    OUT/study.db        the study, unless it is kept in another database
    OUT/settings.json   the parameters chosen (HGDC), or
    OUT/preset.json     those of the best trial (GDC)
    OUT/tuning.json     finalists beside the default, and novel classes if they were opened
    OUT/tuning.html     all of it with plots, as one page

Any number of processes, on one machine or many, may work on a study. A killed process loses the trial that it was
busy with, and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from fewcal._utils.arrays import pick_device
from fewcal._utils.folder_lock import folder_lock
from fewcal._utils.types import Progress, StrPath
from fewcal.errors import InputError
from fewcal.features import FeatureSet
from fewcal.tuning.objective import check_tasks
from fewcal.tuning.result import Tuning, result_file
from fewcal.tuning.search import Search
from fewcal.tuning.selection import NOVEL, NovelRecord, choose, measure_finalists, open_novel
from fewcal.tuning.show import write_page
from fewcal.tuning.storage import storage_errors, storage_url
from fewcal.tuning.study import Session, complete_trials, count_finished, worker_processes

# Seconds to wait for another process that begins or writes up the same study.
WAIT_SECONDS = 300.0


def tune(
    features: FeatureSet | StrPath,
    search: Search | None = None,
    *,
    out: StrPath,
    storage: str | None = None,
    study: str = "fewcal",
    resume: bool = False,
    workers: int = 1,
    novel_tasks: int | None = None,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    plots: bool = True,
) -> Tuning:
    """Search parameters on validation classes and compare the best with the default; `fewcal tune` does the same.

    Parameters
    ----------
    features : FeatureSet or folder
    search : Search or None
        Space, protocol, number of trials and tasks.
    out : folder
        Where the study and the result go.
    storage : str or None
        `sqlite:///FILE` or `postgresql://…` instead of `study.db` in `out`: a database that several machines share.
    study : str
        Its name in the database.
    resume : bool
        Continue or join a study. Features and settings must be the same; the number of trials may grow.
    workers : int
        Processes on this machine.
    novel_tasks : int or None
        Open the novel classes, once, after the choice, with this many tasks. The study keeps the scores, and a second
        call returns them.
    device : "cpu", "cuda", "auto"
    progress : callable(done trials, all trials) or None
    plots : bool
        Draw plots and write the page.

    Examples
    --------
    >>> import tempfile
    >>> from fewcal.features.synthetic import make_features
    >>> features = make_features(base=12, val=6, novel=0, rows=12, dim=8)
    >>> search = Search(trials=4, tasks=10, query=5, final_tasks=10)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = tune(features, search, out=folder, plots=False)
    >>> found.trials, found.finalists[0].name, found.chosen.method.name
    (4, 'default', 'hgdc')
    """
    if isinstance(workers, bool) or workers < 1:
        raise InputError(f"workers={workers}: use 1 or more processes")
    # Absolute, so that the study stays in one folder if the process changes its own.
    folder, where = Path(out).absolute(), str(pick_device(device))
    fs = features if isinstance(features, FeatureSet) else FeatureSet.load(features)
    search = (search or Search()).for_features(fs)
    session = Session(fs, search, where, storage_url(folder, storage), study)
    # What cannot end well is refused before there is a study, which would be in the way of the next attempt.
    objective = session.objective()
    session.first_trial(objective)
    novel = None if novel_tasks is None else replace(search.search_tasks, tasks=novel_tasks, split=NOVEL)
    if novel is not None:
        check_tasks(fs, novel)
    with folder_lock(folder, wait=WAIT_SECONDS):  # many may work on a study, one begins it
        kept = session.open(objective, resume)
    with storage_errors(session.url):
        with worker_processes(workers - 1, session):
            session.optimize(kept, objective, progress or (lambda done, total: None))
        recorded = NovelRecord.of_study(kept)
        finalists = measure_finalists(kept, objective, fs, search, recorded)
        chosen, best = choose(finalists, search, recorded)
        if novel is not None and recorded is None:
            shown = [finalists[0], best] if search.rules.keeps_default else finalists
            recorded = open_novel(kept, fs, novel, shown, where)
            chosen, best = choose(finalists, search, recorded)
        trials, complete = count_finished(kept), len(complete_trials(kept))
        file = result_file(folder, best)
        result = Tuning(chosen, best, finalists, trials, trials - complete, recorded, kept, file)
        with folder_lock(folder, wait=WAIT_SECONDS):
            result.write(search, session.identity)
            if plots:
                write_page(folder / "tuning.html", result, search)
    return result

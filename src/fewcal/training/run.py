"""`train`: a whole training in a folder of its own, from the checks before it to the record after it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fewcal._utils.types import Log, Progress, StrPath
from fewcal.errors import InputError
from fewcal.evaluation.run_folder import Run
from fewcal.training.check import check_data, check_settings
from fewcal.training.data import PixelSplit
from fewcal.training.distributed import joined_process_group
from fewcal.training.finish import finish
from fewcal.training.loop import Training
from fewcal.training.record import RECORD, STATE, TrainingRecord, read_record
from fewcal.training.settings import TrainSettings
from fewcal.training.state import load_state

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def train(
    data: Mapping[str, PixelSplit],
    settings: TrainSettings,
    out: StrPath,
    *,
    device: str | torch.device | None = None,
    resume: bool = False,
    features: StrPath | None = None,
    initial: StrPath | None = None,
    tensorboard: bool = False,
    save_seconds: float = 60.0,
    final_tasks: int = 2000,
    progress: Progress | None = None,
    log: Log | None = None,
) -> TrainingRecord | None:
    """Train a backbone on `data["base"]`, choose the best weights by few-shot accuracy on `data["val"]`.

    Parameters
    ----------
    data : splits by name; `val` and `novel` are optional
    settings : TrainSettings
    out : folder for `best.safetensors`, `record.json` and, until it is done, `state.safetensors`
    device : "cpu", "cuda", "auto"; under torchrun every process takes its own GPU
    resume : continue what is in `out`, with the same data and settings
    features : folder for base.npz, val.npz and novel.npz (float16) of the best weights, or None
    initial : a checkpoint of the same backbone to start from, or None
    tensorboard : write logs to `out/tensorboard`
    save_seconds : time between saved states; a kill loses at most that much
    final_tasks : tasks of the last figures on val and novel
    progress : callable(done, total) in thousandths of the training
    log : callable(line)

    Returns
    -------
    The record: settings, loss curve, validations, final figures, environment. The same as in `record.json`.
    Of several processes only the first has one; the others get None.
    """
    folder = Path(out)
    check_settings(settings)
    check_data(data, settings)
    if tensorboard:
        summary_writer()
    with joined_process_group(device) as group, ExitStack() as held:
        run = None
        if group.first:
            prints = {name: split.fingerprint() for name, split in data.items()}
            begun = "" if initial is None else str(initial)
            identity = {"kind": "training", "settings": settings.to_dict(), "data": prints, "initial": begun}
            run = held.enter_context(Run.open(folder, identity, resume=resume))
        group.agreed([0.0])  # nobody goes on before the folder is there
        if resume and (folder / RECORD).is_file():
            return read_record(folder / RECORD)
        training = Training(data, settings, folder, group, initial)
        if resume and (folder / STATE).is_file():
            load_state(training)
        writer = summary_writer()(str(folder / "tensorboard")) if tensorboard and group.first else None
        training.run(save_seconds, writer, progress, log)
        record = None
        if group.first:
            record = finish(training, None if features is None else Path(features), final_tasks, log)
        if run is not None:
            run.lock.check()
        group.agreed([0.0])
        return record


def summary_writer() -> type[SummaryWriter]:
    """TensorBoard's writer, or an error that says what to install."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError("TensorBoard logs need the package tensorboard: pip install 'fewcal[train]'") from error
    return SummaryWriter

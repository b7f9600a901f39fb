"""`train`: a whole training in a folder of its own, from the checks before it to the record after it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fewcal._utils.atomic import read_json, write_json
from fewcal._utils.types import JSONObject, Log, Progress, StrPath
from fewcal.errors import FewcalWarning, InputError
from fewcal.evaluation.run_folder import Run, environment
from fewcal.features.backbones import load_checkpoint, make_backbone, parameter_count, save_checkpoint
from fewcal.features.featureset import FeatureSet, FeatureSplit
from fewcal.training.data import PixelSplit
from fewcal.training.distributed import joined_process_group
from fewcal.training.loop import Training
from fewcal.training.settings import TrainSettings
from fewcal.training.state import BEST, RECORD, STATE, load_state
from fewcal.training.validate import extract, few_shot_accuracy, task_shape

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
) -> JSONObject | None:
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
    save_seconds : time between saved states, which a kill may lose
    final_tasks : tasks of the last figures on val and novel
    progress : callable(done, total) in thousandths of the training
    log : callable(line)

    Returns
    -------
    The record: settings, loss curve, validations, final figures, environment. The same as in `record.json`.
    Of several processes only the first has one; the others get None.
    """
    folder = Path(out)
    _check_settings(settings)
    _check_data(data, settings)
    if tensorboard:
        summary_writer()
    with joined_process_group(device) as group, ExitStack() as held:
        run = None
        if group.first:
            prints = {name: split.fingerprint() for name, split in data.items()}
            begun = "" if initial is None else str(initial)
            identity = {"kind": "training", "settings": settings.to_dict(), "data": prints, "initial": begun}
            run = held.enter_context(Run.open(folder, identity, resume=resume))
        group.agreed([0.0])  # wait until the folder is there
        if resume and (folder / RECORD).is_file():
            return read_json(folder / RECORD, "train again in a new folder")
        training = Training(data, settings, folder, group, initial)
        if resume and (folder / STATE).is_file():
            load_state(training)
        writer = summary_writer()(str(folder / "tensorboard")) if tensorboard and group.first else None
        training.run(save_seconds, writer, progress, log)
        record = None
        if group.first:
            record = _finish(training, None if features is None else Path(features), final_tasks, log)
        if run is not None:
            run.lock.check()
        group.agreed([0.0])
        return record


def summary_writer() -> type[SummaryWriter]:
    """Return TensorBoard's writer, or raise an error that names the extra."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError("TensorBoard logs need the package tensorboard: pip install 'fewcal[train]'") from error
    return SummaryWriter


# ---- before it ------------------------------------------------------------------------------------------------------


def _check_settings(settings: TrainSettings) -> None:
    """Refuse a backbone that cannot take pictures of all the sizes that will come; nothing is computed."""
    with torch.device("meta"):
        net = make_backbone(settings.backbone, **settings.backbone_settings).eval()
        for size in {settings.size, settings.store, *settings.every_test_size}:
            net(torch.zeros(1, net.in_channels, size, size))


def _check_data(data: Mapping[str, PixelSplit], settings: TrainSettings) -> None:
    """Refuse data without a base split that the backbone takes, or with too few validation classes for tasks."""
    if "base" not in data:
        raise InputError("there is no base split to train on")
    if len(data["base"].classes) < 2:
        raise InputError("base has one class only; a classifier needs two or more")
    channels = settings.backbone_settings.get("in_channels", 3)
    for name, split in data.items():
        if split.pixels.shape[1] != channels:
            raise InputError(
                f"{name} has pictures of {split.pixels.shape[1]} channels, the backbone takes {channels} (in_channels)"
            )
    if "val" in data:
        task_shape(np.bincount(data["val"].labels.cpu().numpy(), minlength=len(data["val"].classes)))
    else:
        warnings.warn("no val split: the last weights are kept, not the best ones", FewcalWarning, stacklevel=3)


# ---- after it -------------------------------------------------------------------------------------------------------


def _finish(training: Training, features: Path | None, tasks: int, log: Log | None) -> JSONObject:
    """Choose the test size on validation, look at novel once, write features and the record."""
    s, data = training.settings, training.data
    best, meta = load_checkpoint(training.folder / BEST, s.backbone)
    best = best.to(training.group.device)
    on_val: dict[str, dict[str, dict[str, float]]] = {}
    sets: dict[int | tuple[int, ...], dict[str, FeatureSplit]] = {}
    for size in s.test_sizes or (s.store,):
        sets[size] = {name: extract(best, data[name], size) for name in ("base", "val") if name in data}
        if "val" in data:
            on_val[_text(size)] = few_shot_accuracy(sets[size], "val", tasks, seed=1)
    chosen = max(sets, key=lambda z: sum(v["accuracy"] for v in on_val[_text(z)].values()) if on_val else 0.0)
    save_checkpoint(training.folder / BEST, best, meta | {"test_size": chosen})
    final: JSONObject = {"test_size": chosen, "val": on_val}
    splits = sets[chosen]
    if "novel" in data:
        splits["novel"] = extract(best, data["novel"], chosen)
        final["novel"] = few_shot_accuracy(splits, "novel", tasks)
    if features is not None:
        halves = {n: FeatureSplit(f.features.astype(np.float16), f.labels, f.classes) for n, f in splits.items()}
        FeatureSet(halves.get("base"), halves.get("val"), halves.get("novel")).save(features)
    record: JSONObject = {
        "settings": s.to_dict(),
        "backbone": {"dimension": best.dimension, "parameters": parameter_count(best)},
        "classes": {name: len(split.classes) for name, split in data.items()},
        "pictures": {name: len(split) for name, split in data.items()},
        "epochs": training.epoch,
        "steps": training.step,
        "seconds": training.spent(),
        "ended": training.ended,
        "best_epoch": meta.get("epoch"),
        "curve": training.curve,
        "validations": training.validations if "val" in data else [],
        "final": final,
        "environment": environment(training.group.device) | {"processes": training.group.size},
    }
    write_json(training.folder / RECORD, record)
    (training.folder / STATE).unlink(missing_ok=True)
    if log is not None:
        for name, found in (("val", on_val.get(_text(chosen), {})), ("novel", final.get("novel", {}))):
            for shot, v in found.items():
                log(f"{name} {shot}-shot: {100 * v['accuracy']:.2f} ± {100 * v['ci95']:.2f}")
    return record


def _text(size: int | tuple[int, ...]) -> str:
    """
    >>> _text(84), _text((84, 100))
    ('84', '84+100')
    """
    return str(size) if isinstance(size, int) else "+".join(map(str, size))

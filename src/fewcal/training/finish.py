"""The end of a training: choose the test size, look at novel once, write features and the record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fewcal._utils.atomic import write_json
from fewcal._utils.types import Log
from fewcal.evaluation.run_folder import environment
from fewcal.features.backbones import load_checkpoint, parameter_count, save_checkpoint
from fewcal.features.featureset import FeatureSplit
from fewcal.training.record import BEST, RECORD, STATE, FewShot, Final, TrainingRecord
from fewcal.training.validate import extract, feature_set, few_shot_accuracy

if TYPE_CHECKING:
    from fewcal.training.loop import Training


def finish(training: Training, features: Path | None, tasks: int, log: Log | None) -> TrainingRecord:
    """Choose the test size on validation, look at novel once, write features and the record."""
    s = training.settings
    best, meta = load_checkpoint(training.folder / BEST, s.backbone)
    best = best.to(training.group.device)
    sizes: dict[str, FewShot] = {}
    sets: dict[int | tuple[int, ...], dict[str, FeatureSplit]] = {}
    for size in s.test_sizes or (s.store,):
        sets[size] = {n: extract(best, training.data[n], size) for n in ("base", "val") if n in training.data}
        if "val" in training.data:
            sizes[_sizes(size)] = few_shot_accuracy(sets[size], "val", tasks, seed=1)
    chosen = max(sets, key=lambda z: sum(v["accuracy"] for v in sizes[_sizes(z)].values()) if sizes else 0.0)
    save_checkpoint(training.folder / BEST, best, meta | {"test_size": chosen})
    final: Final = {"test_size": chosen, "val": sizes}
    splits = sets[chosen]
    if "novel" in training.data:
        splits["novel"] = extract(best, training.data["novel"], chosen)
        final["novel"] = few_shot_accuracy(splits, "novel", tasks)
    if features is not None:
        halves = {n: FeatureSplit(f.features.astype(np.float16), f.labels, f.classes) for n, f in splits.items()}
        feature_set(halves).save(features)
    record: TrainingRecord = {
        "settings": s.to_dict(),
        "backbone": {"dimension": best.dimension, "parameters": parameter_count(best)},
        "classes": {name: len(split.classes) for name, split in training.data.items()},
        "pictures": {name: len(split) for name, split in training.data.items()},
        "epochs": training.epoch,
        "steps": training.step,
        "seconds": training.spent(),
        "ended": training.ended,
        "best_epoch": meta.get("epoch"),
        "curve": training.curve,
        "validations": training.validations if "val" in training.data else [],
        "final": final,
        "environment": environment(training.group.device) | {"processes": training.group.size},
    }
    write_json(training.folder / RECORD, record)
    (training.folder / STATE).unlink(missing_ok=True)
    if log is not None:
        for name in ("val", "novel"):
            found = (sizes.get(_sizes(chosen)) if name == "val" else final.get("novel")) or {}
            for shot, v in found.items():
                log(f"{name} {shot}-shot: {100 * v['accuracy']:.2f} ± {100 * v['ci95']:.2f}")
    return record


def _sizes(size: int | tuple[int, ...]) -> str:
    """
    >>> _sizes(84), _sizes((84, 100))
    ('84', '84+100')
    """
    return str(size) if isinstance(size, int) else "+".join(map(str, size))

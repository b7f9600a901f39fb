"""What a training leaves in its folder: the files' names and the record of what happened."""

from __future__ import annotations

from pathlib import Path
from typing import NotRequired, TypeAlias, TypedDict, cast

from fewcal._utils.atomic import read_json
from fewcal._utils.types import JSON

BEST, STATE, RECORD = "best.safetensors", "state.safetensors", "record.json"


class EpochRow(TypedDict):
    """One epoch of the loss curve: its stage, the learning rate it began with, and means over its steps."""

    epoch: int
    stage: int
    rate: float
    loss: float
    class_loss: float
    rotation_loss: float
    accuracy: float


# Few-shot accuracy on validation classes, under "1" and "5" by shots; `epoch`, `step` and `stage` say when.
Validation = TypedDict("Validation", {"epoch": int, "step": int, "stage": int, "1": float, "5": float})
# Accuracy and half-width ("accuracy", "ci95") by shots ("1", "5").
FewShot: TypeAlias = dict[str, dict[str, float]]


class Final(TypedDict):
    """The test size chosen on validation, accuracies on validation at every size, and on novel classes at that one."""

    test_size: int | tuple[int, ...]
    val: dict[str, FewShot]
    novel: NotRequired[FewShot]


class TrainingRecord(TypedDict):
    """`record.json`."""

    settings: dict[str, JSON]
    backbone: dict[str, int]
    classes: dict[str, int]
    pictures: dict[str, int]
    epochs: int
    steps: int
    seconds: float
    ended: str
    best_epoch: JSON
    curve: list[EpochRow]
    validations: list[Validation]
    final: Final
    environment: dict[str, JSON]


def read_record(path: Path) -> TrainingRecord:
    """The record of a finished training."""
    return cast(TrainingRecord, read_json(path, "train again in a new folder"))

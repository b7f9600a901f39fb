"""Files of a training's folder, and rows of the record of what happened."""

from __future__ import annotations

from typing import TypeAlias, TypedDict

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


# Few-shot accuracy on validation classes, under "1" and "5" by shots, at a step.
Validation = TypedDict("Validation", {"epoch": int, "step": int, "stage": int, "1": float, "5": float})
# Accuracy and half-width ("accuracy", "ci95") by shots ("1", "5").
FewShot: TypeAlias = dict[str, dict[str, float]]

"""The state of a training in progress: everything that a resumed one needs, in one safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fewcal._utils.safetensors_io import read_tensors, write_tensors
from fewcal._utils.text import one_line
from fewcal.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from fewcal.training.loop import Training

# Files of a training's folder.
BEST, STATE, RECORD = "best.safetensors", "state.safetensors", "record.json"
# Attributes of a training that are kept as they are.
_FIELDS = ("epoch", "place", "step", "plan", "curve", "validations", "step_seconds", "lost", "ended")


def save_state(training: Training) -> None:
    """Write weights, averages, the optimizer's tensors, and where the training stands."""
    tensors = {f"model.{k}": v for k, v in training.learner.state_dict().items()}
    tensors |= {f"average.{k}": v for k, v in training.average.backbone.state_dict().items()}
    for i, p in enumerate(training.learner.parameters()):
        kept = training.optimizer.state.get(p, {})
        tensors |= {f"optimizer.{i}.{key}": value for key, value in kept.items() if value is not None}
    header = {name: getattr(training, name) for name in _FIELDS}
    header |= {"sums": training.sums.tolist(), "elapsed": training.spent(), "processes": training.group.size}
    write_tensors(training.folder / STATE, tensors, header, key="training")


def load_state(training: Training) -> None:
    """Continue where `save_state` was called."""
    path = training.folder / STATE
    try:
        header, tensors = read_tensors(path, key="training", device=str(training.group.device))
        training.learner.load_state_dict(_under("model.", tensors))
        training.average.backbone.load_state_dict(_under("average.", tensors))
        for i, p in enumerate(training.learner.parameters()):
            for key, value in _under(f"optimizer.{i}.", tensors).items():
                kept = value if value.ndim == 0 else torch.empty_like(p).copy_(value)  # in the order of its memory
                training.optimizer.state[p][key] = kept
        for name in _FIELDS:
            setattr(training, name, header[name])
        training.sums = torch.tensor(header["sums"], device=training.group.device)
        training.elapsed, processes = header["elapsed"], header["processes"]
    except (FileFormatError, AttributeError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = one_line(error)
        raise FileFormatError(f"{path} cannot be continued ({reason}); train again in a new folder") from error
    if processes != training.group.size:
        raise InputError(
            f"this training ran in {processes} processes and now in {training.group.size}; resume with as many"
        )


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

"""The state of a training in progress: everything that a resumed one needs, in one safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fewcal._utils.safetensors_io import read_tensors, write_tensors
from fewcal._utils.text import one_line
from fewcal.errors import FileFormatError, InputError
from fewcal.training.record import STATE

if TYPE_CHECKING:
    from fewcal.training.loop import Training


def save_state(training: Training) -> None:
    """All that a resumed training needs, as safetensors: weights, momentum, average, and where it stands."""
    tensors = {f"model.{k}": v for k, v in training.learner.state_dict().items()}
    tensors |= {f"average.{k}": v for k, v in training.average.backbone.state_dict().items()}
    for i, p in enumerate(training.learner.parameters()):
        if (momentum := training.optimizer.state.get(p, {}).get("momentum_buffer")) is not None:
            tensors[f"momentum.{i}"] = momentum
    header = {
        "epoch": training.epoch,
        "place": training.place,
        "step": training.step,
        "plan": training.plan,
        "sums": training.sums.tolist(),
        "curve": training.curve,
        "validations": training.validations,
        "elapsed": training.spent(),
        "step_seconds": training.step_seconds,
        "lost": training.lost,
        "processes": training.group.size,
        "ended": training.ended,
    }
    write_tensors(training.folder / STATE, tensors, header, key="training")


def load_state(training: Training) -> None:
    """Continue where `save_state` was called."""
    path = training.folder / STATE
    try:
        header, tensors = read_tensors(path, key="training", device=str(training.group.device))
        training.learner.load_state_dict(_under("model.", tensors))
        training.average.backbone.load_state_dict(_under("average.", tensors))
        for i, p in enumerate(training.learner.parameters()):
            if f"momentum.{i}" in tensors:
                training.optimizer.state[p]["momentum_buffer"] = torch.empty_like(p).copy_(tensors[f"momentum.{i}"])
        training.epoch, training.place, training.step = header["epoch"], header["place"], header["step"]
        training.plan, training.ended = tuple(header["plan"]), header["ended"]
        training.sums = torch.tensor(header["sums"], device=training.group.device)
        training.curve, training.validations = header["curve"], header["validations"]
        training.elapsed, training.step_seconds, training.lost = (
            header["elapsed"],
            header["step_seconds"],
            header["lost"],
        )
        processes = header["processes"]
    except (FileFormatError, AttributeError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = one_line(error)
        raise FileFormatError(f"{path} cannot be continued ({reason}); train again in a new folder") from error
    if processes != training.group.size:
        raise InputError(
            f"this training ran in {processes} processes and now in {training.group.size}; resume with as many"
        )


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

"""Models of pictures of other libraries, by name: `timm:NAME` and `open_clip:NAME/TAG`.

With the option `runtime=onnx` their networks, and those of `hf:`, are exported when they are loaded and computed by
ONNX Runtime: twice as fast as torch on one CPU thread (ViT-B/16 2.2, ResNet-50 2.0; not so the bundled networks, 0.4).
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fewcal.errors import InputError
from fewcal.features.extractors.base import (
    EmbedFunction,
    Extractor,
    fingerprint_of,
    in_pieces,
    needed,
    register,
    weights_digest,
    with_dimension,
)
from fewcal.features.extractors.combine import parse_name
from fewcal.features.extractors.offline import loading
from fewcal.features.sources.pictures import Picture, read_picture

if TYPE_CHECKING:
    from PIL.Image import Image

# Pictures that one CPU thread computes at once.
PIECE = 4


@register("timm:", kind="picture", needs="fewcal[timm] and the weights of NAME on this machine")
def timm_model(name: str, device: torch.device, allow_download: bool = False) -> Extractor:
    """Return a model of timm without its classifier, with its own transform; NAME may be a folder."""
    timm = needed("timm", name, "fewcal[timm]")
    place, options = parse_name(name, "runtime")
    with loading(name, allow_download):
        local = f"local-dir:{place}" if Path(place).is_dir() else place
        model = timm.create_model(local, pretrained=True, num_classes=0).eval().to(device)
        config = timm.data.resolve_model_data_config(model)
        transform = timm.data.create_transform(**config, is_training=False)
    return of_torch(name, model, model, transform, device, str(transform), options)


@register("open_clip:", kind="picture", needs="fewcal[open_clip] and the weights of NAME on this machine")
def open_clip_model(name: str, device: torch.device, allow_download: bool = False) -> Extractor:
    """Return the images' half of a model of open_clip: NAME/TAG, NAME/FILE, `hf-hub:NAME` or `local-dir:FOLDER`."""
    open_clip = needed("open_clip", name, "fewcal[open_clip]")
    place, options = parse_name(name, "runtime")
    architecture, _, weights = place.partition("/")
    if place.startswith(("hf-hub:", "local-dir:")):
        architecture, weights = place, ""
    with loading(name, allow_download):
        model, transform = open_clip.create_model_from_pretrained(
            architecture, pretrained=weights or None, device=device
        )
    return of_torch(name, model.eval(), model.encode_image, transform, device, str(transform), options)


def of_images(name: str, fingerprint: str, compute: EmbedFunction, transform: Callable[[Image], Any]) -> Extractor:
    """Return the extractor of a network with a transform of its own, from an image to floats `(C, H, W)`."""

    def decode(picture: Picture, title: str | None) -> np.ndarray:
        return read_picture(picture, lambda image: np.asarray(transform(image), np.float32), None, title)

    return with_dimension(Extractor(name, "picture", 0, fingerprint, lambda b: compute(np.stack(b)), decoder=decode))


def of_torch(
    name: str,
    model: nn.Module,
    forward: Callable[[Tensor], Tensor],
    transform: Callable[[Image], Any],
    device: torch.device,
    settings: str,
    options: Mapping[str, str],
) -> Extractor:
    """Return the extractor of a network of torch: in pieces on a CPU, or by ONNX Runtime where that is an option."""

    def embed(batch: np.ndarray) -> Tensor:
        return forward(torch.from_numpy(batch).to(device)).float().flatten(1)

    compute = in_pieces(embed, PIECE) if device.type == "cpu" else embed
    if "runtime" in options:
        if options["runtime"] != "onnx" or device.type != "cpu":
            raise InputError(f"extractor {name}: runtime must be onnx, on the device cpu")
        blank = read_picture(np.zeros((64, 64, 3), np.uint8), lambda image: np.asarray(transform(image), np.float32))
        compute = _by_onnx_runtime(name, model, forward, torch.from_numpy(np.stack([blank] * 2)))
    return of_images(name, fingerprint_of(weights_digest(model), settings), compute, transform)


def _by_onnx_runtime(
    name: str, model: nn.Module, forward: Callable[[Tensor], Tensor], example: Tensor
) -> Callable[[np.ndarray], np.ndarray]:
    """Return `forward` as ONNX Runtime computes it; `example (2, C, H, W)` has the shape of its pictures."""
    runtime = needed("onnxruntime", name, "fewcal[onnx]")
    needed("onnx", name, "fewcal[onnx]")

    file = io.BytesIO()
    with loading(name, True), warnings.catch_warnings(action="ignore"):  # of what depends on the pictures' size
        export_onnx(file, model, lambda x: forward(x).float().flatten(1), x=example)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = runtime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    return lambda batch: cast(np.ndarray, session.run(None, {"x": batch})[0])


def export_onnx(file: io.BytesIO | Path, model: nn.Module, forward: Callable[..., Tensor], **examples: Tensor) -> None:
    """Write `forward`, which computes with `model`, as ONNX; numbers of rows and of tokens `(B, T)` may vary."""

    class Exported(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Tensor) -> Tensor:
            return forward(*inputs)

    torch.onnx.export(
        Exported().eval(),
        tuple(examples.values()),
        file,  # type: ignore[arg-type]
        input_names=list(examples),
        dynamic_axes={name: {0: "rows"} | ({1: "tokens"} if x.ndim == 2 else {}) for name, x in examples.items()},
        dynamo=False,
    )

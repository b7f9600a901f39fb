"""What an extractor is, the registry of those that have names, and what their modules share."""

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
from fewcal.features.sources.pictures import Pictures

if TYPE_CHECKING:
    from torch import nn

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
KINDS = ("picture", "text")

# uint8 pictures (B, S, S, 3), pictures of any size, or texts
Batch: TypeAlias = np.ndarray | Sequence[np.ndarray] | Sequence[str] | Sequence[np.ndarray | str]
Rows: TypeAlias = "np.ndarray | torch.Tensor | Sequence[Sequence[float]]"
Embed: TypeAlias = Callable[..., Rows]  # of one batch; users give functions of pictures or of texts


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
    size, crop : pictures are made squares of `size`; see `pictures.decode_fitted`
    beta : power that brings its features nearer to normal where there are no base classes to tell
    concurrent : whether several threads may call it at once
    """

    name: str
    kind: str
    dim: int
    fingerprint: str
    embed: Embed
    size: int | None = None
    crop: float | None = 1.0
    beta: float = 1.0
    concurrent: bool = False

    @property
    def stamp(self) -> str:
        """Name and fingerprint in a line, as files keep it."""
        return f"{self.name}@{self.fingerprint[:16]}"

    def prepare(self, items: Items, i: int) -> np.ndarray | str:
        """Item i as this extractor takes it: read, and a picture brought to its size."""
        if items.kind != self.kind:
            raise ValueError(f"{self.name} takes {self.kind}s, not {items.kind}s")
        return items.square(i, self.size, self.crop) if isinstance(items, Pictures) else items.load(i)

    def __call__(self, batch: Batch) -> np.ndarray:
        squares = self.kind == "picture" and self.size is not None and not isinstance(batch, np.ndarray)
        with torch.inference_mode():
            out = self.embed(np.stack([np.asarray(picture) for picture in batch]) if squares else batch)
        rows = out.detach().cpu().numpy() if isinstance(out, torch.Tensor) else np.asarray(out)
        rows = rows.astype(np.float32, copy=False)
        if rows.ndim != 2 or len(rows) != len(batch) or (self.dim and rows.shape[1] != self.dim):
            want = f"({len(batch)}, {self.dim or 'D'})"
            raise InputError(f"extractor {self.name} gave an array of shape {rows.shape}; it must be {want}")
        return rows


# ---- those with names -----------------------------------------------------------------------------------------------

# name as asked for, device, whether weights may be fetched → extractor
Make: TypeAlias = "Callable[[str, torch.device, bool], Extractor]"


@dataclass(frozen=True)
class Entry:
    """A row of the table of extractors: a name, a prefix ("timm:") or a file extension (".safetensors").

    Attributes
    ----------
    kind : "picture", "text" or "either"
    features : D, or "its own"
    signs : "≥ 0", "both" or "its own"
    needs : what must be installed
    check : refuses a name, without torch, that leads to nothing an extractor can be made of; None where all do
    """

    name: str
    make: Make
    kind: str
    features: str
    signs: str
    needs: str
    check: Callable[[str], object] | None = None


REGISTRY: dict[str, Entry] = {}


def register(
    *names: str,
    kind: str,
    features: str = "its own",
    signs: str = "its own",
    needs: str,
    check: Callable[[str], object] | None = None,
) -> Callable[[Make], Make]:
    """Let `get_extractor` find the decorated function under these names; see `Entry`."""

    def added(make: Make) -> Make:
        for name in names:
            REGISTRY[name] = Entry(name, make, kind, features, signs, needs, check)
        return make

    return added


def find_entry(name: str) -> Entry | None:
    """The entry that an extractor's name asks for: the name itself, its prefix, or the extension of a file."""
    prefix, colon, rest = name.partition(":")
    if name in REGISTRY and name[-1] != ":" and name[0] != ".":
        return REGISTRY[name]
    if colon and rest and f"{prefix}:" in REGISTRY:
        return REGISTRY[f"{prefix}:"]
    return next((e for e in REGISTRY.values() if e.name.startswith(".") and name.endswith(e.name)), None)


# ---- what their modules share ---------------------------------------------------------------------------------------


def normalised(model: nn.Module, mean: Sequence[float], std: Sequence[float], device: torch.device) -> Embed:
    """uint8 pictures `(B, S, S, 3)` → (x / 255 − mean) / std as `(B, 3, S, S)` → the model → `(B, D)`."""
    shift = torch.tensor(list(mean), device=device).view(1, 3, 1, 1)
    scale = torch.tensor(list(std), device=device).view(1, 3, 1, 1)

    def embed(pictures: np.ndarray) -> torch.Tensor:
        # The last axis holds the channels: as it lies in memory this is torch's channels_last, the faster one.
        x = torch.from_numpy(np.ascontiguousarray(pictures)).to(device).permute(0, 3, 1, 2)
        out: torch.Tensor = model((x.float() / 255 - shift) / scale)
        return out.flatten(1)

    return embed


def in_pieces(compute: Callable[[np.ndarray], torch.Tensor], size: int) -> Embed:
    """A batch on a CPU: `size` pictures at once, by one thread, and several of these pieces side by side."""

    def one(pictures: np.ndarray) -> torch.Tensor:
        with torch.inference_mode():  # which each thread sets for itself
            return compute(pictures)

    def embed(pictures: np.ndarray) -> torch.Tensor:
        return torch.cat(list(in_parallel(one, [pictures[i : i + size] for i in range(0, len(pictures), size)])))

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
    """An extractor from a network of pictures: it gets floats in 0..1, less `mean`, over `std`."""
    model = model.eval().to(device)
    fingerprint = fingerprint_of(weights_digest(model), size, crop, list(mean), list(std))
    return with_dimension(Extractor(name, "picture", 0, fingerprint, normalised(model, mean, std, device), size, crop))


def with_dimension(extractor: Extractor) -> Extractor:
    """The same extractor, with its number of features found by trying it once."""
    side = extractor.size or 64
    probe: Batch = ["a text"] if extractor.kind == "text" else [np.zeros((side, side, 3), np.uint8)]
    return replace(extractor, dim=extractor(probe).shape[1])


def needed(package: str, name: str, remedy: str) -> Any:
    """Import an optional package, or say which one to install."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        quoted = f"'{remedy}'" if "[" in remedy else remedy
        raise InputError(f"extractor {name} needs the package {package}: pip install {quoted}") from error


def weights_digest(model: nn.Module) -> bytes:
    """A digest of a model's class and weights."""
    digest = hashlib.sha256(type(model).__qualname__.encode())
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode())
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.digest()


def fingerprint_of(weights: bytes, *settings: object) -> str:
    """What tells an extractor from others: its weights and its preprocessing."""
    return hashlib.sha256(hashlib.sha256(weights).digest() + repr(settings).encode()).hexdigest()

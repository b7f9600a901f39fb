"""WordLlama: averaged word vectors of a language model; no network, so it is fast."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fewcal.errors import InputError
from fewcal.features.extractors.base import Extractor, fingerprint_of, needed, register


@register("wordllama", kind="text", features="256", signs="both", needs="fewcal[text]")
def wordllama(name: str, device: torch.device, allow_download: bool = False) -> Extractor:
    """Return the vectors that are in the package."""
    package = needed("wordllama", name, "fewcal[text]")
    home = Path(package.__file__).parent
    try:
        model = package.WordLlama.load(cache_dir=home, disable_download=True)
    except FileNotFoundError as error:
        raise InputError(f"{name}: its package has no weights in it ({error}); pip install 'fewcal[text]'") from error

    def embed(texts: list[str]) -> np.ndarray:
        return np.asarray(model.embed(texts))

    weights = b"".join(p.read_bytes() for p in sorted((home / "weights").glob("*.safetensors")))
    return Extractor(name, "text", 256, fingerprint_of(weights), embed)

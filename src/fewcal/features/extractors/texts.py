"""Extractors of texts: averaged word vectors (`wordllama`), and models of the package sentence-transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fewcal.errors import InputError
from fewcal.features.extractors.base import Extractor, fingerprint_of, needed, register, weights_digest
from fewcal.features.extractors.offline import no_progress_bars, offline, unavailable


@register("wordllama", kind="text", features="256", signs="both", needs="fewcal[text]")
def wordllama(name: str, device: torch.device, allow_download: bool = False) -> Extractor:
    """Word vectors of a language model, averaged; no network, so it is fast."""
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


def sentence_transformer(name: str, place: str, device: torch.device, allow_download: bool) -> Extractor:
    """A model of the package sentence-transformers, by its name or folder."""
    library = needed("sentence_transformers", name, "fewcal[text]")
    local = not allow_download
    try:
        with offline(local), no_progress_bars(needed("transformers", name, "fewcal[text]")):
            model = library.SentenceTransformer(place, device=str(device), local_files_only=local).eval()
    except Exception as error:
        raise unavailable(name, error, allow_download) from error

    def embed(texts: list[str]) -> np.ndarray:
        return np.asarray(model.encode(texts, batch_size=len(texts), show_progress_bar=False, convert_to_numpy=True))

    dim = int(embed(["a text"]).shape[1])
    return Extractor(name, "text", dim, fingerprint_of(weights_digest(model)), embed)

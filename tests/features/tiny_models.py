"""Tiny models of other libraries with random weights, saved as the libraries save theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
IMAGE = {"image_size": 32, "patch_size": 16}
WORDS = "[PAD] [UNK] [CLS] [SEP] query : the cat sat on a mat dog ran".split()  # noqa: SIM905


def save_hugging_face(name: str, folder: Path) -> Path:
    """Save a model of this family with its preprocessing."""
    import transformers as t

    torch.manual_seed(0)
    square = {"height": 32, "width": 32}
    towers: dict[str, Any] = {"vision_config": SMALL | IMAGE, "text_config": SMALL | {"vocab_size": 50}}
    makers = {
        "vit": lambda: (t.ViTModel(t.ViTConfig(**SMALL, **IMAGE)), t.ViTImageProcessor(size=square)),
        "vit without pooler": lambda: (
            t.ViTModel(t.ViTConfig(**SMALL, **IMAGE), add_pooling_layer=False),
            t.ViTImageProcessor(size=square, resample=2),
        ),
        "dinov2": lambda: (
            t.Dinov2Model(t.Dinov2Config(**SMALL, image_size=28, patch_size=14)),
            t.BitImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 28, "width": 28}),
        ),
        "siglip": lambda: (t.SiglipModel(t.SiglipConfig(**towers)), t.SiglipImageProcessor(size=square)),
        "clip": lambda: (
            t.CLIPModel(t.CLIPConfig(**towers, projection_dim=8)),
            t.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=square),
        ),
        "resnet": lambda: (
            t.ResNetModel(t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])),
            t.ConvNextImageProcessor(size={"shortest_edge": 32}, crop_pct=0.875),
        ),
        "wav2vec2": lambda: (
            t.Wav2Vec2Model(
                t.Wav2Vec2Config(
                    **SMALL,
                    conv_dim=(8, 8),
                    conv_stride=(5, 2),
                    conv_kernel=(10, 3),
                    num_conv_pos_embeddings=4,
                    num_conv_pos_embedding_groups=2,
                )
            ),
            t.Wav2Vec2FeatureExtractor(),
        ),
    }
    model, processor = makers[name]()
    for part in (model.eval(), processor):
        part.save_pretrained(folder)
    return folder


def save_sentence_transformer(folder: Path) -> Path:
    """Save a BERT of two layers with a vocabulary of a few words, a mean over tokens, and a prompt."""
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    BertModel(BertConfig(**SMALL, vocab_size=len(WORDS))).eval().save_pretrained(folder / "plain")
    names = {f"{word[1:-1].lower()}_token": word for word in WORDS[:4]}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=32, **names).save_pretrained(folder / "plain")
    SentenceTransformer(str(folder / "plain"), prompts={"query": "query: "}).save(str(folder / "model"))
    return folder / "model"

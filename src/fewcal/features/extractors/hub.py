"""Models of others by name: `timm:NAME` and `hf:NAME`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fewcal.errors import InputError
from fewcal.features.extractors.base import IMAGENET_MEAN, IMAGENET_STD, Extractor, from_module, needed, register
from fewcal.features.extractors.offline import no_progress_bars, offline, unavailable
from fewcal.features.extractors.texts import sentence_transformer

if TYPE_CHECKING:
    import torch


@register("timm:", kind="picture", needs="timm and the weights of NAME on this machine")
def timm_model(name: str, device: torch.device, allow_download: bool = False) -> Extractor:
    """A model of timm without its classifier, with its own preprocessing."""
    timm = needed("timm", name, "timm")
    try:
        with offline(not allow_download):
            model = timm.create_model(name.partition(":")[2], pretrained=True, num_classes=0).eval()
    except Exception as error:  # whatever the hub, the disk and the name give rise to
        raise unavailable(name, error, allow_download) from error
    config = timm.data.resolve_model_data_config(model)
    size = int(config["input_size"][-1])
    return from_module(
        model,
        name,
        device,
        size=size,
        crop=float(config.get("crop_pct", 1.0)),
        mean=config["mean"],
        std=config["std"],
    )


@register("hf:", kind="either", needs="transformers and the model NAME on this machine")
def hugging_face_model(name: str, device: torch.device, allow_download: bool = False) -> Extractor:
    """A model of Hugging Face: of pictures where it has an image processor, of texts where it has not."""
    model_name = name.partition(":")[2]
    transformers = needed("transformers", name, "fewcal[text]")
    from transformers.models.auto.image_processing_auto import get_image_processor_config

    local = not allow_download
    try:
        with offline(local), no_progress_bars(transformers):
            config = get_image_processor_config(model_name, local_files_only=local)
            if not config:
                return sentence_transformer(name, model_name, device, allow_download)
            model = transformers.AutoModel.from_pretrained(model_name, local_files_only=local).eval()
    except InputError:
        raise
    except Exception as error:
        raise unavailable(name, error, allow_download) from error
    from fewcal.features.extractors.pooled import Pooled

    return from_module(
        Pooled(model),
        name,
        device,
        size=_side(config),
        mean=config.get("image_mean") or IMAGENET_MEAN,
        std=config.get("image_std") or IMAGENET_STD,
    )


def _side(config: Mapping[str, object]) -> int:
    """The side of the squares that a Hugging Face image processor makes."""
    for key in ("crop_size", "size"):
        value = config.get(key)
        if isinstance(value, dict):
            value = value.get("height") or value.get("shortest_edge")
        if isinstance(value, int) and value:
            return value
    return 224

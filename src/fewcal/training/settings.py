"""Settings of a training, checked once, and recipes: settings that belong together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fewcal._utils.names import nearest_names
from fewcal._utils.parameters import check_parameters, parameter
from fewcal._utils.types import JSONObject
from fewcal.errors import InputError
from fewcal.features.backbones import checked_settings
from fewcal.methods import parse_settings as parse_method_settings

_count = partial(parameter, integer=True, high=1_000_000)


@dataclass(frozen=True)
class TrainSettings:
    """Settings of a training; the defaults are for residual backbones, `for_backbone` has others.

    An entry of `test_sizes` that is itself a list stands for the mean of the features at these sizes; () for `store`.

    >>> TrainSettings(epochs=3, mixup_epochs=1).stage1_share
    0.75
    """

    backbone: str = "resnet12"
    backbone_settings: dict[str, int] = field(default_factory=dict)
    size: int = parameter(84, "height and width of training pictures", low=4, high=4096, integer=True)
    store: int = parameter(0, "size of stored pictures; 0: size · 92/84", low=0, high=4096, integer=True)
    epochs: int = _count(300, "stage 1, classification + rotation", low=0)
    mixup_epochs: int = _count(200, "stage 2, manifold mixup + rotation", low=0)
    minutes: float | None = None  # time budget; the stages share it in the proportion of their epochs
    batch: int = _count(128, "pictures of a step, over all devices", low=2)
    optimizer: str = parameter("sgd", "SGD with Nesterov momentum, or Adam", choices=("sgd", "adam"))
    lr: float = parameter(0.1, "learning rate at the start of stage 1", low=0, high=100)
    mixup_lr: float = parameter(0.05, "learning rate at the start of stage 2", low=0, high=100)
    schedule: str = parameter("cosine", "falling to 0 in each stage, or constant", choices=("cosine", "constant"))
    warmup: float = parameter(0.02, "share of stage 1 in which the rate rises from 0", low=0, high=1)
    momentum: float = parameter(0.9, "of SGD", low=0, high=0.9999)
    weight_decay: float = parameter(5e-4, "of the optimizer", low=0, high=1)
    smoothing: float = parameter(0.0, "label smoothing of the class loss", low=0, high=0.9)
    rotation: float = parameter(1.0, "weight of the rotation loss; 0 leaves pictures upright", low=0, high=100)
    turns: str = parameter("one", "rotations of a picture in a step: one at random, or all", choices=("one", "all"))
    upright: float = parameter(0.33, "share of pictures that are never turned, with turns=one", low=0, high=1)
    mixup_alpha: float = parameter(2.0, "both parameters of Beta, the law of mixing weights", low=1e-3, high=1000)
    mixup_last: bool = parameter(False, "mix after the last stage, too")
    classifier: str = parameter("cosine", "of the classes", choices=("cosine", "cosine-norms", "linear"))
    scale: float = parameter(10.0, "factor of the cosine", low=1e-3, high=1000)
    min_area: float = parameter(0.3, "smallest share of a picture that a crop takes", low=0.01, high=1)
    jitter: float = parameter(0.4, "colours change by a factor within 1 ± jitter", low=0, high=1)
    erase: float = parameter(0.25, "probability that a rectangle is erased", low=0, high=1)
    dropblock: float = parameter(
        0.1, "share of activations dropped in blocks after the last two stages", low=0, high=0.9
    )
    dropout: float = parameter(0.0, "dropout within the blocks of a WRN", low=0, high=0.9)
    average: float = parameter(0.998, "decay of the moving average that is kept; 0: none", low=0, high=0.999999)
    validations: int = _count(20, "looks at the validation classes, evenly over the training", low=1)
    tasks: int = _count(300, "few-shot tasks of a validation, for each of 1 and 5 shots", low=1)
    selection: str = parameter("centroid", "chooses the weights; cosine: by 1 shot", choices=("centroid", "cosine"))
    patience: int = _count(0, "validations of stage 2 without a better one until it ends; 0: never", low=0)
    test_sizes: tuple[int | tuple[int, ...], ...] = ()
    amp: bool = parameter(True, "bfloat16 on CUDA")
    compile: bool = parameter(False, "torch.compile of the stages")
    seed: int = parameter(0, "of weights, order, augmentation and mixing", low=0, high=2**62, integer=True)

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.epochs + self.mixup_epochs < 1:
            raise InputError("epochs and mixup_epochs are both 0; train for at least one epoch")
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise InputError(f"minutes={self.minutes!r} must be above 0")
        if self.store == 0:
            object.__setattr__(self, "store", round(self.size * 92 / 84))
        if self.store < 4:
            raise InputError(f"store={self.store} is too small; pictures are stored at about size · 92/84")
        checked_settings(self.backbone, self.backbone_settings)
        sizes = tuple(tuple(s) if isinstance(s, list | tuple) else s for s in self.test_sizes)
        object.__setattr__(self, "test_sizes", sizes)
        bad = [z for z in self.every_test_size if isinstance(z, bool) or not isinstance(z, int) or z < 4]
        if bad or () in sizes:
            wrong = bad[0] if bad else "an empty list"
            raise InputError(f"test_sizes has {wrong}; give sizes in pixels, or lists of sizes to average")

    @classmethod
    def for_backbone(cls, backbone: str, recipe: str | None = None, **changes: Any) -> TrainSettings:
        """Return the settings of a recipe (by default that of the backbone), with changes.

        >>> TrainSettings.for_backbone("conv4").rotation
        0.0
        >>> TrainSettings.for_backbone("wrn28-10", "s2m2").optimizer
        'adam'
        """
        recipe = recipe or ("plain" if backbone == "conv4" else "default")
        if recipe not in RECIPES:
            raise InputError(f"recipe {recipe!r} is unknown{nearest_names(recipe, RECIPES)}")
        own = RECIPES[recipe] | {"backbone": backbone}
        if backbone == "conv4":
            size = changes.get("size", own.get("size", 84))
            own["backbone_settings"] = {"size": size} | changes.pop("backbone_settings", {})
        return cls(**(own | changes))

    @property
    def stage1_share(self) -> float:
        """The share of the training that is stage 1."""
        return self.epochs / (self.epochs + self.mixup_epochs)

    @property
    def every_test_size(self) -> list[int]:
        """All sizes in `test_sizes`."""
        return [z for s in self.test_sizes for z in (s if isinstance(s, tuple) else (s,))]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        sizes = [list(s) if isinstance(s, tuple) else s for s in self.test_sizes]
        return dataclasses.asdict(self) | {"test_sizes": sizes}


RECIPES: dict[str, dict[str, Any]] = {
    # Our best short training of a ResNet-12 on CUB; the values are the defaults above.
    "default": {},
    # Conv-4 in the cross-domain experiments (Chen et al. 2019; Patacchiola et al. 2020): classification alone.
    "plain": {
        "epochs": 200,
        "mixup_epochs": 0,
        "mixup_lr": 0.02,
        "weight_decay": 1e-4,
        "rotation": 0.0,
        "upright": 0.0,
        "erase": 0.0,
        "dropblock": 0.0,
        "average": 0.999,
    },
    # The authors' code with its command for CUB (github.com/nupurkmr9/S2M2_fewshot); docs/training.md has what differs.
    "s2m2": {
        "size": 80,
        "epochs": 200,
        "mixup_epochs": 100,
        "batch": 64,
        "optimizer": "adam",
        "lr": 0.001,
        "mixup_lr": 0.001,
        "schedule": "constant",
        "warmup": 0.0,
        "weight_decay": 0.0,
        "turns": "all",
        "upright": 0.0,
        "mixup_last": True,
        "classifier": "cosine-norms",
        "scale": 2.0,
        "min_area": 0.08,
        "erase": 0.0,
        "dropblock": 0.0,
        "dropout": 0.5,
        "average": 0.0,
        "selection": "cosine",
        "amp": False,
    },
}


def parse_settings(items: Sequence[str]) -> tuple[JSONObject, JSONObject]:
    """Return `key=value` for the training and `backbone.key=value` for the backbone, as two dictionaries.

    >>> parse_settings(["lr=0.05", "backbone.width=32"])
    ({'lr': 0.05}, {'width': 32})
    """
    parsed = parse_method_settings(items)
    own, inner = parsed.pop("gdc", {}), parsed.pop("backbone", {})
    fields = {f.name for f in dataclasses.fields(TrainSettings)}
    allowed = fields - {"backbone", "backbone_settings", "minutes", "compile", "seed"}
    odd = [*(k for k in own if k not in allowed), *(f"{m}.{k}" for m in parsed for k in parsed[m])]
    if odd:
        raise InputError(f"--set {odd[0]}: there is no such setting{nearest_names(odd[0], allowed)}")
    return own, inner

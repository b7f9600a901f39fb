"""Heads that GDC can train, by name.

A head is one small dataclass in a file of its own: its fields are its parameters, declared with
`fewcal._utils.parameters.parameter`, and `train` turns a calibrated batch into a `Head`. `register_head("name")` makes
it available to parameters, presets, command line and searches; `fewcal/heads/__init__.py` imports its file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar

from fewcal._utils.parameters import check_parameters
from fewcal.errors import InputError
from fewcal.heads.base import Head
from fewcal.heads.calibrated import Calibrated


@dataclass(frozen=True)
class HeadTrainer(ABC):
    """A way to train a head, with its parameters as fields.

    Class attributes
    ----------------
    name : str
        Set by `register_head`.
    samples : bool
        Whether it trains on drawn points; one that does not is never the cause of sampling.
    searched : tuple of str
        Fields of `GDCParams` that a search may change beside it.
    """

    name: ClassVar[str] = ""
    samples: ClassVar[bool] = True
    searched: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_parameters(self)

    @abstractmethod
    def train(self, task: Calibrated) -> Head:
        """Train on a calibrated batch."""

    def as_value(self) -> str | dict[str, object]:
        """The head as files and command lines have it: its name, or a mapping where a parameter is not its default."""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return {"name": self.name, **changed} if changed else self.name


HEADS: dict[str, type[HeadTrainer]] = {}
Trainer = TypeVar("Trainer", bound=type[HeadTrainer])


def register_head(name: str) -> Callable[[Trainer], Trainer]:
    """Register a trainer under a name."""

    def register(cls: Trainer) -> Trainer:
        cls.name = name
        HEADS[name] = cls
        return cls

    return register


def describe_heads() -> list[tuple[str, str, str]]:
    """Each head: its name, what it is, and its own parameters with their defaults.

    >>> describe_heads()[-1][::2]
    ('sgd', 'batch_size=1024, epochs=200, lr=0.08')
    """
    return [
        (
            name,
            (cls.__doc__ or "").strip().partition("\n")[0].rstrip("."),
            ", ".join(f"{f.name}={f.default}" for f in fields(cls)),
        )
        for name, cls in HEADS.items()
    ]


def make_trainer(head: object, settings: Mapping[str, object]) -> HeadTrainer | None:
    """The trainer that a value of `GDCParams.head` stands for; None where it is no name, mapping or trainer.

    `settings` are parameters that GDC has too (C): a head given by name takes its own from there.
    """
    if isinstance(head, HeadTrainer):
        return head
    if isinstance(head, str):
        head = {"name": head}
    if not isinstance(head, Mapping):
        return None
    own = {k: v for k, v in head.items() if k != "name"}
    cls = HEADS.get(str(head.get("name")))
    if cls is None:
        raise InputError(
            f"head={head.get('name')!r} is unknown; use one of {', '.join(HEADS)}, or a scikit-learn classifier"
        )
    names = [f.name for f in fields(cls)]
    if wrong := [name for name in own if name not in names]:
        has = f"has {', '.join(names)}" if names else "has none"
        raise InputError(f"head {cls.name!r} has no parameter {wrong[0]!r}; it {has}")
    return cls(**{k: v for k, v in settings.items() if k in names} | own)

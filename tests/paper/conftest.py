"""What the tests of the paper's experiments share: the paper's head with two epochs instead of 200."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fewcal._utils.parameters import parameter
from fewcal.heads import HEADS
from fewcal.heads.sgd import SGD


@dataclass(frozen=True)
class Hasty(SGD):
    """Which numbers come out is not the question here; 200 epochs would be minutes of it."""

    epochs: int = parameter(2, "passes over the points", low=1, integer=True)


@pytest.fixture(scope="package", autouse=True)
def hasty_sgd() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(HEADS, "sgd", Hasty)
        yield

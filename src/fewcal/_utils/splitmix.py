"""SplitMix64: unrelated 64-bit numbers from near ones, for seeds and for tasks that are the same on any machine."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

Words = TypeVar("Words", int, np.ndarray)

# 2⁶⁴ over the golden ratio, the step of the generator.
GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix(*parts: int) -> int:
    """A 64-bit seed from several integers, by the finaliser of splitmix64: near inputs give unrelated outputs.

    >>> mix(0, 1) != mix(1, 0)
    True
    """
    h = GOLDEN
    for part in parts:
        h = splitmix64((h ^ (part & _MASK)) + GOLDEN & _MASK)
    return h


def splitmix64(x: Words) -> Words:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection of 64 bits that hides any pattern.

    For an integer below 2⁶⁴ or an array of uint64, whose products wrap around by themselves.

    >>> splitmix64(1) == int(splitmix64(np.array([1], np.uint64))[0])
    True
    """
    x = _wrapped((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9)
    x = _wrapped((x ^ (x >> 27)) * 0x94D049BB133111EB)
    return x ^ (x >> 31)


def _wrapped(x: Words) -> Words:
    return x & _MASK if isinstance(x, int) else x

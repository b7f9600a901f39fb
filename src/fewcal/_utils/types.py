"""Types that several packages share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

StrPath: TypeAlias = str | os.PathLike[str]
# What JSON can hold. Mappings and sequences are read-only here, so that `dict[str, float]` is one, too.
JSON: TypeAlias = "str | int | float | bool | Sequence[JSON] | Mapping[str, JSON] | None"
# A JSON object as it is read or written; the user of a value has to check its type.
JSONObject: TypeAlias = dict[str, Any]
# Called with how much is done and how much there is in all.
Progress: TypeAlias = Callable[[int, int], None]
# Called with a line for the user.
Log: TypeAlias = Callable[[str], None]

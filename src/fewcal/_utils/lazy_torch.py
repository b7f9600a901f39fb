"""torch, loaded when something of it is used first.

Loading it takes more than a second, and what names, defaults, ranges and headers of files tell needs nothing of it. So
modules take it from here, `from fewcal._utils.lazy_torch import torch`, and `Tensor` for type checkers alone; a wrong
name or a damaged file is then told at once. Those that define networks, whose classes stand on torch's, import torch
itself, and are imported where a network is made.
"""

from __future__ import annotations

from fewcal._utils.lazy import lazy_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch as torch
else:
    torch = lazy_module("torch")

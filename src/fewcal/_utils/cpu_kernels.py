"""Loops of our own on a CPU, for passes over points in which plain operations wait for memory again and again.

They are written in C (`points.c`) and compiled when first used, once for a user, where there is a C compiler and a
processor with AVX2. Elsewhere `kernels` returns None, and whoever asked falls back on plain operations, which give the
same numbers but for rounding.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from torch import Tensor

# Classes that a kernel holds, and the weights of all of them: a core's first cache has to keep them beside the points.
_MOST_CLASSES = 16
_MOST_WEIGHTS = 1 << 14
# Below this many numbers of a task's points nothing is gained that a compiler would be started for.
_WORTH_IT = 1 << 18
# The same for random numbers, which are the same without a kernel, and for points that are made of them.
_MANY_NUMBERS = 1 << 18
_MANY_DRAWN = 1 << 16
# And for logits of a task.
_MANY_LOGITS = 1 << 16
_PANEL = 16  # columns of a panel in `points.c`
_FLAGS = ("-O3", "-mavx2", "-mfma", "-ffp-contract=fast", "-fno-math-errno", "-shared", "-fPIC")
_COMPILERS = ("cc", "gcc", "clang")
_PATIENCE = 60  # seconds

_lock = Lock()
_made: list[Kernels | None] = []


class Kernels:
    """The functions of `points.c`, for one task; tensors are contiguous, in float32, labels and orders in int32."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.sgd_epochs.restype = ctypes.c_float
        for name in ("look", "look_along", "times_symmetric", "add_triangular", "finish_points", "pick"):
            getattr(library, name).restype = None

    def sgd_epochs(
        self, x: Tensor, labels: Tensor, orders: Tensor, weight: Tensor, bias: Tensor, batch_size: int, lr: float
    ) -> float:
        """Train weights `(N-1, D)` and biases `(N-1)` in place; the mean loss of the last of the orders `(E, M)`."""
        (m, d), work = x.shape, torch.zeros_like(weight)
        tensors = (_pointer(v) for v in (x, labels, orders, weight, bias, work))
        sizes = (m, d, len(weight) + 1, len(orders), batch_size)
        return float(self._library.sgd_epochs(*tensors, *sizes, ctypes.c_float(lr)))

    def times_symmetric(self, weight: Tensor, matrix: Tensor, out: Tensor) -> None:
        """The first columns of `out (N, D+1)` from weights `(N-1, D)` times a symmetric `(D, D)`; the last is −Σ."""
        sizes = (len(matrix), len(out), out.shape[1])
        self._library.times_symmetric(*(_pointer(v) for v in (matrix, weight, out)), *sizes)

    def add_triangular(self, out: Tensor, latent: Tensor, panels: Tensor) -> None:
        """`out (M, D)` += `latent (M, D)` times an upper triangle `(D, D)`, in `panels` of 16 columns."""
        self._library.add_triangular(*(_pointer(v) for v in (out, latent, panels)), *out.shape)

    def finish_points(
        self, out: Tensor, mean: Tensor, stretch: tuple[float, float] | None, shift: Tensor | None
    ) -> None:
        """Points `(M, D)` from the noise in them: r·out + s·Σout of `stretch` (r, s), or nothing of it, mean, shift."""
        first = (_pointer(v) for v in (out, mean, shift))
        root, along = (ctypes.c_float(v) for v in stretch or (0.0, 0.0))
        sizes = (ctypes.c_long(len(out)), out.shape[1])
        self._library.finish_points(*first, root, along, int(stretch is None), *sizes)

    def pick(self, bits: np.random.SFC64, table: Tensor, out: Tensor) -> None:
        """Fill `out` with numbers of a table of 65536, each picked by 16 bits of the stream."""
        state = np.array(bits.state["state"]["state"], np.uint64)
        first = (ctypes.c_void_p(state.ctypes.data), _pointer(table), _pointer(out))
        self._library.pick(*first, ctypes.c_long(out.numel()))

    def look(self, logits: Tensor, along: Tensor, length: float, sums: Tensor, probabilities: Tensor) -> None:
        """As `look_along` where logits `(N, M)` and their change are known, for any number of classes.

        `sums (3,)` and the probabilities `(N, M)` are written.
        """
        n, m = logits.shape
        first, last = (logits, along), (sums.zero_(), probabilities)
        self._library.look(
            *(_pointer(v) for v in first), ctypes.c_float(length), *(_pointer(v) for v in last), ctypes.c_long(m), n
        )

    def look_along(
        self,
        points: tuple[Tensor, Tensor],
        logits: Tensor,
        along: Tensor,
        step: tuple[Tensor, Tensor] | None,
        length: float,
        out: tuple[Tensor, Tensor],
    ) -> None:
        """Points and labels, logits `(N, M)` and how they change along a step `(N-1, D)` with its biases `(N-1)`.

        `along` is written; without a step it is read. `out` are the sums over points of loss, slope and curvature in
        float64 `(3,)`, and the gradient `(N, D+1)` of the mean loss.
        """
        (x, labels), (sums, grad) = points, out
        (m, d), n = x.shape, len(logits)
        work = x.new_zeros(n - 1, d)
        weight, bias = (None, None) if step is None else step
        first = (_pointer(v) for v in (x, labels, logits, along, weight, bias))
        last = (_pointer(v) for v in (sums.zero_(), grad.zero_(), work))
        self._library.look_along(*first, ctypes.c_float(length), *last, m, d, n)


def kernels(x: Tensor, n_classes: int) -> Kernels | None:
    """The kernels for points `x (T, M, D)` of so many classes; None where there are none.

    What is chosen depends on the size of a task alone, not on how many there are. `FEWCAL_PLAIN_CPU=1` asks for plain
    operations.
    """
    m, d = x.shape[-2:]
    if x.device.type != "cpu" or x.dtype != torch.float32 or m * d < _WORTH_IT:
        return None
    if not 2 <= n_classes <= _MOST_CLASSES or n_classes * d > _MOST_WEIGHTS:
        return None
    return _library()


def panels_of(matrix: Tensor) -> Tensor:
    """A matrix `(D, D)` as `add_triangular` reads it: `(⌈D/16⌉, D, 16)`, 16 columns after 16 columns."""
    d = len(matrix)
    return torch.nn.functional.pad(matrix, (0, -d % _PANEL)).view(d, -1, _PANEL).transpose(0, 1).contiguous()


def look_kernels(logits: Tensor) -> Kernels | None:
    """The kernels for a look along steps by logits `(T, N, M)`; None where there are none, or few numbers."""
    n, m = logits.shape[-2:]
    if logits.device.type != "cpu" or logits.dtype != torch.float32 or n * m < _MANY_LOGITS:
        return None
    return _library()


def number_kernels(out: Tensor) -> Kernels | None:
    """The kernels for filling a tensor with random numbers; None where there are none.

    The numbers are the same without them, so that few are worth it where kernels are there already.
    """
    if out.device.type != "cpu" or out.dtype != torch.float32 or (out.numel() < _MANY_NUMBERS and not _made):
        return None
    return _library()


def point_kernels(out: Tensor) -> Kernels | None:
    """The kernels for making points `out (..., M, D)` of random numbers; None where there are none, or few numbers."""
    m, d = out.shape[-2:]
    if out.device.type != "cpu" or out.dtype != torch.float32 or m * d < _MANY_DRAWN:
        return None
    return _library()


def _library() -> Kernels | None:
    if os.environ.get("FEWCAL_PLAIN_CPU"):
        return None
    with _lock:
        if not _made:
            _made.append(_make())
        return _made[0]


def _pointer(v: Tensor | None) -> ctypes.c_void_p:
    assert v is None or v.is_contiguous()
    return ctypes.c_void_p(None if v is None else v.data_ptr())


def _make() -> Kernels | None:
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if compiler is None or os.name != "posix" or torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return None
    source = resources.files("fewcal._utils").joinpath("points.c").read_text(encoding="utf-8")
    name = hashlib.sha256("\n".join([source, *_FLAGS]).encode()).hexdigest()[:16] + ".so"
    try:
        folder = _folder()
        if folder is None:
            with tempfile.TemporaryDirectory() as temporary:
                return Kernels(_compiled(Path(temporary) / name, source, compiler))
        return Kernels(_compiled(folder / name, source, compiler))
    except (OSError, subprocess.SubprocessError):  # no space, no memory, a compiler that is none, nothing may be run
        return None


def _folder() -> Path | None:
    """Where what was compiled is kept: the user's cache, if nobody else can write there."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fewcal"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):  # RuntimeError: nobody knows where home is
        return None
    return folder if status.st_uid == os.getuid() and not status.st_mode & 0o022 else None


def _compiled(path: Path, source: str, compiler: str) -> ctypes.CDLL:
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as build:
            made = Path(build) / path.name
            command = [compiler, *_FLAGS, "-x", "c", "-", "-o", str(made), "-lm"]
            subprocess.run(command, input=source.encode(), capture_output=True, check=True, timeout=_PATIENCE)
            made.replace(path)
    return ctypes.CDLL(str(path))

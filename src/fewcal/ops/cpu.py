"""Three of the operations as loops that Numba compiles: they read a point once for the scores of all classes.

Plain products with the weights of a few classes run far below the speed of a processor, and SGD copies every batch
before it reads it. Points are taken `ROWS` at a time. The loops are compiled at the first use, in a few seconds, and
kept in the folder of Numba's cache: beside this file, or the user's where that is read-only (`NUMBA_CACHE_DIR`).
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit
from numba.core.caching import IndexDataCacheFile
from torch import Tensor

from fewcal._utils.atomic import atomic_path
from fewcal.errors import InputError
from fewcal.ops.reference import MAX_EVALUATIONS, MAX_UNIFORM, ROUNDING, with_last

ROWS = 64
DIGEST_BYTES = 32
F32 = np.float32


def _singles(*numbers: float) -> tuple[np.float32, ...]:
    return tuple(map(F32, numbers))


# Polynomials of exp and log in single precision, of the library Cephes, and of erfinv between and beyond ±0.9966
# (Giles, Approximating the erfinv function, 2012); the highest power first.
EXP = _singles(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
LOG = _singles(
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
CENTRE = _singles(
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
TAIL = _singles(
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)


class SealedFiles(IndexDataCacheFile):
    """Numba's files of machine code with a checksum each: what is damaged, or of other source, is compiled again."""

    def load(self, key: object) -> Any:
        with suppress(OSError):
            file = self._file(key).read_bytes()
            if file[:DIGEST_BYTES] == self._seal(file[DIGEST_BYTES:]):
                return pickle.loads(file[DIGEST_BYTES:])
        return None

    def save(self, key: object, data: object) -> None:
        packed: bytes = self._dump(data)
        with suppress(InputError), atomic_path(self._file(key)) as temporary:  # a full disk
            temporary.write_bytes(self._seal(packed) + packed)

    def _file(self, key: object) -> Path:
        return Path(self._cache_path, f"{self._index_name}-{sha256(repr(key).encode()).hexdigest()[:16]}")

    def _seal(self, packed: bytes) -> bytes:
        return sha256(repr((self._version, self._source_stamp)).encode() + packed).digest()


def kernel(loop: Callable[..., object]) -> Any:
    """Compile a loop; sums may be taken in any order, which is what lets them run in wide registers."""
    compiled: Any = njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "arcp", "nsz"})(loop)
    with suppress(AttributeError, RuntimeError):  # another version of Numba; no folder to write to
        compiled.enable_caching()
        compiled._cache._cache_file.__class__ = SealedFiles  # private of numba: no public name
    return compiled


def check() -> None:
    """Compile one of the loops: raises where that is not possible."""
    _exp(F32(-1))


def logits(x: Tensor, labels: Tensor, w: Tensor) -> Tensor:
    """As `reference.logits`."""
    z = torch.empty(*w.shape[:2], x.shape[1])
    for task in _tasks(x, labels, w[:, :-1, :-1], w[:, :-1, -1], z):
        _logits(*task)
    return z


def gradient(x: Tensor, labels: Tensor, z: Tensor) -> Tensor:
    """As `reference.gradient`."""
    weight, bias = torch.zeros(len(x), z.shape[1] - 1, x.shape[2]), torch.zeros(len(x), z.shape[1] - 1)
    for task in _tasks(x, labels, z, weight, bias):
        _gradient(*task)
    return with_last(torch.cat([weight, bias[..., None]], dim=2)).div_(x.shape[1])


def line_search(logits: Tensor, along: Tensor, loss: Tensor, slopes: Tensor, curvature: float) -> tuple[Tensor, Tensor]:
    """As `reference.line_search`."""
    found = [_line_search(*task, curvature) for task in _tasks(logits, along, loss, slopes.T)]
    lengths, losses = zip(*found, strict=True)
    return torch.tensor(lengths, dtype=logits.dtype), torch.tensor(losses, dtype=loss.dtype)


def sgd_epochs(
    x: Tensor, labels: Tensor, orders: Tensor, weight: Tensor, bias: Tensor, batch_size: int, lr: float
) -> Tensor:
    """As `reference.sgd_epochs`, for all classes but the last.

    Gradients sum to 0 over the classes. So the mean of the weights stays as it is, and changes no probability.
    """
    centre, shift = weight.mean(dim=1, keepdim=True), bias.mean(dim=1, keepdim=True)
    w, b = (weight - centre)[:, :-1].contiguous(), (bias - shift)[:, :-1].contiguous()
    losses = [_sgd_epochs(*task, batch_size, lr) for task in _tasks(x, labels, orders, w, b)]
    weight[:], bias[:] = with_last(w) + centre, with_last(b) + shift
    return torch.tensor(losses, dtype=bias.dtype)


def normal(bits: Tensor, out: Tensor) -> None:
    """As `reference.normal`."""
    _normal(bits.numpy(), out.numpy())


def _tasks(*batches: Tensor) -> Iterator[Any]:
    """The arrays of each task; contiguous, so that one compiled loop fits all."""
    return zip(*(batch.contiguous().numpy() for batch in batches), strict=True)


@kernel
def _logits(x: np.ndarray, labels: np.ndarray, weight: np.ndarray, bias: np.ndarray, out: np.ndarray) -> None:
    rows, z = np.empty(ROWS, np.int64), np.empty((len(out), ROWS), F32)
    for i in range(0, len(x), ROWS):
        at = min(i, len(x) - ROWS)  # the last points overlap those before them
        for k in range(ROWS):
            rows[k] = at + k
        _forward(x, rows, weight, bias, z)
        own, truth = np.empty(ROWS, F32), labels[at : at + ROWS]
        for k in range(ROWS):
            own[k] = z[truth[k], k]
        for c in range(len(out)):
            row = out[c, at : at + ROWS]
            for k in range(ROWS):
                row[k] = z[c, k] - own[k]


@kernel
def _gradient(x: np.ndarray, labels: np.ndarray, logits: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> None:
    rows, z = np.empty(ROWS, np.int64), np.empty((len(logits), ROWS), F32)
    top, sums = np.empty(ROWS, F32), np.empty(ROWS, F32)
    for i in range(0, len(x), ROWS):
        at = min(i, len(x) - ROWS)
        for c in range(len(logits)):
            z[c] = logits[c, at : at + ROWS]
        _softmax(z, top, sums)
        truth = labels[at : at + ROWS]
        for k in range(ROWS):
            rows[k] = at + k
            z[truth[k], k] -= F32(1)
            if at + k < i:
                z[:, k] = 0
        _backward(x, rows, z, weight, bias)


@kernel
def _line_search(
    logits: np.ndarray, along: np.ndarray, loss: float, slopes: np.ndarray, curvature: float
) -> tuple[float, float]:
    (n, m), (slope, linear, quadratic) = logits.shape, slopes
    z, top, sums = np.empty((n, ROWS), F32), np.empty(ROWS, F32), np.empty(ROWS, F32)
    first, second = np.empty(ROWS, F32), np.empty(ROWS, F32)
    low, high, t, value = 0.0, np.inf, 1.0, 0.0
    for evaluation in range(MAX_EVALUATIONS):
        value, change, bend, length = 0.0, 0.0, 0.0, F32(t)
        for i in range(0, m, ROWS):
            at = min(i, m - ROWS)
            for c in range(n):
                begin, step = logits[c, at : at + ROWS], along[c, at : at + ROWS]
                for k in range(ROWS):
                    z[c, k] = begin[k] + length * step[k]
            _softmax(z, top, sums)
            first[:] = 0
            second[:] = 0
            for c in range(n):
                step = along[c, at : at + ROWS]
                for k in range(ROWS):
                    first[k] += z[c, k] * step[k]
                    second[k] += z[c, k] * step[k] * step[k]
            product = 1.0  # of up to ROWS numbers up to N, which float64 holds
            for k in range(ROWS):
                if at + k >= i:
                    value += top[k]
                    product *= sums[k]
                    change += first[k]
                    bend += second[k] - first[k] * first[k]
            value += math.log(product)
        value, change, bend = value / m, change / m, bend / m
        here = change + linear + t * quadratic
        downhill = value - loss + t * linear + 0.5 * t * t * quadratic <= 1e-5 * loss + 1e-7
        flat = abs(here) <= curvature * abs(slope) or abs(slope) <= ROUNDING * (1 + loss)
        if slope >= 0 or (downhill and flat) or evaluation == MAX_EVALUATIONS - 1:
            break
        if here < 0 and downhill:
            low = t
        else:
            high = t
        newton = t - here / max(bend + quadratic, 1e-20)
        if downhill and low < newton < high:
            t = min(newton, 1e4)
        elif np.isinf(high):
            t = 2 * t
        else:
            t = 0.5 * (low + high) if low > 0 else 0.1 * high
    return t, value


@kernel
def _sgd_epochs(
    x: np.ndarray,
    labels: np.ndarray,
    orders: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    batch_size: int,
    lr: float,
) -> float:
    m, d, n = len(x), x.shape[1], len(weight) + 1
    rows, z = np.empty(ROWS, np.int64), np.empty((n, ROWS), F32)
    top, sums = np.empty(ROWS, F32), np.empty(ROWS, F32)
    grad, shift, loss = np.zeros_like(weight), np.zeros(n - 1, F32), 0.0
    for epoch in range(len(orders)):
        for begin in range(0, m, batch_size):
            end = min(begin + batch_size, m)
            for i in range(begin, end, ROWS):
                for k in range(ROWS):
                    rows[k] = orders[epoch, min(i + k, end - 1)]
                _forward(x, rows, weight, bias, z)
                _softmax(z, top, sums)
                for k in range(ROWS):
                    truth = labels[rows[k]]
                    if i + k >= end:
                        z[:, k] = 0
                        continue
                    if epoch == len(orders) - 1:
                        loss -= math.log(max(z[truth, k], F32(1e-37)))
                    z[truth, k] -= F32(1)
                _backward(x, rows, z, grad, shift)
            rate = F32(lr / (end - begin))
            for c in range(n - 1):
                bias[c] -= rate * shift[c]
                shift[c] = 0
                for j in range(d):
                    weight[c, j] -= rate * grad[c, j]
                    grad[c, j] = 0
    return loss / m


@kernel
def _forward(x: np.ndarray, rows: np.ndarray, weight: np.ndarray, bias: np.ndarray, z: np.ndarray) -> None:
    """Scores `z (C+1, ROWS)` of the points in `rows`, two classes and four points at a time; then minus their sum."""
    last = len(weight) - 1
    for c in range(0, last + 1, 2):
        e = min(c + 1, last)
        for k in range(0, ROWS, 4):
            r0, r1, r2, r3 = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
            p0 = p1 = p2 = p3 = q0 = q1 = q2 = q3 = F32(0)
            for j in range(x.shape[1]):
                v, w = weight[c, j], weight[e, j]
                x0, x1, x2, x3 = x[r0, j], x[r1, j], x[r2, j], x[r3, j]
                p0, p1, p2, p3 = p0 + v * x0, p1 + v * x1, p2 + v * x2, p3 + v * x3
                q0, q1, q2, q3 = q0 + w * x0, q1 + w * x1, q2 + w * x2, q3 + w * x3
            z[c, k], z[c, k + 1], z[c, k + 2], z[c, k + 3] = p0 + bias[c], p1 + bias[c], p2 + bias[c], p3 + bias[c]
            z[e, k], z[e, k + 1], z[e, k + 2], z[e, k + 3] = q0 + bias[e], q1 + bias[e], q2 + bias[e], q3 + bias[e]
    for k in range(ROWS):
        z[last + 1, k] = 0
        for c in range(last + 1):
            z[last + 1, k] -= z[c, k]


@kernel
def _backward(x: np.ndarray, rows: np.ndarray, z: np.ndarray, grad: np.ndarray, shift: np.ndarray) -> None:
    """Add residuals `z[:C]` times the points in `rows` to `grad (C, D)`, and their sums to `shift (C,)`."""
    for k in range(0, ROWS, 8):
        r0, r1, r2, r3, r4, r5, r6, r7 = rows[k : k + 8]
        for c in range(len(grad)):
            s0, s1, s2, s3, s4, s5, s6, s7 = z[c, k : k + 8]
            shift[c] += s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7
            for j in range(x.shape[1]):
                grad[c, j] += (s0 * x[r0, j] + s1 * x[r1, j] + s2 * x[r2, j] + s3 * x[r3, j]) + (
                    s4 * x[r4, j] + s5 * x[r5, j] + s6 * x[r6, j] + s7 * x[r7, j]
                )


@kernel
def _softmax(z: np.ndarray, top: np.ndarray, sums: np.ndarray) -> None:
    """Probabilities in place of logits `z (N, ROWS)`, their largest logit, and the sums of exp beside that.

    It goes class after class, so that the points share a register.
    """
    top[:] = z[0]
    for c in range(1, len(z)):
        for k in range(ROWS):
            top[k] = max(top[k], z[c, k])
    sums[:] = 0
    for c in range(len(z)):
        for k in range(ROWS):
            z[c, k] = _exp(z[c, k] - top[k])
            sums[k] += z[c, k]
    for c in range(len(z)):
        for k in range(ROWS):
            z[c, k] /= sums[k]


@kernel
def _polynomial(x: np.float32, coefficients: tuple[np.float32, ...]) -> np.float32:
    p = coefficients[0]
    for coefficient in coefficients[1:]:
        p = p * x + coefficient
    return p


@kernel
def _exp(x: np.float32) -> np.float32:
    """exp of a number ≤ 0, to a few units in the last place."""
    x = max(x, F32(-87))
    power = np.floor(x * F32(1.44269504) + F32(0.5))
    r = x - power * F32(0.693359375) + power * F32(2.12194440e-4)
    return (_polynomial(r, EXP) * r * r + r + F32(1)) * np.int32((np.int32(power) + 127) << 23).view(F32)


@kernel
def _log(x: np.float32) -> np.float32:
    """The logarithm of a number in (0, 1]."""
    bits = F32(x).view(np.int32)
    mantissa = np.int32((bits & 0x7FFFFF) | 0x3F000000).view(F32)  # in [0.5, 1)
    low = mantissa < F32(0.5**0.5)
    power = F32((bits >> 23) - 126) - (F32(1) if low else F32(0))
    f = (mantissa + mantissa if low else mantissa) - F32(1)
    return power * F32(0.693147180) + (f - F32(0.5) * f * f + _polynomial(f, LOG) * f * f * f)


@kernel
def _erfinv(x: np.float32) -> np.float32:
    """The inverse error function."""
    w = -_log((F32(1) - x) * (F32(1) + x))
    centre, tail = _polynomial(w - F32(2.5), CENTRE), _polynomial(np.sqrt(w) - F32(3), TAIL)
    return (centre if w < F32(5) else tail) * x


@kernel
def _normal(bits: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(out)):
        x = F32(bits[i]) * F32(2.0**-31)
        out[i] = F32(2**0.5) * _erfinv(min(max(x, F32(-MAX_UNIFORM)), F32(MAX_UNIFORM)))

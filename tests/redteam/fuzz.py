"""Damage to files, and what becomes of whoever reads them: each input in a child with limits of time and memory.

Outcomes: `refused` with a message of one line, `same` as undamaged, `other` content accepted (of formats without
checksums), `wrong` content accepted (of those with), `traceback`, `hang`, `crash`.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import random
import resource
import select
import shutil
import signal
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from formats import Format

from fewcal.errors import FewcalError

BAD = ("wrong", "traceback", "hang", "crash")
# Limits of one input: seconds, and bytes above what the process has at the start.
SECONDS, MEMORY = 20.0, 1 << 30
_JUNK = (b"\0" * 8, b"\xff" * 8, b"{}", b"[" * 4000, b"-1", b"1e999", b"NaN", b"\x80\x02}r\0\0\0\x0d.", b"PK\x05\x06")


@dataclass
class Tally:
    """What became of the inputs of one format."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    peak: int = 0


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A damaged copy: bits flipped, cut, overwritten, inserted, repeated, removed, other numbers, or foreign."""
    size = max(1, len(data))
    place = rng.randrange(size)
    length = rng.choice((1, 2, 8, 64, size // 4 + 1))
    kind = rng.randrange(10)
    if kind <= 2:
        out = bytearray(data or b"\0")
        for _ in range(rng.choice((1, 1, 2, 8))):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
        return bytes(out)
    if kind == 3:
        return data[:place]
    if kind == 4:
        return data[:place] + bytes(length) + data[place + length :]
    if kind == 5:
        return data[:place] + rng.choice(_JUNK) + data[place:]
    if kind == 6:
        return data[:place] + data[place : place + length] * 2 + data[place + length :]
    if kind == 7:
        return data[:place] + data[place + length :]
    if kind == 8:  # another number, where numbers stand as text
        digits = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
        at = rng.choice(digits) if digits else place
        return data[:at] + rng.choice((b"9" * 12, b"-1", b"null", b"0")) + data[at + 1 :]
    return rng.choice((b"", rng.randbytes(200), b"\x89PNG\r\n\x1a\n" + rng.randbytes(60), *_JUNK))


def fuzz(form: Format, inputs: int, seed: int = 0) -> Tally:
    """Read `inputs` damaged samples of a format."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        sample = Path(folder) / "sample"
        sample.mkdir()
        file = form.make(sample).relative_to(sample)
        truth = pickle.dumps(form.read(_copy(sample, Path(folder) / "truth")))
        done = 0
        while done < inputs:
            done += _child(form, sample, file, truth, range(done, inputs), seed, Path(folder), tally)
    return tally


def _copy(sample: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(sample, to)
    return to


def _child(
    form: Format, sample: Path, file: Path, truth: bytes, todo: range, seed: int, folder: Path, tally: Tally
) -> int:
    """Let a child read inputs until all are done or one brings it down; how many there were."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        os._exit(_work(form, sample, file, truth, todo, seed, folder, write))
    os.close(write)
    done, buffer = 0, b""
    while True:
        if not select.select([read], [], [], SECONDS)[0]:
            os.kill(pid, signal.SIGKILL)
            outcome = "hang"
            break
        chunk = os.read(read, 65536)
        if not chunk:
            outcome = "crash"
            break
        buffer += chunk
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            name, _, example = line.decode("utf-8", "replace").partition(" ")
            tally.counts[name] += 1
            if name in BAD:
                tally.examples.append(example)
            done += 1
    os.close(read)
    _, _, usage = os.wait4(pid, 0)
    tally.peak = max(tally.peak, usage.ru_maxrss * 1024)
    if done < len(todo):
        tally.counts[outcome] += 1
        tally.examples.append(f"{form.name}, seed {seed}, input {todo[done]}")
        done += 1
    return done


def _work(
    form: Format, sample: Path, file: Path, truth: bytes, todo: range, seed: int, folder: Path, write: int
) -> int:
    warnings.simplefilter("ignore")
    faulthandler.disable()  # a crash is counted, not described
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    whole = (sample / file).read_bytes()
    for i in todo:
        place = _copy(sample, folder / "input")
        data = mutated(whole, random.Random(f"{form.name} {seed} {i}"))
        (place / file).write_bytes(data)
        outcome = _outcome(lambda: pickle.dumps(form.read(place)), truth, form.sealed)  # noqa: B023
        os.write(write, f"{outcome}\n".encode())
    return 0


def _outcome(read: Callable[[], bytes], truth: bytes, sealed: bool) -> str:
    try:
        found = read()
    except FewcalError as error:
        return (
            "refused" if "\n" not in str(error) and len(str(error)) < 1000 else f"traceback long: {str(error)[:80]!r}"
        )
    except MemoryError:
        return "refused"
    except BaseException as error:
        return f"traceback {type(error).__name__}: {' '.join(str(error).split())[:100]}"
    if found == truth:
        return "same"
    return "wrong accepted" if sealed else "other"

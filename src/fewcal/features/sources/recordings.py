"""Recordings of sound: WAV by the standard library, other formats by the package soundfile."""

from __future__ import annotations

import io
import wave
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import ClassVar, TypeAlias

import numpy as np

from fewcal._utils.text import one_line
from fewcal._utils.types import StrPath
from fewcal.errors import InputError
from fewcal.features.io.regular import open_regular, require_source
from fewcal.features.sources.items import Items
from fewcal.features.sources.listing import list_files

# A longer one takes more memory than the features are good for.
MAX_SECONDS = 600
# A file, its bytes, or samples in -1..1 at the rate of the extractor.
Recording: TypeAlias = bytes | StrPath | np.ndarray


def read_recording(recording: Recording, rate: int, name: str | None = None) -> np.ndarray:
    """Return a recording as float32 samples `(n,)` in -1..1: the mean of its channels, at `rate` samples a second."""
    if isinstance(recording, np.ndarray):
        return recording.astype(np.float32, copy=False)
    name = name or ("a recording" if isinstance(recording, bytes) else str(recording))
    try:
        with io.BytesIO(recording) if isinstance(recording, bytes) else open_regular(Path(recording)) as file:
            data = file.read()
        samples, native = _wave(data) if data[:4] == b"RIFF" and data[20:22] == b"\x01\0" else _soundfile(data)
    except InputError:
        raise
    except Exception as error:  # decoders of damaged files raise whatever they stumble over
        raise InputError(f"{name} cannot be read as a recording ({one_line(error)})") from error
    if not len(samples):
        raise InputError(f"{name} cannot be read as a recording (it is empty)")
    if len(samples) > MAX_SECONDS * native:
        raise InputError(f"{name} is longer than {MAX_SECONDS} seconds; cut it into pieces")
    mono = samples.mean(axis=1)
    if native == rate:
        return mono.astype(np.float32)
    from scipy.signal import resample_poly

    divisor = gcd(rate, native)
    return np.asarray(resample_poly(mono, rate // divisor, native // divisor), np.float32)


def _wave(data: bytes) -> tuple[np.ndarray, int]:
    """Return samples `(n, channels)` in -1..1 of PCM and their rate."""
    with wave.open(io.BytesIO(data)) as file:
        width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
        raw = np.frombuffer(file.readframes(file.getnframes()), np.uint8)
    if width == 1:  # which has no sign
        return ((raw.astype(np.float32) - 128) / 128).reshape(-1, channels), rate
    wide = np.zeros((len(raw) // width, 4), np.uint8)
    wide[:, 4 - width :] = raw.reshape(-1, width)
    return (wide.view("<i4")[:, 0] / 2.0**31).reshape(-1, channels), rate


def _soundfile(data: bytes) -> tuple[np.ndarray, int]:
    try:
        import soundfile
    except ImportError:
        raise ValueError("this format takes the package soundfile, or save it as WAV") from None
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        return file.read((MAX_SECONDS + 1) * file.samplerate, always_2d=True), file.samplerate


@dataclass(frozen=True, eq=False)
class Recordings(Items):
    """Recordings by their files."""

    kind: ClassVar[str] = "recording"
    extensions: ClassVar[frozenset[str]] = frozenset("aif aiff flac mp3 oga ogg opus wav".split())  # noqa: SIM905


def find_recordings(source: StrPath, labelled: bool = True) -> Recordings:
    """List the recordings of a source: a folder, a CSV list, or one file; see `list_files`."""
    path = Path(source)
    require_source(path, "give a folder of recordings or a CSV list")
    return list_files(Recordings, path, labelled)

"""Feature files in the format of their extension.

A reader returns the raw arrays of a file, `RawSplit`; `featureset.py` validates them. Writers are atomic.

| extension | features | labels | class names |
|---|---|---|---|
| .npz | `features` (R, D) | `labels` (R,), int or str | `classes` (C,), optional |
| .parquet | columns `f0`..`fD-1`, or one list column `features` | column `label`, int or str | schema metadata |
| .safetensors | tensor `features` | tensor `labels` | metadata `classes`, a JSON list, and `checksums` |
| .npy | the array, read only | `NAME_labels.npy` | `NAME_classes.npy`, optional |
| .pt, .pth | `features`, or `{class: vectors}`, read only | `labels`, or the keys | `classes`, or the keys |
| .h5, .hdf5 | data set `features` or `all_feats`, read only | `labels` or `all_labels` | `classes`, optional |
| .plk, .pkl | `{class: [vector, ...]}`, read only | the keys | the keys, where they are text |
"""

from __future__ import annotations

from pathlib import Path

from fewcal._utils.atomic import atomic_path
from fewcal._utils.text import one_line
from fewcal._utils.types import StrPath
from fewcal.errors import FileFormatError, InputError
from fewcal.features.io import hdf5, npz, parquet, plk, pt, safetensors
from fewcal.features.io.formats import FileFormat, RawSplit

# By extension; a format that is added here is read and written everywhere.
FORMATS: dict[str, FileFormat] = {
    extension: format
    for format in (npz.FORMAT, parquet.FORMAT, safetensors.FORMAT, npz.NPY_FORMAT, pt.FORMAT, hdf5.FORMAT, plk.FORMAT)
    for extension in format.extensions
}
EXTENSIONS = FORMATS.keys()


def writable() -> list[str]:
    """Return the formats that can be written: their extensions without the dot.

    >>> writable()
    ['npz', 'parquet', 'safetensors']
    """
    return [extension.lstrip(".") for extension, format in FORMATS.items() if format.write is not None]


def read_file(path: StrPath) -> RawSplit:
    """Return the raw arrays of one feature file; every error is one line that names the file."""
    path = Path(path)
    format = FORMATS.get(path.suffix.lower())
    if path.is_dir():
        raise FileFormatError(
            f"{path} is a folder, not a feature file; name a file inside it, or make one of its pictures or texts with "
            "`fewcal extract`"
        )
    if format is None:
        raise FileFormatError(
            f"{path} has the unknown extension {path.suffix or '(none)'!r}; known are {', '.join(EXTENSIONS)}"
        )
    try:
        if path.exists() and not path.is_file():
            raise FileFormatError(f"{path} is no regular file; copy its content into one")
        if path.stat().st_size == 0:
            raise FileFormatError(f"{path} is empty (0 bytes); write it again")
        return format.read(path)
    except (FileFormatError, InputError):
        raise
    except FileNotFoundError:
        raise FileFormatError(f"{path} does not exist; check the path") from None
    except PermissionError:
        raise FileFormatError(f"{path} may not be read; check its permissions") from None
    except ImportError as error:
        raise InputError(f"{path} needs the package {error.name}; install it (pip install {error.name})") from error
    except Exception as error:  # a torn or forged file can raise anything at all
        raise FileFormatError(
            f"{path} cannot be read as {path.suffix.lower().lstrip('.')} ({one_line(error)}); "
            "it may be truncated or of another kind: write it again"
        ) from error


def write_file(path: StrPath, raw: RawSplit) -> None:
    """Write one feature file atomically, in the format of its extension."""
    path = Path(path)
    format = FORMATS.get(path.suffix.lower())
    if format is None or format.write is None:
        raise InputError(f"features cannot be written as {path.suffix or path.name!r}; choose {', '.join(writable())}")
    with atomic_path(path) as temporary:
        format.write(temporary, raw)

"""Reading and writing one feature file in the format of its extension.

Each reader returns the raw arrays as they stand in the file, `RawSplit`; meaning and validation live in
`featureset.py`. Each writer is atomic: a file is either the old one or the whole new one, never half of it.

| extension | features | labels | class names |
|---|---|---|---|
| .npz | `features` (R, D) | `labels` (R,), int or str | `classes` (C,), optional |
| .parquet | columns `f0`..`fD-1`, or one list column `features` | column `label`, int or str | schema metadata |
| .safetensors | tensor `features` | tensor `labels` | metadata `classes`, a JSON list, and `checksums` |
| .plk, .pkl | `{class: [vector, ...]}`, read only | the keys | the keys, where they are text |
"""

from __future__ import annotations

from pathlib import Path

from fewcal._utils.atomic import atomic_path
from fewcal._utils.text import one_line
from fewcal._utils.types import StrPath
from fewcal.errors import FileFormatError, InputError
from fewcal.features.io import npz, parquet, plk, safetensors
from fewcal.features.io.formats import FileFormat, RawSplit

# By extension; a format that is added here is read and written everywhere.
FORMATS: dict[str, FileFormat] = {
    extension: module.FORMAT for module in (npz, parquet, safetensors, plk) for extension in module.FORMAT.extensions
}
EXTENSIONS = FORMATS.keys()


def writable() -> list[str]:
    """Names of the formats that can be written: their extensions without the dot.

    >>> writable()
    ['npz', 'parquet', 'safetensors']
    """
    return [extension.lstrip(".") for extension, known in FORMATS.items() if known.write is not None]


def read_file(path: StrPath) -> RawSplit:
    """The raw arrays of one feature file, by its extension; any trouble is one line that names the file."""
    path = Path(path)
    known = FORMATS.get(path.suffix.lower())
    if path.is_dir():
        raise FileFormatError(
            f"{path} is a folder, not a feature file; name a file inside it, or make one of its pictures or texts with "
            "`fewcal extract`"
        )
    if known is None:
        raise FileFormatError(
            f"{path} has the unknown extension {path.suffix or '(none)'!r}; known are {', '.join(EXTENSIONS)}"
        )
    try:
        if path.stat().st_size == 0:
            raise FileFormatError(f"{path} is empty (0 bytes); write it again")
        return known.read(path)
    except FileFormatError:
        raise
    except FileNotFoundError:
        raise FileFormatError(f"{path} does not exist; check the path") from None
    except PermissionError:
        raise FileFormatError(f"{path} may not be read; check its permissions") from None
    except ImportError as error:
        raise InputError(f"{path} needs the package {error.name}; install it (pip install {error.name})") from error
    except Exception as error:  # a torn or forged file can raise anything at all
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: BaseException) -> FileFormatError:
    reason = one_line(error)
    kind = path.suffix.lower().lstrip(".")
    return FileFormatError(
        f"{path} cannot be read as {kind} ({reason}); it may be truncated or of another kind: write it again"
    )


def write_file(path: StrPath, raw: RawSplit) -> None:
    """Write one feature file atomically, in the format of its extension."""
    path = Path(path)
    known = FORMATS.get(path.suffix.lower())
    if known is None or known.write is None:
        raise InputError(f"features cannot be written as {path.suffix or path.name!r}; choose {', '.join(writable())}")
    with atomic_path(path) as temporary:
        known.write(temporary, raw)

"""What the accuracy benchmarks share."""

from __future__ import annotations

from pathlib import Path


def feature_folders(parent: Path) -> list[Path]:
    """The feature folders in `parent`, by name."""
    found = sorted(p for p in parent.iterdir() if (p / "base.npz").is_file())
    if not found:
        raise SystemExit(f"no feature folders in {parent}: each needs base.npz, val.npz and novel.npz")
    return found

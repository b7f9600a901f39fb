"""What leaves a project: a table, folders by class, a Python snippet. Names are data: none can become a formula, a path
or code."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fewcal._utils.text import csv_text
from fewcal.apply.studio.intake import free_name, inside, safe_file_name


@dataclass(frozen=True)
class Row:
    """One item of an export: its class, whether a person gave it, and the probabilities of all classes (or none)."""

    name: str
    text: str | None
    answer: str | None
    labelled: bool
    probabilities: tuple[float, ...] | None


def csv_table(rows: Sequence[Row], classes: Sequence[str]) -> str:
    """All items as CSV: item, text where there is one, class, by whom, probability, one column for each class."""
    texts = any(row.text is not None for row in rows)
    out = io.StringIO()
    writer = csv.writer(out)
    header = ["item", *(["text"] if texts else []), "class", "by", "probability", *(f"p({c})" for c in classes)]
    writer.writerow([csv_text(h) for h in header])
    for row in rows:
        by = "person" if row.labelled else "fewcal" if row.answer is not None else ""
        p = [f"{v:.6f}" for v in row.probabilities] if row.probabilities is not None else [""] * len(classes)
        best = f"{max(row.probabilities):.6f}" if row.probabilities is not None else ""
        cells = [row.name, *([row.text or ""] if texts else []), row.answer or "", by, best, *p]
        writer.writerow([csv_text(cell) for cell in cells])
    return out.getvalue()


def folder_names(classes: Iterable[str]) -> dict[str, str]:
    """A safe folder name for each class, different from all others even where case does not count.

    >>> folder_names(["a/b", "A:B", "robin"])
    {'a/b': 'a_b', 'A:B': 'A_B (2)', 'robin': 'robin'}
    """
    out: dict[str, str] = {}
    taken: set[str] = set()
    for name in classes:
        safe = safe_file_name(name.replace("/", "_").replace("\\", "_"), "class")
        out[name] = free_name(safe, lambda one: one.casefold() in taken)
        taken.add(out[name].casefold())
    return out


def write_folders(target: Path, folder: Path, rows: Sequence[Row]) -> None:
    """A ZIP with a folder for each class that holds its items: pictures as they are, texts in one .txt file."""
    places = folder_names(dict.fromkeys(row.answer for row in rows if row.answer is not None))
    texts: dict[str, list[str]] = {}
    taken: set[str] = set()
    # Dates before 1980, which cameras without a clock and some archives give, become 1980: ZIP has none.
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED, strict_timestamps=False) as archive:
        for row in rows:
            if row.answer is None:
                continue
            place = places[row.answer]
            if row.text is not None:
                texts.setdefault(place, []).append(" ".join(row.text.split()))
                continue
            path = inside(folder, row.name)
            if not path.is_file():
                continue  # it went away since it was listed
            name = free_name(safe_file_name(row.name), lambda one: f"{place}/{one}".casefold() in taken)  # noqa: B023
            taken.add(f"{place}/{name}".casefold())
            archive.write(path, f"{place}/{name}")
        for place, lines in texts.items():
            archive.writestr(f"{place}/texts.txt", "\n".join(lines) + "\n")


def python_snippet(rows: Sequence[Row], extractor: str, bank: str | None, preset: str | None) -> str:
    """A script that fits the same classifier from the same examples, run from inside the folder.

    An example that could not be read has no probabilities and is no part of the classifier.
    """
    used = [row for row in rows if row.labelled and row.probabilities is not None]
    support = [(row.text if row.text is not None else row.name, row.answer) for row in used]
    texts = any(row.text is not None for row in rows)
    listed = "\n".join(f"    ({item!r}, {name!r})," for item, name in support)
    model = "FewShotClassifier" if preset is None else "GDCClassifier"
    given = f"{bank!r}" if preset is None else f"{bank!r}, preset={preset!r}"
    load = "extractor(items)" if texts else "extractor([extractor.decode(p) for p in items])"
    return f'''"""The classifier of a fewcal studio project, fitted again: run it inside the project's folder."""

from fewcal import {model}
from fewcal.features.extractors import get_extractor

examples = [
{listed}
]

extractor = get_extractor({extractor!r})


def features(items):
    return {load}


items, names = zip(*examples)
classifier = {model}({given}).fit(features(items), list(names))
print(classifier.predict(features(items)))
'''

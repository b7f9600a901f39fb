"""One HTML file that holds everything it shows: text, sortable tables, pictures, style and script.

It loads nothing from anywhere (a content security policy sees to that), follows the reader's light or dark setting,
fits a phone and a sheet of paper, and works with a keyboard and a screen reader.

>>> page = Page("Birds", "five classes, one example each")
>>> page.heading("Results")
>>> page.table(["method", "accuracy %"], [["ncm", 70.3], ["gdc", Cell("76.1 ± 0.4", sort=76.1, mark="best")]])
>>> html = page.render()
>>> html.count("<table"), "76.1 ± 0.4" in html
(1, True)
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from fewcal._utils.atomic import atomic_path
from fewcal._version import __version__
from fewcal.errors import InputError
from fewcal.render.figures.style import svg_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The sign of a mark beside a number, and its words for a screen reader: colour alone means nothing to some readers.
MARKS = {
    "best": ("★", "best"),
    "good": ("▲", "better"),
    "bad": ("▼", "worse"),
    "warn": ("⚠", "warning"),
    "wrong": ("✗", "wrong"),
    "cited": ("†", "cited, not measured"),
}
# The largest and the smallest that a chart is shown, in its own size; and the width of a page on a phone.
_LARGER, _SMALLER, _PHONE_PIXELS = 1.3, 0.95, 371
_NUMBER = re.compile(r"\s*([+\-−]?\d[\d ,]*(?:\.\d+)?(?:e[+\-]?\d+)?)\s*(?:%|×|s|ms)?\s*(?:±.*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Cell:
    """A cell that shows one thing and is sorted by another.

    Attributes
    ----------
    text : str, int, float or None
    sort : number or str
        What the column is ordered by; the text itself if `None`.
    title : str
        A few words more, shown when pointed at.
    mark : str
        One of `MARKS`: it puts a sign beside the text.
    """

    text: str | int | float | None
    sort: float | str | None = None
    title: str = ""
    mark: str = ""

    def __post_init__(self) -> None:
        if self.mark and self.mark not in MARKS:
            raise InputError(f"mark {self.mark!r} is unknown; use one of {', '.join(MARKS)}")


Value: TypeAlias = str | int | float | Cell | None
# PNG, JPEG, WebP or SVG, or a figure of matplotlib
Image: TypeAlias = "bytes | Figure"


class Page:
    """A page that grows from top to bottom and is written once.

    Texts are escaped; words in backticks become code. An image is bytes (PNG, JPEG, WebP or SVG) or a matplotlib
    figure, and must have an alternative text.
    """

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title = title
        self.subtitle = subtitle
        self._parts: list[str] = []
        self._contents: list[str] = []
        self._ids = {"main", "theme"}

    # ---- parts of a page --------------------------------------------------------------------------------------------

    def heading(self, text: str, level: int = 2, listed: bool = True) -> None:
        """A heading of level 2 to 4; those of level 2 and 3 are in the table of contents unless not `listed`."""
        if level not in (2, 3, 4):
            raise InputError(f"heading level is {level!r}; it must be 2, 3 or 4")
        name = self._id(text)
        if level < 4 and listed:
            self._contents.append(f'<li class="level{level}"><a href="#{name}">{_inline(text)}</a></li>')
        self.html(f'<h{level} id="{name}">{_inline(text)}</h{level}>')

    def text(self, paragraph: str) -> None:
        """A paragraph."""
        self.html(f"<p>{_inline(paragraph)}</p>")

    def items(self, texts: Sequence[str]) -> None:
        """A list with bullets."""
        self.html("<ul>" + "".join(f"<li>{_inline(t)}</li>" for t in texts) + "</ul>")

    def note(self, text: str, kind: str = "note") -> None:
        """A paragraph that stands out: `kind` is "note" or "warning"."""
        if kind not in ("note", "warning"):
            raise InputError(f"kind is {kind!r}; it must be 'note' or 'warning'")
        self.html(f'<p class="note {kind}"><strong>{kind.capitalize()}:</strong> {_inline(text)}</p>')

    def html(self, raw: str) -> None:
        """HTML as it is; scripts in it will not run."""
        self._parts.append(raw)

    def facts(self, mapping: Mapping[str, object]) -> None:
        """Names and values; a value may be a list or again a mapping."""
        self.html(_facts(mapping))

    def table(
        self, header: Sequence[str], rows: Sequence[Sequence[Value]], caption: str = "", sortable: bool = True
    ) -> None:
        """A table; columns of numbers are aligned to the right, and a click or Enter on a header sorts."""
        for row in rows:
            if len(row) != len(header):
                raise InputError(f"a row of the table has {len(row)} cells, its header {len(header)}")
        name = self._id(caption or "table")
        numeric = [_is_numeric([row[i] for row in rows]) for i in range(len(header))]
        columns = [_aligned(column) for column in zip(*rows, strict=True)]
        kinds = [' class="num"' if n else "" for n in numeric]
        # What a row is about stands first, unless that is a number.
        tags = ["th" if i == 0 and not n else "td" for i, n in enumerate(numeric)]
        head = "".join(f'<th scope="col"{k}>{_breakable(h)}</th>' for h, k in zip(header, kinds, strict=True))
        body = "".join(
            f"<tr>{''.join(map(_cell, row, numeric, tags, kinds))}</tr>" for row in zip(*columns, strict=True)
        )
        # The caption stands outside of the box that scrolls, so that a phone shows all of it.
        shown = f'<figcaption id="{name}">{_inline(caption)}</figcaption>' if caption else ""
        label = f'aria-labelledby="{name}"' if caption else 'aria-label="Table"'
        sorts = " data-sortable" if sortable and len(rows) > 1 else ""
        self.html(
            f'<figure class="data">{shown}<div class="scroll" role="region" tabindex="0" {label}>'
            f"<table {label}{sorts}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></figure>"
        )

    def figure(self, image: Image, alt: str, caption: str = "") -> None:
        """A picture over the whole width, or as wide as it is."""
        self.html(_figure(image, alt, caption))

    def gallery(self, images: Sequence[tuple[Image, str, str]], small: bool = False) -> None:
        """Pictures side by side, each `(image, alt, caption)`; small ones six to a row, three on a phone."""
        self.html(f'<div class="gallery{" small" * small}">' + "".join(_figure(*one) for one in images) + "</div>")

    @contextmanager
    def details(self, summary: str) -> Iterator[None]:
        """Everything inside is folded away until the reader opens it; printing opens all."""
        self.html(f"<details><summary>{_inline(summary)}</summary>")
        yield
        self.html("</details>")

    # ---- the whole ------------------------------------------------------------------------------------------------

    def render(self) -> str:
        """The page as one string of HTML."""
        script = _asset("page.js")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        contents = f"<details open><summary>Contents</summary><ol>{''.join(self._contents)}</ol></details>"
        return Template(_asset("page.html")).substitute(
            # Styles inside of SVG pictures need unsafe-inline; scripts do not, and only this one may run.
            policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
            "base-uri 'none'; form-action 'none'",
            title=escape(self.title),
            style=_asset("page.css"),
            script=script,
            heading=_inline(self.title),
            subtitle=f'<p class="subtitle">{_inline(self.subtitle)}</p>' if self.subtitle else "",
            contents=f'<nav aria-label="Contents">{contents}</nav>' if len(self._contents) > 1 else "",
            main="\n".join(self._parts),
            version=escape(__version__),
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the page; the file appears only when it is whole."""
        text = self.render()
        with atomic_path(path) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")

    def _id(self, text: str) -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "part"
        name, n = slug, 1
        while name in self._ids:
            n += 1
            name = f"{slug}-{n}"
        self._ids.add(name)
        return name


# ---- pictures -------------------------------------------------------------------------------------------------------


def image_uri(image: Image) -> str:
    """A picture as a data URI."""
    if _is_figure(image):
        image = svg_bytes(image)
    if not isinstance(image, bytes | bytearray):
        raise InputError(
            f"an image is {type(image).__name__}; give PNG, JPEG, WebP or SVG bytes, or a matplotlib figure"
        )
    return f"data:{_mime(bytes(image))};base64,{base64.b64encode(image).decode()}"


def _is_figure(image: object) -> TypeGuard[Figure]:
    """Whether this is a figure of matplotlib, without importing that to ask."""
    return hasattr(image, "savefig")


def _mime(data: bytes) -> str:
    if data.startswith(b"\x89PNG\r\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if data.lstrip()[:5] in (b"<?xml", b"<svg ", b"<svg>", b"<!DOC") and b"<svg" in data[:2000]:
        return "image/svg+xml"
    raise InputError("an image is in a format that a page cannot hold; use PNG, JPEG, WebP or SVG")


def _figure(image: Image, alt: str, caption: str = "") -> str:
    if not alt.strip():
        raise InputError("every picture needs an alternative text: what it shows")
    source = f'src="{image_uri(image)}" alt="{escape(alt)}"'
    below = f"<figcaption>{_breakable(caption)}</figcaption>" if caption else ""
    if not _is_figure(image):
        return f"<figure><img {source}>{below}</figure>"
    # Letters of a chart are as large as those of tables where there is room; on a phone a wide one is moved sideways.
    pixels = 96 * image.get_figwidth()
    narrowest = pixels * _SMALLER
    shown = f'<img class="chart" width="{_LARGER * pixels:.0f}" style="min-width: {narrowest:.0f}px" {source}>'
    if narrowest > _PHONE_PIXELS:
        shown = f'<div class="wide" role="region" tabindex="0" aria-label="Chart, moves sideways">{shown}</div>'
    return f"<figure>{shown}{below}</figure>"


# ---- texts and numbers ----------------------------------------------------------------------------------------------


def _inline(text: str) -> str:
    """Escaped text; words in backticks become code.

    >>> _inline("use `a < b`")
    'use <code>a &lt; b</code>'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(str(text), quote=False))


def _breakable(text: str) -> str:
    """`_inline` that may break after an underscore: names of classes and files have no other place for it.

    >>> _breakable("Mangrove_Cuckoo")
    'Mangrove_<wbr>Cuckoo'
    """
    return _inline(text).replace("_", "_<wbr>")


def _shown(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _facts(mapping: Mapping[str, object]) -> str:
    out = []
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            shown = _facts(value) if value else "none"
        elif isinstance(value, list | tuple | set | frozenset):
            shown = _inline(", ".join(map(_shown, value))) or "none"
        else:
            shown = _inline(_shown(value))
        out.append(f"<div><dt>{_inline(str(key))}</dt><dd>{shown}</dd></div>")
    return f"<dl>{''.join(out)}</dl>"


def _cell(value: Value, numeric: bool, tag: str, kind: str) -> str:
    cell = value if isinstance(value, Cell) else Cell(value)
    key = _sort_number(cell) if numeric else cell.sort
    sort = "" if key is None else f' data-sort="{escape(str(key))}"'
    title = f' title="{escape(cell.title)}"' if cell.title else ""
    scope = ' scope="row"' if tag == "th" else ""
    inside = _breakable(_shown(cell.text))
    if cell.mark:
        sign, words = MARKS[cell.mark]
        inside = (
            f'<span class="mark {cell.mark}">{inside} <span aria-hidden="true">{sign}</span>'
            f'<span class="hidden"> ({words})</span></span>'
        )
    return f"<{tag}{scope}{kind}{sort}{title}>{inside}</{tag}>"


def _sort_number(cell: Cell) -> float | None:
    """The number that a cell is ordered by, or `None` where there is none (such rows stay last).

    >>> _sort_number(Cell("−1.5 ± 0.2")), _sort_number(Cell("1,200")), _sort_number(Cell("3 birds"))
    (-1.5, 1200.0, None)
    """
    value = cell.text if cell.sort is None else cell.sort
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value)
        value = None if found is None else re.sub(r"[ ,]", "", found[1]).replace("−", "-")
    number = math.nan if value is None else float(value)
    return None if math.isnan(number) else number


def _aligned(column: Sequence[Value]) -> list[Value]:
    """A column whose plain floats all have as many decimals as the one that needs most.

    >>> [c.text for c in _aligned([70.25, 60.0])]
    ['70.25', '60.00']
    """
    texts = [_shown(v) for v in column if _is_finite(v)]
    if any("e" in t for t in texts):
        return list(column)
    decimals = max((len(t.partition(".")[2]) for t in texts), default=0)
    return [Cell(f"{v:.{decimals}f}", sort=v) if _is_finite(v) else v for v in column]


def _is_finite(value: Value) -> TypeGuard[float]:
    return isinstance(value, float) and math.isfinite(value)


def _is_numeric(column: Sequence[Value]) -> bool:
    cells = [v if isinstance(v, Cell) else Cell(v) for v in column]
    filled = [c for c in cells if c.text not in (None, "", "–") or c.sort is not None]
    return bool(filled) and all(_sort_number(c) is not None or isinstance(c.text, float) for c in filled)


def _asset(name: str) -> str:
    return files("fewcal.render").joinpath(name).read_text(encoding="utf-8")

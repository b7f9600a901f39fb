"""What an experiment is and what it shows: paragraphs, tables, pictures and verdicts, as HTML or as Markdown.

To add a table of the paper, give `fewcal.paper.experiments.EXPERIMENTS` one more `Experiment`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fewcal.paper.control import CONTROL
from fewcal.paper.published import DATASETS, Cited
from fewcal.paper.settings import PRINTED, Variant
from fewcal.paper.statements import Verdict, decided, gain_text
from fewcal.render import Cell, Page
from fewcal.render.page import MARKS, Value

if TYPE_CHECKING:
    import matplotlib.figure

    from fewcal.evaluation import Paired
    from fewcal.paper.measure import Case


@dataclass(frozen=True)
class Table:
    """A table with its caption; `Cell(mark="cited")` are figures of the paper."""

    header: Sequence[str]
    rows: Sequence[Sequence[Value]]
    caption: str = ""


@dataclass(frozen=True)
class Picture:
    """A matplotlib figure under a file name, with a text in its place."""

    stem: str
    figure: matplotlib.figure.Figure
    caption: str


Block: TypeAlias = str | Table | Picture


@dataclass
class Section:
    """What one experiment shows."""

    blocks: list[Block] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)


class Place(NamedTuple):
    """What a record was computed on: name of the feature set, dataset of the paper, shots (0: any), title."""

    name: str
    dataset: str
    shot: int
    title: str


Records: TypeAlias = Mapping[Place, Any]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes
    ----------
    name, title, source, claim : str
        `claim` is what the paper says about it.
    compute : callable(case) → record that JSON can hold
    show : callable(records by place) → Section
    datasets : tuple of str
        The paper's for it; () for any. Where none of them is given, `elsewhere` decides.
    shots : tuple of int
        0 for one record for a feature set.
    needs, packages : tuple of str
        Splits; packages beyond those that fewcal itself needs.
    elsewhere : bool
        Whether it is computed on the first feature set where none is the paper's.
    others_only : bool
        Whether it is computed on datasets that the paper does not have, and on no others.
    variants : tuple of Variant
        What is computed; () where no setting is in question.
    control : str
        What verdicts are compared with, or "none: " and the reason.
    cost : str
        About what it takes on two CPU cores with one feature set for each dataset of the paper.
    """

    name: str
    title: str
    source: str
    claim: str
    compute: Callable[[Case], Any]
    show: Callable[[Records], Section]
    datasets: tuple[str, ...] = ()
    shots: tuple[int, ...] = (1, 5)
    needs: tuple[str, ...] = ("base", "novel")
    packages: tuple[str, ...] = ()
    elsewhere: bool = False
    others_only: bool = False
    variants: tuple[Variant, ...] = (PRINTED,)
    control: str = CONTROL
    cost: str = ""

    def on(self, given: Mapping[str, str]) -> list[str]:
        """Those feature sets that it is computed on, of given ones by name with their datasets."""
        if self.others_only:
            return [name for name, dataset in given.items() if dataset not in DATASETS]
        own = [name for name, dataset in given.items() if not self.datasets or dataset in self.datasets]
        return own if own or not self.elsewhere else list(given)[:1]


# ---- cells ----------------------------------------------------------------------------------------------------------


def cited_cell(found: Cited | None) -> Cell:
    """A figure of the paper.

    >>> cited_cell((84.57, 0.48)).text
    '84.57 ± 0.48'
    """
    if found is None:
        return Cell(None)
    text = f"{found[0]:.2f}" + ("" if found[1] is None else f" ± {found[1]:.2f}")
    return Cell(text, sort=found[0], mark="cited", title="the paper")


def gain_cell(gain: Paired) -> Cell:
    """A difference, marked where it lies beyond its interval."""
    words = gain_text(gain).partition(" (")[0]
    return Cell(words, sort=gain.difference, mark=_MARKS[decided(gain)], title=f"{gain.n} tasks")


_MARKS = {True: "good", False: "bad", None: ""}


def verdict_table(verdicts: Sequence[Verdict], caption: str) -> Table:
    """Statements one by one."""
    rows: list[list[Value]] = [
        [
            v.claim,
            v.where,
            v.variant,
            v.found,
            Cell(v.word, mark=_MARKS[v.holds]),
            Cell(v.control or None, mark=_MARKS[v.above_control]),
        ]
        for v in verdicts
    ]
    header = ["the paper says", "features", "what ran", "found (gains in points)", "verdict", "minus the control"]
    return Table(header, rows, caption)


# ---- one template for pages -----------------------------------------------------------------------------------------

# A heading and what stands below it.
Part: TypeAlias = tuple[str, Sequence[Block]]


def write_pages(folder: Path, stems: tuple[str, str], title: str, subtitle: str, parts: Sequence[Part]) -> list[Path]:
    """The same parts as HTML and as Markdown, which has pictures as files in `figures/`."""
    from fewcal._utils.atomic import atomic_path
    from fewcal.render.figures import save

    page = Page(title, subtitle)
    lines = [f"# {title}", subtitle]
    for heading, blocks in parts:
        page.heading(heading)
        lines.append(f"## {heading}")
        for block in blocks:
            if isinstance(block, str):
                page.text(block)
            elif isinstance(block, Table):
                page.table(block.header, block.rows, block.caption)
            else:
                page.figure(block.figure, block.caption, block.caption)
                save(block.figure, folder / "figures" / block.stem)
            lines.append(to_markdown(block))
    files = [folder / f"{stems[0]}.html", folder / f"{stems[1]}.md"]
    page.write(files[0])
    with atomic_path(files[1]) as temporary:
        temporary.write_text("\n\n".join(lines) + "\n", encoding="utf-8", errors="backslashreplace")
    return files


def to_markdown(block: Block) -> str:
    """A block as Markdown."""
    if isinstance(block, str):
        return block
    if isinstance(block, Picture):
        return f"![{block.caption}](figures/{block.stem}.svg)\n\n{block.caption}"
    head = [block.caption, ""] if block.caption else []
    lines = [block.header, ["---"] * len(block.header), *([_plain(v) for v in row] for row in block.rows)]
    return "\n".join([*head, *("| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines)])


def _plain(value: Value) -> str:
    cell = value if isinstance(value, Cell) else Cell(value)
    if cell.text is None:
        return "–"
    text = f"{cell.text:.4g}" if isinstance(cell.text, float) else str(cell.text)
    return f"{text} {MARKS[cell.mark][0]}" if cell.mark else text

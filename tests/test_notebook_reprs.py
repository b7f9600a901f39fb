"""What notebooks and terminals show of results: short, escaped, well-formed."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest

from fewcal import BaseBank, FewShotClassifier, evaluate
from fewcal.apply.check import check_examples
from fewcal.apply.classify import classify
from fewcal.evaluation import Protocol
from fewcal.features.extractors import as_extractor
from fewcal.features.sources.texts import Texts
from small_features import feature_set

NAME = "<b>ant</b>"


class Reader(HTMLParser):
    """Collects texts; fails on a tag that does not close the one that is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows = 0
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.rows += tag == "tr"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def shown() -> dict[str, object]:
    rng = np.random.default_rng(0)
    x, y = (
        rng.normal(size=(60, 6)) + 3 * np.repeat(rng.normal(size=(30, 6)), 2, axis=0),
        np.repeat([NAME, *(f"class {i}" for i in range(29))], 2),
    )
    bank = BaseBank().fit(x, y)
    texts = [f"{NAME} " + "long " * 10 * i for i in range(30)]
    support = Texts([str(i) for i in range(4)], [NAME, NAME, "bee", "bee"], None, "s", texts[:4])
    query = Texts([str(i) for i in range(30)], None, None, "q", texts)

    def embed(batch: list[str]) -> list[list[float]]:
        return [[float(len(text.split())), 1.0, len(text)] for text in batch]

    return {
        "bank": bank,
        "explanation": FewShotClassifier(bank).fit(x, y).explain(),
        "answers": classify(support, query, as_extractor(embed, name="numbers", kind="text")),
        "check": check_examples(x, y, FewShotClassifier),
        "results": evaluate(["ncm", "lr"], feature_set(), Protocol(way=3, query=3, tasks=4)),
    }


NAMES = ["bank", "explanation", "answers", "check", "results"]


@pytest.mark.parametrize("name", NAMES)
def test_notebook_repr_is_escaped_well_formed_and_short(name: str, shown: dict[str, object]) -> None:
    page = Reader()
    page.feed(shown[name]._repr_html_())  # type: ignore[attr-defined]
    assert page.open == []
    assert 2 <= page.rows <= 32
    assert (NAME in page.text) == (name != "results")


@pytest.mark.parametrize("name", NAMES)
def test_printed_repr_is_at_most_a_screen(name: str, shown: dict[str, object]) -> None:
    lines = repr(shown[name]).splitlines()
    assert 1 <= len(lines) <= 25
    assert "array(" not in repr(shown[name])

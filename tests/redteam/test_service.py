"""The fast part of the red team against the service; `make redteam` has thousands of requests."""

from __future__ import annotations

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from fuzz import BAD
from service import REQUESTS, attack


@pytest.mark.parametrize("name", REQUESTS)
def test_damaged_requests_are_answered_or_refused_in_a_line(name: str) -> None:
    tally = attack(name, 60, seed=1)
    assert {outcome: tally.counts[outcome] for outcome in BAD} == dict.fromkeys(BAD, 0), tally.examples
    assert tally.counts["refused"]
    assert tally.counts["other"]

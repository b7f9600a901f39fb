"""The service's page in a browser, and its OpenAPI description against the service itself."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from browser import AXE, Browser, BrowserPage
from services import TOKEN, LiveService, live_service, png
from studio_project import COLOURS

ANSWERS = "#answers > li"


@pytest.fixture(scope="module")
def pictures() -> Iterator[LiveService]:
    with live_service("picture") as service:
        yield service


def wait_for_answers(page: BrowserPage, count: int) -> list[str]:
    """Texts of the answers, newest first, as soon as there are so many."""
    page.wait_for(f"document.querySelectorAll('{ANSWERS}').length === {count}")
    return page.text(f"{ANSWERS} > div:last-child")


def test_pictures_that_are_chosen_dropped_or_pasted_get_answers(
    browser: Browser, pictures: LiveService, tmp_path: Path
) -> None:
    (tmp_path / "red.png").write_bytes(png(COLOURS["red"]))
    (tmp_path / "broken.jpg").write_bytes(b"<html>")
    page = browser.open(pictures.address)
    page.wait_for("!document.querySelector('#drop').hidden")
    assert page.text("#about") == ["3 classes: blue, green, red"]
    page.upload("#files", [tmp_path / "red.png", tmp_path / "broken.jpg"])
    broken, red = wait_for_answers(page, 2)
    assert broken.startswith("picture 1 cannot be read")
    assert red.startswith("red · ")
    assert page.images() == (1, [])
    blue = base64.b64encode(png(COLOURS["blue"])).decode()
    events = (("DragEvent('drop'", "dataTransfer"), ("ClipboardEvent('paste'", "clipboardData"))
    for count, (event, data) in enumerate(events, 3):
        page.js(
            f"""(() => {{
              const bytes = Uint8Array.from(atob("{blue}"), (c) => c.charCodeAt(0));
              const held = new DataTransfer();
              held.items.add(new File([bytes], "blue.png", {{type: "image/png"}}));
              document.body.dispatchEvent(new {event}, {{{data}: held, bubbles: true, cancelable: true}}));
            }})()"""
        )
        assert wait_for_answers(page, count)[0].startswith("blue · ")
    page.close()


def test_texts_get_answers_in_their_order(browser: Browser) -> None:
    with live_service("text") as service:
        page = browser.open(service.address)
        page.wait_for("!document.querySelector('#write').hidden")
        page.js("document.querySelector('#lines').value = 'much sun\\n\\n<b>rain</b>\\n'")
        page.click("#write button")
        assert [answer[:3] for answer in wait_for_answers(page, 2)] == ["dry", "wet"]
        assert page.text("blockquote") == ["much sun", "<b>rain</b>"]
        page.close()


def test_rows_get_answers_and_a_token_is_asked_for(browser: Browser, tmp_path: Path) -> None:
    with live_service("row", TOKEN) as service:
        page = browser.open(service.address)
        for given, shown in (("wrong", "#problem"), (TOKEN, "#write")):
            page.wait_for("!document.querySelector('#access').hidden")
            page.js(f"document.querySelector('#token').value = '{given}'")
            page.click("#access button")
            page.wait_for(f"!document.querySelector('{shown}').hidden")
        page.js("document.querySelector('#lines').value = '1, 2, 3\\n' + '0 0 0 0 1000' + ' 0'.repeat(11)")
        page.click("#write button")
        first, second = wait_for_answers(page, 2)
        assert first == "row 1 has 3 numbers and the model takes 16"
        assert second.startswith("none of these")
        page.close()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, False), (1280, True)])
def test_the_page_fits_and_keeps_no_one_out(
    browser: Browser, pictures: LiveService, tmp_path: Path, width: int, dark: bool
) -> None:
    (tmp_path / f"{'long name ' * 12}.png").write_bytes(png(COLOURS["red"]))
    page = browser.open(pictures.address, width=width, dark=dark)
    page.wait_for("!document.querySelector('#drop').hidden")
    page.upload("#files", list(tmp_path.iterdir()))
    wait_for_answers(page, 1)
    assert page.overflow() == page.contrast() == page.errors == []
    assert AXE is None or page.faults() == []
    assert all(request.startswith((pictures.address, f"blob:{pictures.address}")) for request in page.requests)
    page.close()


@pytest.mark.parametrize(("kind", "token"), [("picture", None), ("text", None), ("row", TOKEN)])
def test_the_service_keeps_what_its_openapi_promises(tmp_path: Path, kind: str, token: str | None) -> None:
    pytest.importorskip("schemathesis")
    # That a text in base64 is a picture is more than a schema can demand.
    exclude = ["--exclude-checks", "positive_data_acceptance"] if kind == "picture" else []
    header = [] if token is None else ["--header", f"Authorization: Bearer {token}"]
    with live_service(kind, token) as service:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{service.address}/openapi.json"]
        command += ["--checks", "all", "--max-examples", "20", "--generation-deterministic", "--no-color"]
        run = subprocess.run([*command, *exclude, *header], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert "No issues found" in run.stdout

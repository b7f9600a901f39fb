"""The studio's HTTP interface, and who is kept out of it."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import Image

pytest.importorskip("starlette")
pytest.importorskip("httpx2")

from starlette.testclient import TestClient

from fewcal.apply import web
from fewcal.apply.studio import Studio, StudioSettings
from fewcal.apply.studio.app import make_app
from fewcal.apply.studio.guard import Access
from fewcal.apply.studio.intake import Limits
from fewcal.apply.studio.store import Found
from fewcal.features.extractors import as_extractor
from studio_project import COLOURS, colour_extractor, colour_folder, embedded, ids, write_picture

TOKEN = "a-token-for-tests"
HOST = "127.0.0.1:8000"
LIMITS = Limits(upload_bytes=200_000, pixels=1_000_000)


@pytest.fixture
def studio(tmp_path: Path) -> Studio:
    return Studio(colour_folder(tmp_path / "photos"), StudioSettings(extractor=colour_extractor(), limits=LIMITS))


@pytest.fixture
def stranger(studio: Studio) -> Iterator[TestClient]:
    """A client without the token."""
    access = Access(frozenset({HOST, "localhost:8000"}), TOKEN, LIMITS.upload_bytes)
    with TestClient(make_app(studio, access), base_url=f"http://{HOST}", raise_server_exceptions=False) as client:
        embedded(studio)
        yield client


@pytest.fixture
def page(stranger: TestClient) -> TestClient:
    """A client that opened the link: it has the cookie and sends its own origin."""
    answer = stranger.get(f"/?token={TOKEN}")
    assert answer.status_code == 200
    assert TOKEN not in str(answer.url)
    stranger.headers["origin"] = f"http://{HOST}"
    return stranger


def png(size: tuple[int, int] = (8, 8)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (200, 40, 40)).save(file, "PNG")
    return file.getvalue()


def drop(page: TestClient, name: str, data: bytes) -> int:
    return page.post("/api/files", content=data, headers={"x-file-name": quote(name)}).status_code


# ---- use ------------------------------------------------------------------------------------------------------------


def test_label_and_see_answers(page: TestClient, studio: Studio) -> None:
    for name in ("red", "blue"):
        made = page.post("/api/classes", json={"name": name}).json()["done"]
        state = page.post("/api/labels", json={"items": ids(studio, name)[:1], "class": made}).json()
    by_name = {c["id"]: c["name"] for c in state["classes"]}
    answers = {item["name"]: by_name[item["answer"]] for item in state["items"]}
    assert answers["red-4.png"] == "red"
    assert answers["blue-4.png"] == "blue"
    assert state["undo"] == "blue-0.png → blue"
    state = page.post("/api/undo").json()
    assert all("answer" not in item for item in state["items"])
    assert page.get("/api/state").json()["revision"] >= state["revision"]


def test_pictures_come_as_small_jpegs(page: TestClient, studio: Studio) -> None:
    for size in ("thumbnail", "zoomed"):
        answer = page.get(f"/api/items/{ids(studio, 'red')[0]}/{size}.jpg")
        assert answer.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(answer.content)).size == (32, 24)
    assert page.get(f"/api/items/{ids(studio, 'red')[0]}/other.jpg").status_code == 404
    assert page.get("/api/items/999/thumbnail.jpg").status_code == 400


def test_dropped_files_become_items_once(page: TestClient, studio: Studio) -> None:
    for _ in range(2):
        assert drop(page, "new.png", png()) == 200
    assert drop(page, "new.png", png((9, 9))) == 200  # another picture of the same name
    names = [item.name for item in studio.store.items() if item.name.startswith("dropped/")]
    assert names == ["dropped/new.png", "dropped/new (2).png"]


def test_a_look_finds_what_came_into_the_folder(page: TestClient, studio: Studio) -> None:
    assert page.post("/api/rescan").json() == {"new": 0}
    write_picture(studio.folder / "new.png", COLOURS["red"], 77)
    assert page.post("/api/rescan").json() == {"new": 1}
    assert "new.png" in [item["name"] for item in page.get("/api/state").json()["items"]]


def test_exports_are_attachments(page: TestClient, studio: Studio) -> None:
    for name in ("red", "blue"):
        made = page.post("/api/classes", json={"name": name}).json()["done"]
        page.post("/api/labels", json={"items": ids(studio, name)[:1], "class": made})
    for name in ("answers.csv", "folders.zip", "snippet.py"):
        answer = page.get(f"/api/export/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.content


def test_wrong_requests_are_told_why(page: TestClient) -> None:
    for path, body in {
        "/api/labels": {"items": "all"},
        "/api/labels?": {"items": [True], "class": None},  # no id, though Python calls it an integer
        "/api/labels?class": {"items": [1], "class": False},
        "/api/classes": {"name": 3},
        "/api/texts": {"text": "a text among pictures"},
        "/api/settings": {"reject": 0.05},  # there is no bank
    }.items():
        answer = page.post(path, json=body)
        assert answer.status_code == 400, path
        assert answer.json()["error"]
    for raw in (b"{", b"[" * 100_000, b'{"items": [' + b"9" * 30 + b'], "class": null}'):
        assert page.post("/api/labels", content=raw).status_code == 400, raw[:40]
    assert page.get(f"/api/items/{10**30}/thumbnail.jpg").status_code == 400
    for answer in (page.delete("/api/classes/0"), page.patch("/api/classes/0", json={"name": "other"})):
        assert (answer.status_code, "always there" in answer.json()["error"]) == (400, True)
    assert page.get("/api/state").json()["undo"] is None
    for name in ("snippet.py", "classifier.fewcal"):
        assert "two classes an example each" in page.get(f"/api/export/{name}").json()["error"]


def test_pasted_texts_are_split_as_files_are(tmp_path: Path) -> None:
    words = as_extractor(lambda texts: [[len(t), 1] for t in texts], name="words", kind="text")
    studio = Studio(tmp_path, StudioSettings(extractor=words))
    with TestClient(make_app(studio, Access(frozenset({HOST}), TOKEN, 10**6)), base_url=f"http://{HOST}") as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        assert client.post("/api/texts", json={"text": "one\u2028line\r\nan\x0cother\n\n third "}).status_code == 200
        assert client.post("/api/texts", content=b'{"text": "half \\ud800"}').status_code == 200
        assert [item.text for item in studio.store.items()] == ["one\u2028line", "an\x0cother", "third", "half \ufffd"]


# ---- who is kept out ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/api/state", "/api/events", "/static/studio.js", "/api/export/answers.csv"])
def test_nothing_without_the_token(stranger: TestClient, path: str) -> None:
    assert stranger.get(path).status_code == 401
    assert stranger.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401
    assert stranger.get("/?token=wrong").status_code == 401


def test_a_person_without_the_token_reads_what_to_do(stranger: TestClient, studio: Studio) -> None:
    browser = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    for path in ("/", "/api/state", "/?token=<b>wrong</b>"):
        plain, page = stranger.get(path), stranger.get(path, headers=browser)
        assert plain.json()["error"] == "the token is missing; open the link that the server printed"
        assert page.status_code == plain.status_code == 401
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "Open the whole link that <code>fewcal studio</code> printed" in page.text
        for secret in (TOKEN, "wrong", studio.folder.name, "src=", "href="):
            assert secret not in page.text
        of_body = {"content-type", "content-length"}
        told, other = ({k: v for k, v in a.headers.items() if k not in of_body} for a in (plain, page))
        assert told == other


def test_a_program_may_use_the_token_as_bearer(stranger: TestClient) -> None:
    known = {"authorization": f"Bearer {TOKEN}"}
    assert stranger.get("/api/state", headers=known).status_code == 200
    assert stranger.post("/api/classes", json={"name": "x"}, headers=known).status_code == 200


@pytest.mark.parametrize("host", ["evil.example:8000", "evil.example", "127.0.0.1:9000", "localhost.evil.example:8000"])
def test_other_host_names_are_refused(page: TestClient, host: str) -> None:
    assert page.get("/api/state", headers={"host": host}).status_code == 403
    assert page.get(f"/?token={TOKEN}", headers={"host": host}).status_code == 403


def test_a_phone_comes_in_by_the_number_of_the_machine(stranger: TestClient) -> None:
    """Names of the machine in its own files tell little of its addresses; the connection itself knows its own."""
    stranger.base_url = "http://192.0.2.7:8000"
    assert stranger.get(f"/?token={TOKEN}").status_code == 200
    stranger.headers["origin"] = "http://192.0.2.7:8000"
    assert stranger.post("/api/classes", json={"name": "x"}).status_code == 200
    assert stranger.get("/api/state", headers={"host": "192.0.2.8:8000"}).status_code == 403


def test_the_link_of_a_server_that_listens_everywhere_is_good_for_other_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Probe(socket.socket):
        def connect(self, address: object) -> None:
            if self.family == socket.AF_INET6:
                raise OSError("Network is unreachable")

        def getsockname(self) -> tuple[str, int]:
            return ("192.0.2.7", 50000)

    monkeypatch.setattr(web.socket, "socket", Probe)
    assert web.shown_address("0.0.0.0", 8000) == "http://192.0.2.7:8000"
    assert web.shown_address("::", 8000) == "http://localhost:8000"
    assert web.shown_address("127.0.0.1", 8000) == "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    "origin",
    [
        *("http://evil.example", "null", "", f"http://{HOST}.evil.example", f"http://{HOST}@evil.example"),
        *(f"https://{HOST}", HOST, f"//{HOST}", "http://localhost:8000", "http://127.0.0.1", f"http://{HOST}/"),
    ],
)
def test_other_pages_cannot_change_anything(page: TestClient, origin: str) -> None:
    answer = page.post("/api/classes", json={"name": "x"}, headers={"origin": origin})
    assert answer.status_code == 403
    assert answer.json()["error"] == f"this request comes from another page than http://{HOST}"
    del page.headers["origin"]
    assert page.post("/api/classes", json={"name": "x"}).status_code == 403


def test_every_answer_carries_the_headers(page: TestClient) -> None:
    for path in ("/", "/api/state", "/api/nothing", "/static/studio.css"):
        headers = page.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


def test_no_path_leaves_the_folder(page: TestClient, studio: Studio, tmp_path: Path) -> None:
    before = sorted(p for p in tmp_path.rglob("*") if ".fewcal" not in p.parts)
    assert drop(page, "../../escaped.png", png()) == 200
    assert drop(page, "/etc/escaped.png", png((5, 5))) == 200
    fresh = {p for p in tmp_path.rglob("*") if ".fewcal" not in p.parts} - set(before)
    assert {p.relative_to(studio.folder).as_posix() for p in fresh} == {
        *("dropped", "dropped/escaped.png", "dropped/escaped (2).png"),
    }
    secret = write_picture(tmp_path / "secret.png", COLOURS["red"], 0)
    studio.store.add_items([Found(f"../{secret.name}")])  # even where the database says so
    number = ids(studio, "../")[0]
    assert page.get(f"/api/items/{number}/zoomed.jpg").status_code == 400
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"):
        assert page.get(path).status_code == 404


def test_uploads_are_limited_in_bytes_and_pixels(page: TestClient, studio: Studio) -> None:
    count = len(studio.store.items())
    assert drop(page, "big.png", b"\0" * 200_001) == 413
    chunks = (b"\0" * 50_000 for _ in range(5))  # no length is announced
    answer = page.post("/api/files", content=chunks, headers={"x-file-name": "big.png"})
    assert answer.status_code == 413
    assert drop(page, "bomb.png", png((1001, 1000))) == 400
    assert drop(page, "no-picture.png", b"<html>") == 400
    assert drop(page, "page.html", b"<html>") == 400
    assert drop(page, "drawing.svg", b"<svg onload=alert(1)>") == 400
    assert len(studio.store.items()) == count
    assert not (studio.folder / "dropped").exists()

"""The studio's HTTP interface, and who is kept out of it."""

from __future__ import annotations

import io
import socket
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import Image

pytest.importorskip("starlette")
pytest.importorskip("httpx2")

from starlette.testclient import TestClient

from fewcal.apply import web
from fewcal.apply.studio import Studio
from fewcal.apply.studio.app import make_app
from fewcal.apply.studio.guard import Access
from fewcal.apply.studio.intake import Limits
from fewcal.apply.studio.store import Found
from fewcal.apply.web import Proxy
from limits import largest_file
from studio_project import COLOURS, Open, colour_folder, ids, write_picture

TOKEN = "a-token-for-tests"
HOST = "127.0.0.1:8000"
BEARER = {"authorization": f"Bearer {TOKEN}"}
LIMITS = Limits(upload_bytes=200_000, pixels=1_000_000)
PROXY = "https://hub.example/user/me/proxy/8000"


@pytest.fixture
def studio(tmp_path: Path, open_studio: Open) -> Studio:
    return open_studio(colour_folder(tmp_path / "photos"), limits=LIMITS)


def client(studio: Studio, proxy: str | None = None) -> TestClient:
    """A client without the token."""
    before = None if proxy is None else Proxy.parse(proxy)
    access = Access(frozenset({HOST, "localhost:8000"}), TOKEN, LIMITS.upload_bytes, before)
    return TestClient(make_app(studio, access), base_url=f"http://{HOST}", raise_server_exceptions=False)


@pytest.fixture
def outsider(studio: Studio) -> TestClient:
    return client(studio)


@pytest.fixture
def page(outsider: TestClient) -> TestClient:
    """A client that opened the link: it has the cookie and sends its own origin."""
    answer = outsider.get(f"/?token={TOKEN}")
    assert answer.status_code == 200
    assert TOKEN not in str(answer.url)
    outsider.headers["origin"] = f"http://{HOST}"
    return outsider


def png(size: tuple[int, int] = (8, 8)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (200, 40, 40)).save(file, "PNG")
    return file.getvalue()


def drop(page: TestClient, name: str, data: bytes) -> int:
    return page.post("/api/files", content=data, headers={"x-file-name": quote(name)}).status_code


def label(page: TestClient, studio: Studio, *names: str) -> dict[str, object]:
    """Make classes and give each its first item; the state after it."""
    state: dict[str, object] = {}
    for name in names:
        made = page.post("/api/classes", json={"name": name}).json()["done"]
        state = page.post("/api/labels", json={"labels": [[ids(studio, name)[0], made]]}).json()
    return state


class TestUse:
    def test_labels_become_answers(self, page: TestClient, studio: Studio) -> None:
        state = label(page, studio, "red", "blue")
        by_name = {c["id"]: c["name"] for c in state["classes"]}  # type: ignore[attr-defined]
        answers = {item["name"]: by_name[item["answer"]] for item in state["items"]}  # type: ignore[attr-defined]
        assert (answers["red-4.png"], answers["blue-4.png"]) == ("red", "blue")
        assert state["undo"] == "blue-0.png → blue"
        state = page.post("/api/undo").json()
        assert all("answer" not in item for item in state["items"])
        assert page.get("/api/state").json()["revision"] >= state["revision"]
        assert page.get("/api/check").json() == {}  # one class only

    def test_pictures_come_as_small_jpegs(self, page: TestClient, studio: Studio) -> None:
        item = ids(studio, "red")[0]
        for size in ("thumbnail", "zoomed"):
            answer = page.get(f"/api/items/{item}/{size}.jpg")
            assert answer.headers["content-type"] == "image/jpeg"
            assert Image.open(io.BytesIO(answer.content)).size == (32, 24)
        assert page.get(f"/api/items/{item}/other.jpg").status_code == 404
        assert page.get("/api/items/999/thumbnail.jpg").status_code == 400

    def test_dropped_files_become_items_once(self, page: TestClient, studio: Studio) -> None:
        sent = [drop(page, "new.png", data) for data in (png(), png(), png((9, 9)))]
        assert sent == [200, 200, 200]
        names = [item.name for item in studio.store.items() if item.name.startswith("dropped/")]
        assert names == ["dropped/new.png", "dropped/new (2).png"]

    def test_look_finds_what_came_into_the_folder(self, page: TestClient, studio: Studio) -> None:
        assert page.post("/api/rescan").json() == {"new": 0}
        write_picture(studio.folder / "new.png", COLOURS["red"], 77)
        assert page.post("/api/rescan").json() == {"new": 1}
        assert "new.png" in [item["name"] for item in page.get("/api/state").json()["items"]]

    def test_exports_are_attachments_that_leave_no_file(self, page: TestClient, studio: Studio) -> None:
        label(page, studio, "red", "blue")
        for name in ("answers.csv", "folders.zip", "snippet.py", "classifier.fewcal"):
            answer = page.get(f"/api/export/{name}")
            assert (answer.status_code, bool(answer.content)) == (200, True)
            assert answer.headers["content-disposition"].startswith("attachment")
        with largest_file(2000):
            answer = page.get("/api/export/folders.zip")
        assert (answer.status_code, "make room" in answer.json()["error"]) == (400, True)
        assert list((studio.folder / ".fewcal").glob("*.tmp")) == []

    def test_wrong_requests_are_refused_in_a_line(self, page: TestClient) -> None:
        for path, body in {
            "/api/labels": {"labels": "all"},
            "/api/labels?empty": {"labels": []},
            "/api/labels?pair": {"labels": [[1, None], [2]]},
            "/api/labels?bool": {"labels": [[True, None]]},  # no id, though Python calls it an integer
            "/api/labels?class": {"labels": [[1, False]]},
            "/api/labels?item": {"labels": [[10**30, None]]},
            "/api/classes": {"name": 3},
            "/api/texts": {"text": "a text among pictures"},
            "/api/settings": {"reject": 1},
            "/api/settings?huge": {"reject": 10**400},
        }.items():
            answer = page.post(path, json=body)
            assert answer.status_code == 400, path
            assert answer.json()["error"]
        for raw in (b"{", b"[" * 100_000, b'{"labels": [[' + b"9" * 5000 + b", null]]}"):
            assert page.post("/api/labels", content=raw).status_code == 400, raw[:40]
        assert page.get(f"/api/items/{10**30}/thumbnail.jpg").status_code == 400
        for answer in (page.delete("/api/classes/0"), page.patch("/api/classes/0", json={"name": "other"})):
            assert (answer.status_code, "always there" in answer.json()["error"]) == (400, True)
        assert page.get("/api/state").json()["undo"] is None
        for name in ("snippet.py", "classifier.fewcal"):
            assert "two classes an example each" in page.get(f"/api/export/{name}").json()["error"]

    def test_pasted_texts_are_split_as_files_are(self, tmp_path: Path, open_texts: Open) -> None:
        studio = open_texts(tmp_path / "texts")
        page = client(studio)
        for raw in (rb'{"text": "one\u2028line\r\nan\fother\n\n third "}', rb'{"text": "half \ud800"}'):
            assert page.post("/api/texts", content=raw, headers=BEARER).status_code == 200
        texts = [item.text for item in studio.store.items()]
        assert texts == ["one\u2028line", "an\x0cother", "third", "half \ufffd"]


class TestAccess:
    @pytest.mark.parametrize("path", ["/", "/api/state", "/api/events", "/static/studio.js", "/api/export/answers.csv"])
    def test_nothing_is_answered_without_the_token(self, outsider: TestClient, path: str) -> None:
        assert outsider.get(path).status_code == 401
        assert outsider.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401
        assert outsider.get("/?token=wrong").status_code == 401

    def test_person_without_the_token_reads_what_to_do(self, outsider: TestClient, studio: Studio) -> None:
        browser = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
        for path in ("/", "/api/state", "/?token=<b>wrong</b>"):
            plain, page = outsider.get(path), outsider.get(path, headers=browser)
            assert plain.json()["error"] == "the token is missing; open the link that the server printed"
            assert page.status_code == plain.status_code == 401
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            assert "Open the whole link that <code>fewcal studio</code> printed" in page.text
            for secret in (TOKEN, "wrong", studio.folder.name, "src=", "href="):
                assert secret not in page.text
            of_body = {"content-type", "content-length"}
            first, second = ({k: v for k, v in a.headers.items() if k not in of_body} for a in (plain, page))
            assert first == second

    def test_program_may_use_the_token_as_bearer(self, outsider: TestClient) -> None:
        assert outsider.get("/api/state", headers=BEARER).status_code == 200
        assert outsider.post("/api/classes", json={"name": "x"}, headers=BEARER).status_code == 200

    @pytest.mark.parametrize(
        "host", ["evil.example:8000", "evil.example", "127.0.0.1:9000", "localhost.evil.example:8000", "hub.example"]
    )
    def test_other_host_names_are_refused(self, page: TestClient, host: str) -> None:
        assert page.get("/api/state", headers={"host": host}).status_code == 403
        assert page.get(f"/?token={TOKEN}", headers={"host": host}).status_code == 403

    def test_phone_comes_in_by_the_number_of_the_machine(self, outsider: TestClient) -> None:
        """Names of the machine in its own files hold few of its addresses; the connection itself knows its own."""
        outsider.base_url = "http://192.0.2.7:8000"
        assert outsider.get(f"/?token={TOKEN}").status_code == 200
        outsider.headers["origin"] = "http://192.0.2.7:8000"
        assert outsider.post("/api/classes", json={"name": "x"}).status_code == 200
        assert outsider.get("/api/state", headers={"host": "192.0.2.8:8000"}).status_code == 403

    def test_link_of_a_server_that_listens_everywhere_is_good_for_other_machines(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Probe(socket.socket):
            def connect(self, address: object) -> None:
                if self.family == socket.AF_INET6:
                    raise OSError("Network is unreachable")

            def getsockname(self) -> tuple[str, int]:
                return ("192.0.2.7", 50000)

        monkeypatch.setattr(web.socket, "socket", Probe)
        for host, shown in {"0.0.0.0": "192.0.2.7", "::": "localhost", "127.0.0.1": "127.0.0.1"}.items():
            assert web.shown_address(host, 8000) == f"http://{shown}:8000"

    @pytest.mark.parametrize(
        "origin",
        [
            *("http://evil.example", "null", "", f"http://{HOST}.evil.example", f"http://{HOST}@evil.example"),
            *(f"https://{HOST}", HOST, f"//{HOST}", "http://localhost:8000", "http://127.0.0.1", f"http://{HOST}/"),
        ],
    )
    def test_other_pages_cannot_change_anything(self, page: TestClient, origin: str) -> None:
        answer = page.post("/api/classes", json={"name": "x"}, headers={"origin": origin})
        assert answer.status_code == 403
        assert answer.json()["error"] == f"this request comes from another page than http://{HOST}"
        del page.headers["origin"]
        assert page.post("/api/classes", json={"name": "x"}).status_code == 403

    @pytest.mark.parametrize("host", ["hub.example", HOST])  # proxies pass their own name on, or ours
    def test_named_proxy_may_stand_before_it(self, studio: Studio, host: str) -> None:
        page = client(studio, PROXY)
        page.headers["host"] = host
        answer = page.get(f"/?token={TOKEN}", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "./")
        cookie = answer.headers["set-cookie"]
        assert "Path=/user/me/proxy/8000/;" in cookie
        assert "Secure" in cookie
        page.headers["cookie"] = cookie.partition(";")[0]
        for origin, status in {
            "https://hub.example": 200,
            "http://hub.example": 403,
            "https://evil.example": 403,
        }.items():
            answer = page.post("/api/classes", json={"name": origin}, headers={"origin": origin})
            assert answer.status_code == status, origin
        assert page.get("/api/state", headers={"host": "hub.example.evil"}).status_code == 403
        shown = page.get("/").text
        assert 'src="/' not in shown
        assert 'href="/' not in shown

    def test_every_answer_carries_the_headers(self, page: TestClient) -> None:
        for path in ("/", "/api/state", "/api/nothing", "/static/studio.css"):
            headers = page.get(path).headers
            assert "script-src 'self'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")

    def test_no_path_leaves_the_folder(self, page: TestClient, studio: Studio, tmp_path: Path) -> None:
        before = {p for p in tmp_path.rglob("*") if ".fewcal" not in p.parts}
        assert drop(page, "../../escaped.png", png()) == 200
        assert drop(page, "/etc/escaped.png", png((5, 5))) == 200
        fresh = {p for p in tmp_path.rglob("*") if ".fewcal" not in p.parts} - before
        expected = {"dropped", "dropped/escaped.png", "dropped/escaped (2).png"}
        assert {p.relative_to(studio.folder).as_posix() for p in fresh} == expected
        secret = write_picture(tmp_path / "secret.png", COLOURS["red"], 0)
        studio.store.add_items([Found(f"../{secret.name}")])  # even where the database has it
        assert page.get(f"/api/items/{ids(studio, '../')[0]}/zoomed.jpg").status_code == 400
        for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"):
            assert page.get(path).status_code == 404

    def test_uploads_are_limited_in_bytes_and_pixels(self, page: TestClient, studio: Studio) -> None:
        count = len(studio.store.items())
        chunks = (b"\0" * 50_000 for _ in range(5))  # no length is announced
        assert page.post("/api/files", content=chunks, headers={"x-file-name": "big.png"}).status_code == 413
        for name, data, status in (
            ("big.png", b"\0" * 200_001, 413),
            ("bomb.png", png((1001, 1000)), 400),
            ("no-picture.png", b"<html>", 400),
            ("page.html", b"<html>", 400),
            ("drawing.svg", b"<svg onload=alert(1)>", 400),
        ):
            assert drop(page, name, data) == status, name
        assert len(studio.store.items()) == count
        assert not (studio.folder / "dropped").exists()

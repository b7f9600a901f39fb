"""The service: answers, items that cannot be used, limits, access, metrics, batches."""

from __future__ import annotations

import asyncio
import base64
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx2")
pytest.importorskip("prometheus_client")

from starlette.testclient import TestClient

from fewcal.apply.serve.app import make_app
from fewcal.apply.serve.batching import Batcher, Overloaded
from fewcal.apply.serve.guard import Access
from fewcal.apply.serve.inputs import ServiceLimits
from fewcal.apply.serve.model import ServedModel
from limits import PATIENCE
from services import TOKEN, npy, picture_model, png, row_model, text_model
from studio_project import COLOURS

HOST = "127.0.0.1:8000"
LIMITS = ServiceLimits(
    max_bytes=100_000, max_items=8, picture_pixels=10_000, max_pixels=15_000, text_length=50, seconds=PATIENCE
)
NPY = {"content-type": "application/x-npy"}
RED, GREEN, BLUE = (png(COLOURS[name]) for name in ("red", "green", "blue"))


@contextmanager
def running(model: ServedModel, limits: ServiceLimits = LIMITS, **access: Any) -> Iterator[TestClient]:
    app = make_app(model, Access(frozenset({HOST}), **access), limits)
    with TestClient(app, base_url=f"http://{HOST}", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def pictures() -> Iterator[TestClient]:
    with running(picture_model()) as client:
        yield client


@pytest.fixture(scope="module")
def texts() -> Iterator[TestClient]:
    with running(text_model()) as client:
        yield client


def in_base64(*files: bytes) -> dict[str, list[str]]:
    return {"pictures": [base64.b64encode(file).decode() for file in files]}


def classes(answer: Any) -> list[str | None]:
    assert answer.status_code == 200, answer.text
    return [one.get("class") for one in answer.json()["predictions"]]


# ---- answers --------------------------------------------------------------------------------------------------------


def test_pictures_as_body_list_and_upload_get_the_same_answer(pictures: TestClient) -> None:
    answer = pictures.post("/predict/pictures", content=BLUE, headers={"content-type": "image/png"})
    [one] = answer.json()["predictions"]
    assert one["class"] == "blue"
    assert one["probability"] == pytest.approx(one["probabilities"]["blue"])
    assert sum(one["probabilities"].values()) == pytest.approx(1)
    listed = pictures.post("/predict/pictures", json=in_base64(RED, BLUE))
    uploaded = pictures.post("/predict/pictures", files=[("file", ("a.png", RED)), ("file", ("b.png", BLUE))])
    assert classes(listed) == classes(uploaded) == ["red", "blue"]
    assert listed.json()["predictions"][1] == one


def test_embeddings_as_json_and_npy_get_the_probabilities_of_the_library(pictures: TestClient) -> None:
    rows = np.array([[200, 40, 40], [50, 60, 200]], np.float32)
    expected = picture_model().classifier.predict_proba(rows)
    listed = pictures.post("/predict/embeddings", json={"rows": rows.tolist()}).json()["predictions"]
    packed = pictures.post("/predict/embeddings", content=npy(rows), headers=NPY).json()["predictions"]
    assert listed == packed
    np.testing.assert_allclose([[p["probabilities"][c] for c in sorted(COLOURS)] for p in listed], expected, atol=1e-6)


def test_rows_beyond_the_level_are_none_of_these() -> None:
    model = row_model()
    near = model.classifier.support_[0][0]
    far = near[::-1]
    with running(model) as client:
        answers = client.post("/predict/embeddings", json={"rows": [far.tolist(), near.tolist()]}).json()["predictions"]
    p_values = model.classifier.outlier_pvalue(np.array([far, near]))
    assert [one["outlier_pvalue"] for one in answers] == pytest.approx(list(p_values))
    assert [one["class"] == "none of these" for one in answers] == [True, False] == [p < 0.05 for p in p_values]


def test_texts_get_answers_and_the_service_of_texts_takes_no_pictures(texts: TestClient) -> None:
    assert classes(texts.post("/predict/texts", json={"texts": ["sun and sun", "much rain"]})) == ["dry", "wet"]
    assert texts.post("/predict/pictures", content=b"").status_code == 404


def test_many_clients_at_once_get_their_own_answers(pictures: TestClient) -> None:
    def ask(i: int) -> bool:
        name = list(COLOURS)[i % 3]
        return classes(pictures.post("/predict/embeddings", json={"rows": [list(COLOURS[name])]})) == [name]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(64)))


def test_pages_that_show_the_service(pictures: TestClient) -> None:
    assert pictures.get("/health").json() == {"status": "ok"}
    version = pictures.get("/version").json()
    assert (version["classes"], version["features"], version["kind"]) == (sorted(COLOURS), 3, "picture")
    assert pictures.get("/docs").url.path == "/"
    page = pictures.get("/")
    assert "http://" not in page.text + page.headers["content-security-policy"]
    assert "https://" not in page.text


# ---- items that cannot be used --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "bad", "problem"),
    [
        ({"content": npy([[1, 2, 3], [np.nan, 1, 1]]), "headers": NPY}, 1, "row 2 holds NaN"),
        ({"json": {"rows": [[1, 2, 3], [1, 2]]}}, 1, "row 2 has 2 numbers and the model takes 3"),
        ({"json": {"rows": [["1", 2, 3], [1, 2, 3]]}}, 0, "row 1 is no list of numbers"),
        ({"json": {"rows": [[1, 2, 3], [True, 1, 1]]}}, 1, "row 2 is no list of numbers"),
        ({"json": {"rows": [[1, 2, 3], 5]}}, 1, "row 2 is no list of numbers"),
        ({"content": b'{"rows": [[1, 2, 3], [1, 1, 1' + b"0" * 400 + b"]]}"}, 1, "row 2 holds NaN, infinity or a"),
        ({"content": b'{"rows": [[1, 2, 3], [1, 1, 1e400]]}'}, 1, "row 2 holds NaN, infinity or a number beyond"),
    ],
)
def test_a_bad_row_is_named_and_the_others_are_answered(
    pictures: TestClient, body: dict[str, Any], bad: int, problem: str
) -> None:
    answer = pictures.post("/predict/embeddings", **body)
    predictions = answer.json()["predictions"]
    assert predictions[bad]["error"].startswith(problem)
    assert predictions[1 - bad]["class"] in COLOURS


def test_bad_pictures_are_named_and_the_others_are_answered(pictures: TestClient) -> None:
    body = in_base64(RED, b"<html>", png((1, 2, 3), (101, 100)), BLUE)
    body["pictures"] += ["no base64!", "é"]
    answer = pictures.post("/predict/pictures", json=body)
    assert classes(answer) == ["red", None, None, "blue", None, None]
    errors = [one.get("error", "") for one in answer.json()["predictions"]]
    assert errors[1].startswith("picture 2 cannot be read")
    assert errors[2].startswith("picture 3 has 101×100 pixels")
    assert errors[4].startswith("picture 5 is no text in base64")
    assert errors[5].startswith("picture 6 is no text in base64")


def test_bad_texts_are_named_and_the_others_are_answered(texts: TestClient) -> None:
    answer = texts.post("/predict/texts", content=b'{"texts": ["sun", "", 3, "\\ud800", "' + b"x" * 51 + b'"]}')
    assert classes(answer) == ["dry", None, None, None, None]
    errors = " ".join(one.get("error", "") for one in answer.json()["predictions"])
    for problem in ("text 2 is empty", "text 3 is empty", "text 4 holds half", "text 5 has 51 characters"):
        assert problem in errors


def test_an_item_that_breaks_the_extractor_spoils_its_request_alone(texts: TestClient) -> None:
    def ask(i: int) -> int:
        return texts.post("/predict/texts", json={"texts": ["a bug" if i == 7 else "sun"]}).status_code

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == [500 if i == 7 else 200 for i in range(16)]


def forged(shape: str, kind: str = "<f4", data: bytes = b"") -> bytes:
    """An .npy file with this header, whatever follows."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "is not JSON"),
        (b'{"rows": ' + b"[" * 50_000, "is not JSON"),
        (b'{"rows": [[' + b"9" * 5000 + b"]]}", "is not JSON"),
        (b"[1]", "no list 'rows'"),
        (b'{"rows": []}', "no list 'rows'"),
        (b'{"rows": {"a": 1}}', "no list 'rows'"),
        (b'{"rows": [[1, 2]]}', "row 1 has 2 numbers and the model takes 3"),
        (b'{"rows": [[1], [2]]}', r"takes 3 \(and 1 more\)"),
        (b'{"rows": [' + b"[1, 1, 1]," * 8 + b"[1, 1, 1]]}", "has 9 rows; the limit is 8"),
        (npy(np.zeros((9, 3))), "has 9 rows; the limit is 8"),
        (npy(np.zeros((0, 3))), r"is no \.npy array"),
        (npy(np.zeros(3)), r"is no \.npy array"),
        (forged("(400000000000, 3)"), r"is no \.npy array"),
        (forged("(-1, 3)"), r"is no \.npy array"),
        (forged("(1, 3)", "|O"), r"is no \.npy array"),
        (forged("(1, 3)", "<c8", b"\0" * 24), r"is no \.npy array"),
        (forged("(1, 3)", "<f4"), r"is no \.npy array"),
        (forged("[" * 9000), r"is no \.npy array"),
        (b"\x93NUMPY\x09\x00" + b"\xff" * 20, r"is no \.npy array"),
    ],
)
def test_a_body_without_usable_rows_gets_400_and_one_line(pictures: TestClient, body: bytes, problem: str) -> None:
    headers = NPY if body.startswith(b"\x93") else {}
    answer = pictures.post("/predict/embeddings", content=body, headers=headers)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert re.search(problem, error)
    assert "\n" not in error


@pytest.mark.parametrize(
    ("body", "content_type", "problem"),
    [
        (RED, "", "content-type: image/jpeg"),
        (b"", "image/png", "picture 1 cannot be read as a picture"),
        (b"--x\r\n", "multipart/form-data", "the form cannot be read"),
        (b"--x\r\nbroken", "multipart/form-data; boundary=x", "the form"),
        (b"--x--\r\n", "multipart/form-data; boundary=x", "the form holds no file"),
    ],
)
def test_a_body_without_usable_pictures_gets_400_and_a_remedy(
    pictures: TestClient, body: bytes, content_type: str, problem: str
) -> None:
    answer = pictures.post("/predict/pictures", content=body, headers={"content-type": content_type})
    assert (answer.status_code, problem in answer.json()["error"]) == (400, True), answer.text


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_pictures_that_are_too_large_together_are_refused_before_they_are_decoded(
    pictures: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServedModel, "picture", lambda *_: pytest.fail("decoded"))
    answer = pictures.post("/predict/pictures", json=in_base64(*[png((1, 2, 3), (100, 90))] * 2))
    assert (answer.status_code, "18,000 pixels together" in answer.json()["error"]) == (400, True)


def test_bodies_that_are_too_large_are_refused(pictures: TestClient) -> None:
    for body in (b"\0" * 100_001, (b"\0" * 60_000 for _ in range(2))):  # announced, and not
        assert pictures.post("/predict/embeddings", content=body).status_code == 413


def test_bodies_that_find_the_memory_full_are_put_off() -> None:
    with running(row_model(), replace(LIMITS, max_held_bytes=50_000)) as client:
        for _ in range(3):  # what was held is given back
            assert client.post("/predict/embeddings", content=b"\0" * 50_001).status_code == 503
            assert client.post("/predict/embeddings", content=b"\0" * 40_000).status_code == 400


def test_an_answer_that_takes_too_long_is_given_up() -> None:
    with running(row_model(), replace(LIMITS, seconds=0)) as client:
        assert client.post("/predict/embeddings", json={"rows": [[0.5] * 16]}).status_code == 504


def test_addresses_and_methods_without_an_endpoint_get_json(pictures: TestClient) -> None:
    assert "/docs" in pictures.get("/nothing").json()["error"]
    wrong = pictures.get("/predict/pictures")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert wrong.json()["error"].startswith("Method Not Allowed: GET /predict/pictures")


# ---- access ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "evil.example"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://[::1"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": f"http://{HOST}"}, 200),
        ({"origin": f"https://{HOST}"}, 200),  # a proxy with TLS that passes the name on
        ({"host": "hub.example.org"}, 200),
        ({"origin": "https://hub.example.org"}, 200),  # a proxy that does not
    ],
)
def test_names_and_pages_other_than_the_allowed_are_refused(headers: dict[str, str], status: int) -> None:
    hosts = frozenset({HOST, "hub.example.org"})
    app = make_app(row_model(), Access(hosts, origin="https://hub.example.org"), LIMITS)
    with TestClient(app, base_url=f"http://{HOST}") as client:
        assert client.get("/version", headers=headers).status_code == status


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        (f"Basic {TOKEN}", 401),
        ("Bearer é", 401),
        (f"bearer {TOKEN}", 200),
    ],
)
def test_a_service_with_a_token_answers_only_with_it(given: str | None, status: int) -> None:
    headers = {} if given is None else {"authorization": given.encode("latin-1")}
    with running(row_model(), token=TOKEN) as client:
        for path in ("/version", "/metrics", "/openapi.json"):
            assert client.get(path, headers=headers).status_code == status
        answer = client.post("/predict/embeddings", json={"rows": [[0.5] * 16]}, headers=headers)
        assert answer.status_code == status
        assert client.get("/health").status_code == client.get("/").status_code == 200


# ---- metrics --------------------------------------------------------------------------------------------------------


def test_metrics_count_requests_items_and_errors() -> None:
    with running(row_model()) as client:
        client.post("/predict/embeddings", json={"rows": [[0.5] * 16, [1], [0.5] * 16]})
        client.post("/predict/embeddings", content=b"{")
        client.get("/no/such/address")
        lines = client.get("/metrics").text.splitlines()
    for line in (
        'fewcal_requests_total{path="/predict/embeddings",status="200"} 1.0',
        'fewcal_requests_total{path="/predict/embeddings",status="400"} 1.0',
        'fewcal_requests_total{path="other",status="404"} 1.0',
        'fewcal_request_seconds_count{path="/predict/embeddings"} 2.0',
        'fewcal_items_total{outcome="answered"} 2.0',
        'fewcal_items_total{outcome="refused"} 1.0',
        "fewcal_waiting_items 0.0",
    ):
        assert line in lines


# ---- batches --------------------------------------------------------------------------------------------------------


def test_batcher_computes_items_of_several_requests_together_in_their_order() -> None:
    async def scenario() -> tuple[list[list[int]], list[int]]:
        sizes: list[int] = []

        def compute(items: list[int]) -> list[int]:
            sizes.append(len(items))
            return [10 * i for i in items]

        batcher: Batcher[int, int] = Batcher(compute, max_batch=5, max_waiting=20)
        batcher.start()
        results = await asyncio.gather(*(batcher.submit([i, i + 100]) for i in range(6)))
        await batcher.stop()
        return results, sizes

    results, sizes = asyncio.run(scenario())
    assert results == [[10 * i, 10 * (i + 100)] for i in range(6)]
    assert sizes == [5, 5, 2]


def test_batcher_refuses_what_cannot_wait_and_gives_an_error_to_its_item_alone() -> None:
    async def scenario() -> None:
        began, go = threading.Event(), threading.Event()

        def compute(items: list[int]) -> list[int]:
            began.set()
            go.wait(PATIENCE)
            if 13 in items:
                raise ValueError("thirteen")
            return items

        batcher: Batcher[int, int] = Batcher(compute, max_batch=3, max_waiting=3)
        batcher.start()
        first = asyncio.create_task(batcher.submit([1, 13, 2]))
        await asyncio.to_thread(began.wait, PATIENCE)
        others, left = asyncio.create_task(batcher.submit([3, 4])), asyncio.create_task(batcher.submit([5]))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="3 items wait"):
            await batcher.submit([6])
        left.cancel()
        go.set()
        one, error, two = await first
        assert (one, two) == (1, 2)
        assert isinstance(error, ValueError)
        assert await others == [3, 4]
        await batcher.stop()

    asyncio.run(scenario())


def test_batcher_that_stops_cancels_what_waits() -> None:
    async def scenario() -> None:
        batcher: Batcher[int, int] = Batcher(lambda items: items, max_batch=1, max_waiting=9)
        waiting = asyncio.create_task(batcher.submit([1]))
        await asyncio.sleep(0)
        await batcher.stop()
        [result] = await waiting
        assert isinstance(result, asyncio.CancelledError)

    asyncio.run(scenario())

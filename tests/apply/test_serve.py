"""The service: answers, batches, limits, who is kept out."""

from __future__ import annotations

import asyncio
import base64
import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx2")

from PIL import Image
from starlette.testclient import TestClient

from fewcal import GDCClassifier
from fewcal.apply.serve.app import ServiceLimits, make_app
from fewcal.apply.serve.batching import Batcher, BatchLimits, Overloaded
from fewcal.apply.serve.model import ServedModel
from fewcal.features.extractors import as_extractor
from limits import PATIENCE
from studio_project import COLOURS, colour_extractor, write_picture

HOST = "127.0.0.1:8000"
LIMITS = ServiceLimits(most_bytes=100_000, most_items=8, pixels=10_000, text_length=50, seconds=PATIENCE)


def picture_model(folder: Path) -> ServedModel:
    extractor = colour_extractor()
    rows, names = [], []
    for c, (name, colour) in enumerate(COLOURS.items()):
        path = write_picture(folder / f"{name}.png", colour, c)
        rows.append(extractor([np.asarray(Image.open(path).resize((8, 8)))])[0])
        names.append(name)
    return ServedModel(GDCClassifier(l2=True).fit(np.stack(rows), names), extractor)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    app = make_app(picture_model(tmp_path), frozenset({HOST}), LIMITS)
    with TestClient(app, base_url=f"http://{HOST}", raise_server_exceptions=False) as one:
        yield one


def jpeg(colour: tuple[int, int, int], size: tuple[int, int] = (16, 16)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "JPEG")
    return file.getvalue()


def test_pictures_by_body_and_by_list(client: TestClient) -> None:
    answer = client.post("/predict/pictures", content=jpeg(COLOURS["blue"]), headers={"content-type": "image/jpeg"})
    [one] = answer.json()["predictions"]
    assert one["class"] == "blue"
    assert one["probability"] == pytest.approx(one["probabilities"]["blue"])
    assert sum(one["probabilities"].values()) == pytest.approx(1)
    encoded = [base64.b64encode(jpeg(COLOURS[name])).decode() for name in ("red", "green")]
    answer = client.post("/predict/pictures", json={"pictures": encoded})
    assert [p["class"] for p in answer.json()["predictions"]] == ["red", "green"]


def test_embeddings_as_json_and_npy_are_those_of_the_library(client: TestClient, tmp_path: Path) -> None:
    rows = np.array([[200, 40, 40], [50, 60, 200]], np.float32)
    expected = picture_model(tmp_path).classifier.predict_proba(rows)
    listed = client.post("/predict/embeddings", json={"rows": rows.tolist()}).json()["predictions"]
    file = io.BytesIO()
    np.save(file, rows)
    kind = {"content-type": "application/x-npy"}
    packed = client.post("/predict/embeddings", content=file.getvalue(), headers=kind).json()["predictions"]
    assert listed == packed
    np.testing.assert_allclose([[p["probabilities"][c] for c in sorted(COLOURS)] for p in listed], expected, atol=1e-6)


def test_texts() -> None:
    words = as_extractor(lambda texts: [[t.count("sun"), t.count("rain"), 1] for t in texts], name="w", kind="text")
    classifier = GDCClassifier().fit([[1, 0, 1], [0, 1, 1]], ["dry", "wet"])
    app = make_app(ServedModel(classifier, words), frozenset({HOST}), LIMITS)
    with TestClient(app, base_url=f"http://{HOST}") as client:
        answer = client.post("/predict/texts", json={"texts": ["sun and sun", "much rain"]}).json()
        assert [p["class"] for p in answer["predictions"]] == ["dry", "wet"]
        for wrong in ([""], [3], ["x" * 51], [], "sun"):
            assert client.post("/predict/texts", json={"texts": wrong}).status_code == 400
        assert client.post("/predict/texts", content=b'{"texts": ["\\ud800"]}').status_code == 400
        assert client.post("/predict/pictures", content=b"").status_code == 404
        assert "/predict/texts" in client.get("/openapi.json").json()["paths"]


def test_health_version_and_docs(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    version = client.get("/version").json()
    assert version["classes"] == sorted(COLOURS)
    assert version["features"] == 3
    described = client.get("/openapi.json").json()
    assert described["openapi"].startswith("3.")
    assert set(described["paths"]) == {"/health", "/version", "/predict/embeddings", "/predict/pictures"}
    page = client.get("/docs").text
    assert "/predict/pictures" in page
    assert "http://cdn" not in page
    assert "https://" not in page


def test_what_cannot_be_answered_is_told(client: TestClient) -> None:
    many, good = {"rows": [[0.0, 0, 0]] * 9}, base64.b64encode(jpeg((1, 2, 3))).decode()
    wrong = [
        ("/predict/embeddings", {"rows": [[1.0, 2.0]]}, "takes 3"),
        ("/predict/embeddings", {"rows": [["a", "b", "c"]]}, "numbers"),
        ("/predict/embeddings", {"rows": [[1.0], [1.0, 2.0]]}, "numbers"),
        ("/predict/embeddings", {}, "no list 'rows'"),
        ("/predict/embeddings", many, "at most 8"),
        ("/predict/pictures", {"pictures": [good, "no base64!"]}, "picture 2 is no text in base64"),
        ("/predict/pictures", {"pictures": [good, base64.b64encode(b"<html>").decode()]}, "picture 2 cannot be read"),
    ]
    for path, body, told in wrong:
        answer = client.post(path, json=body)
        assert answer.status_code == 400, body
        assert told in answer.json()["error"]
    deep, large = b'{"rows": ' + b"[" * 50_000, b'{"rows": [[1, 1, 1' + b"0" * 400 + b"]]}"
    for raw in (b"{", deep, large):
        assert client.post("/predict/embeddings", content=raw).status_code == 400, raw[:20]
    untold = client.post("/predict/pictures", content=jpeg((1, 2, 3)))
    assert (untold.status_code, "content-type" in untold.json()["error"]) == (400, True)
    nan = {"content": b'{"rows": [[NaN, 1, 1]]}', "headers": {"content-type": "application/json"}}
    assert client.post("/predict/embeddings", **nan).status_code == 400
    big = client.post("/predict/pictures", content=jpeg((1, 2, 3), (101, 100)), headers={"content-type": "image/jpeg"})
    assert "10100" in big.json()["error"].replace("×", "").replace("101100", "10100")
    assert client.post("/predict/embeddings", content=b"\0" * 100_001).status_code == 413
    assert client.post("/predict/embeddings", content=(b"\0" * 60_000 for _ in range(2))).status_code == 413


def npy(shape: str, kind: str = "<f4", data: bytes = b"") -> bytes:
    """An .npy file whose header says this, whatever follows."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize(
    "body",
    [
        npy("(400000000000, 3)"),
        npy("(-1, 3)"),
        npy("(1, 3)", "|O"),
        npy("(1, 3)", "<c8", b"\0" * 24),
        npy("(1, 3)", "<f4"),
    ],
)
def test_arrays_that_lie_are_refused(client: TestClient, body: bytes) -> None:
    answer = client.post("/predict/embeddings", content=body, headers={"content-type": "application/x-npy"})
    assert (answer.status_code, answer.json()["error"][:19]) == (400, "the body is no .npy")


def test_other_addresses_are_told_in_json_and_the_first_page_is_the_docs(client: TestClient) -> None:
    assert client.get("/").url.path == "/docs"
    assert "/docs" in client.get("/nothing").json()["error"]
    wrong = client.get("/predict/pictures")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert wrong.json()["error"].startswith("Method Not Allowed: GET /predict/pictures")


def test_foreign_names_and_pages_are_kept_out(client: TestClient) -> None:
    assert client.get("/health", headers={"host": "evil.example"}).status_code == 403
    assert client.get("/health", headers={"origin": "http://evil.example"}).status_code == 403
    assert client.get("/health", headers={"origin": f"http://{HOST}"}).status_code == 200
    # As a browser sends it where a proxy with TLS stands before the service.
    assert client.get("/health", headers={"origin": f"https://{HOST}"}).status_code == 200


def test_requests_that_come_together_are_computed_together() -> None:
    async def scenario() -> tuple[list[list[int]], list[int]]:
        sizes: list[int] = []

        def compute(items: list[int]) -> list[int]:
            sizes.append(len(items))
            return [10 * i for i in items]

        batcher: Batcher[int, int] = Batcher(compute, BatchLimits(most_batch=4, wait_s=0.01))
        batcher.start()
        results = await asyncio.gather(*(batcher.submit([i, i + 100]) for i in range(6)))
        await batcher.stop()
        return results, sizes

    results, sizes = asyncio.run(scenario())
    assert results == [[10 * i, 10 * (i + 100)] for i in range(6)]
    assert sum(sizes) == 12
    assert max(sizes) == 4


def test_too_many_waiting_are_refused_and_errors_reach_who_asked() -> None:
    async def scenario() -> None:
        go = threading.Event()

        def compute(items: list[int]) -> list[int]:
            go.wait(PATIENCE)
            if 13 in items:
                raise ValueError("thirteen")
            return items

        batcher: Batcher[int, int] = Batcher(compute, BatchLimits(most_batch=1, wait_s=0, most_waiting=2))
        batcher.start()
        first = asyncio.create_task(batcher.submit([13]))
        while not batcher.batches:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(batcher.submit([i])) for i in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="2 items wait"):
            await batcher.submit([3])
        go.set()
        with pytest.raises(ValueError, match="thirteen"):
            await first
        assert await asyncio.gather(*others) == [[1], [2]]
        await batcher.stop()

    asyncio.run(scenario())


def test_many_clients_at_once(client: TestClient) -> None:
    def ask(i: int) -> bool:
        name = list(COLOURS)[i % 3]
        answer = client.post("/predict/embeddings", json={"rows": [list(COLOURS[name])]})
        return bool(answer.json()["predictions"][0]["class"] == name)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(64)))

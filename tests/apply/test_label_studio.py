"""examples/label_studio.py against requests as Label Studio sends them."""

from __future__ import annotations

import http.server
import runpy
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("httpx2")

from starlette.testclient import TestClient

from fewcal.estimators.few_shot import FewShotClassifier
from fewcal.features.extractors import Extractor
from services import MODELS, png
from studio_project import COLOURS

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "label_studio.py"), run_name="example")
CHOICES = '<Choices name="kind" toName="what"><Choice value="red"/></Choices></View>'


@pytest.fixture
def label_studio(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of pictures that wants a key."""

    class Files(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers["authorization"] == "Token key"
            self.send_response(200 if allowed else 401)
            self.end_headers()
            self.wfile.write(png(COLOURS[Path(self.path).stem]) if allowed else b"")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("LABEL_STUDIO_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("LABEL_STUDIO_API_KEY", "key")
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def backend(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[TestClient, Path]:
    model = MODELS[kind]()
    extractor = model.extractor
    assert isinstance(extractor, Extractor)
    file = model.classifier.save(folder / "m.fewcal", extractor=extractor.stamp)
    monkeypatch.setattr("fewcal.apply.saved.get_extractor", lambda *_: extractor)
    return TestClient(EXAMPLE["make_app"](file)), file


def test_backend_proposes_classes_of_pictures(
    label_studio: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = backend("picture", tmp_path, monkeypatch)
    assert client.get("/health").json()["status"] == "UP"
    assert client.post("/setup", json={"project": "1", "schema": ""}).json() == {"model_version": "6"}
    config = f'<View><Image name="what" value="$image"/>{CHOICES}'
    tasks = [{"data": {"image": "/data/upload/blue.png"}}, {"data": {"image": f"{label_studio}/data/red.png"}}]
    answer = client.post("/predict", json={"tasks": tasks, "label_config": config, "project": "1"}).json()
    [first, second] = answer["results"]
    assert first["result"] == [
        {"type": "choices", "from_name": "kind", "to_name": "what", "value": {"choices": ["blue"]}}
    ]
    assert 0 < first["score"] <= 1
    assert second["result"][0]["value"] == {"choices": ["red"]}
    with pytest.raises(ValueError, match="is not kept by"):
        client.post("/predict", json={"tasks": [{"data": {"image": "file:///etc/passwd"}}], "label_config": config})


def test_backend_learns_from_annotations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, file = backend("text", tmp_path, monkeypatch)
    config = f'<View><Text name="what" value="$text"/>{CHOICES}'
    event = {"project": {"label_config": config}, "task": {"data": {"text": "snow " * 3}}}
    for action, chosen in (
        ("ANNOTATION_CREATED", ["cold"]),
        ("ANNOTATION_CREATED", []),
        ("ANNOTATION_CREATED", ["cold", "wet"]),
        ("ANNOTATION_DELETED", ["cold"]),
    ):
        result = [{"type": "choices", "value": {"choices": chosen}}]
        answer = client.post("/webhook", json=event | {"action": action, "annotation": {"result": result}})
        assert answer.status_code == 200
    saved = FewShotClassifier.load(file)
    assert saved.classes_.tolist() == ["cold", "dry", "wet"]
    assert len(saved.support_[0]) == 3
    client.post(
        "/webhook",
        json=event
        | {
            "action": "ANNOTATION_CREATED",
            "annotation": {"result": [{"type": "choices", "value": {"choices": ["wet"]}}]},
        },
    )
    assert FewShotClassifier.load(file).support_[1].tolist().count("wet") == 2
    assert client.post("/setup", json={}).json() == {"model_version": "4"}

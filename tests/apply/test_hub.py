"""Banks and classifiers on the Hub, against a local stand-in of its HTTP interface."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fewcal import BaseBank, FewShotClassifier, from_hub, push_to_hub
from fewcal.apply.hub import BEGIN, END
from fewcal.cli import main
from fewcal.errors import FileFormatError, InputError
from small_worlds import SmallData

pytest.importorskip("huggingface_hub")
from huggingface_hub import constants

TOKEN = "hf_secret"
COMMIT = "0123456789" * 4


class Hub(ThreadingHTTPServer):
    """Repositories in memory: `files[repo][name]`; `private[repo]`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.objects: dict[str, bytes] = {}
        self.address = f"http://127.0.0.1:{self.server_port}"


class Requests(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        hub, path = self.server, self.path.partition("?")[0]
        if path == "/api/validate-yaml":
            assert "library_name: fewcal" in json.loads(body)["content"]
            return self.answer(200, {"errors": [], "warnings": []})
        if self.headers["authorization"] != f"Bearer {TOKEN}":
            return self.answer(401, {"error": "Invalid username or password."})
        if path == "/api/repos/create":
            repo = "me/" + json.loads(body)["name"]
            known = repo in hub.files
            if not known:
                hub.files[repo], hub.private[repo] = {}, json.loads(body).get("visibility") == "private"
            return self.answer(409 if known else 200, {"url": f"{hub.address}/{repo}"})
        if path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                {"oid": o["oid"], "size": o["size"], "actions": {"upload": {"href": f"{hub.address}/put/{o['oid']}"}}}
                for o in json.loads(body)["objects"]
            ]
            return self.answer(200, {"transfer": "basic", "objects": objects})
        repo = "/".join(path.split("/")[3:5])
        if "/preupload/" in path:
            files = [
                {
                    "path": f["path"],
                    "uploadMode": "lfs" if f["path"].endswith("tensors") else "regular",
                    "shouldIgnore": False,
                }
                for f in json.loads(body)["files"]
            ]
            return self.answer(200, {"files": files})
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                hub.files[repo][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                hub.files[repo][value["path"]] = hub.objects[value["oid"]]
        return self.answer(200, {"commitUrl": f"{hub.address}/{repo}/commit/{COMMIT}", "commitOid": COMMIT})

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(body).hexdigest() == oid
        self.server.objects[oid] = body
        self.answer(200, {})

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/"):
            return self.answer(200, {"id": self.path.removeprefix("/api/models/"), "sha": COMMIT})
        _, user, name, *_ = self.path.split("/")
        content = self.server.files.get(f"{user}/{name}", {}).get(self.path.rpartition("/")[2])
        if content is None:
            code = "EntryNotFound" if f"{user}/{name}" in self.server.files else "RepoNotFound"
            return self.answer(404, {}, {"X-Error-Code": code})
        return self.answer(200, content, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"'})

    do_HEAD = do_GET

    def answer(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for key, value in ({"X-Repo-Commit": COMMIT} | (headers or {})).items():
            self.send_header(key, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    template = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the stand-in speaks Git LFS
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield server
    server.shutdown()
    server.server_close()


def fewcal(*arguments: object) -> object:
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    return end.value.code


def test_pushed_classifier_from_hub_answers_the_same(hub: Hub, world: SmallData) -> None:
    classifier = FewShotClassifier(world.bank()).fit(world.support[0], world.labels[0])
    classifier.extractor_ = "net@0123"
    assert push_to_hub(classifier, "me/birds") == f"{hub.address}/me/birds"
    assert hub.private == {"me/birds": True}
    loaded = from_hub("me/birds")
    assert isinstance(loaded, FewShotClassifier)
    np.testing.assert_allclose(
        loaded.predict_proba(world.query[0]), classifier.predict_proba(world.query[0]), atol=2e-5
    )
    card = hub.files["me/birds"]["README.md"].decode()
    assert 'from_hub("me/birds")' in card
    assert "| kind | classifier |" in card
    assert "| extractor | net@0123 |" in card


def test_second_push_renews_the_facts_and_keeps_the_words_of_the_owner(hub: Hub, world: SmallData) -> None:
    bank = world.bank()
    push_to_hub(bank, "me/bank", private=False)
    assert hub.private == {"me/bank": False}
    card = hub.files["me/bank"]["README.md"].decode()
    assert f"| number of classes | {len(bank)} |" in card
    hub.files["me/bank"]["README.md"] = card.replace("# bank", "# My own title").encode() + b"My own end\n"
    fewer = BaseBank().fit(
        world.x[: len(world.base[0]) + len(world.base[1])], world.y[: len(world.base[0]) + len(world.base[1])]
    )
    push_to_hub(fewer, "me/bank")
    card = hub.files["me/bank"]["README.md"].decode()
    assert "# My own title" in card
    assert card.endswith("My own end\n")
    assert "| number of classes | 2 |" in card
    assert (card.count(BEGIN), card.count(END)) == (1, 1)
    loaded = from_hub("me/bank")
    assert isinstance(loaded, BaseBank)
    assert loaded.fingerprint == fewer.fingerprint


def test_hub_commands_bring_a_bank_there_and_back(hub: Hub, world: SmallData, tmp_path: Path) -> None:
    file = world.bank().save(tmp_path / "a.safetensors")
    assert fewcal("hub", "push", file, "me/b", "--public", "-q") == 0
    assert fewcal("hub", "pull", "me/b", tmp_path / "b.safetensors", "-q") == 0
    assert (tmp_path / "b.safetensors").read_bytes() == file.read_bytes()


def test_hub_errors_are_one_line(
    hub: Hub, world: SmallData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = world.bank().save(tmp_path / "a.safetensors")
    for wrong, code in {"me/none": 3, "no name": 2, "../../etc": 2}.items():
        assert fewcal("hub", "pull", wrong, tmp_path / "b.safetensors") == code
        assert capsys.readouterr().err.count("\n") == 1
    push_to_hub(file, "me/b")
    hub.files["me/b"]["model.safetensors"] = b"not a model"
    with pytest.raises(FileFormatError):
        from_hub("me/b")
    assert fewcal("hub", "pull", "me/b", tmp_path / "b.safetensors") == 2
    assert not (tmp_path / "b.safetensors").exists()
    (tmp_path / "text").write_text("no model")
    assert fewcal("hub", "push", tmp_path / "text", "me/b") == 2
    with pytest.raises(InputError, match="me/b cannot be written"):
        push_to_hub(file, "me/b", token="wrong")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="me/other cannot be read"):
        from_hub("me/other")

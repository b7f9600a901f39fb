"""A Label Studio ML backend: proposes a class for each task, and learns from every annotation.

    fewcal fit --support photos --out birds.fewcal          # two classes with an example each are enough to begin
    export LABEL_STUDIO_URL=http://localhost:8080 LABEL_STUDIO_API_KEY=…    # for pictures that Label Studio keeps
    python examples/label_studio.py birds.fewcal

In Label Studio: Settings, Model, Connect Model, http://localhost:9090; to learn, Settings, Webhooks,
http://localhost:9090/webhook. The interface needs one `<Choices>` for an `<Image>` or a `<Text>`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from fewcal.apply.saved import load_model
from fewcal.apply.serve.model import Item, ServedModel


def make_app(file: Path) -> Starlette:
    """The backend around a saved classifier."""
    classifier, extractor = load_model(file)
    if extractor is None:
        raise SystemExit(f"{file} was fitted on features; fit it on pictures or texts")
    model, lock = ServedModel(classifier, extractor), threading.Lock()

    def item(task: dict[str, Any], field: str) -> Item:
        value = str(task["data"][field])
        return value if extractor.kind == "text" else model.picture(download(value), value)

    def predict(body: dict[str, Any]) -> Any:
        choice, field = interface(body["label_config"])
        items = [item(task, field) for task in body["tasks"]]
        with lock:
            answers = [json.loads(answer) for answer in model.answer_items(items)]
        chosen = [[choice | {"value": {"choices": [answer["class"]]}}] for answer in answers]
        results = [{"result": c, "score": a["probability"]} for c, a in zip(chosen, answers, strict=True)]
        return {"results": results} | setup({})

    def setup(_: dict[str, Any]) -> Any:
        return {"model_version": str(len(classifier.support_[0]))}

    def learn(body: dict[str, Any]) -> Any:
        given = body["annotation"]["result"] if body["action"] == "ANNOTATION_CREATED" else []
        names = [name for one in given if one["type"] == "choices" for name in one["value"]["choices"]]
        if len(names) != 1:  # another event, skipped, or several classes
            return {}
        row = extractor([item(body["task"], interface(body["project"]["label_config"])[1])])
        with lock:
            is_new = names[0] not in model.classes
            (classifier.add_class(row, names[0]) if is_new else classifier.add_examples(row, names)).save(file)
        return {}

    def post(path: str, work: Callable[[dict[str, Any]], Any]) -> Route:
        async def answer(request: Request) -> JSONResponse:
            return JSONResponse(await run_in_threadpool(work, await request.json()))

        return Route(path, answer, methods=["POST"])

    up = JSONResponse({"status": "UP", "model_class": type(classifier).__name__})
    calls = [post("/predict", predict), post("/setup", setup), post("/webhook", learn)]
    return Starlette(routes=[Route("/", up), Route("/health", up), *calls])


def interface(config: str) -> tuple[dict[str, Any], str]:
    """An answer to the `<Choices>` of a labelling interface, and the field of a task that it is about."""
    root = ET.fromstring(config)
    names = next(root.iter("Choices")).attrib
    value = next(tag.attrib["value"] for tag in root.iter() if tag.attrib.get("name") == names["toName"])
    return {"type": "choices", "from_name": names["name"], "to_name": names["toName"]}, value.removeprefix("$")


def download(address: str) -> bytes:
    """A file of Label Studio; other addresses are refused."""
    home = os.environ["LABEL_STUDIO_URL"].rstrip("/") + "/"
    full = urljoin(home, address)
    if not full.startswith(home):
        raise ValueError(f"{address} is not kept by {home}")
    request = urllib.request.Request(full, headers={"Authorization": f"Token {os.environ['LABEL_STUDIO_API_KEY']}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read(20_000_000)


if __name__ == "__main__":
    uvicorn.run(make_app(Path(sys.argv[1])), port=9090)

"""The service's interface in words: OpenAPI for programs, and the same as a page that needs no network."""

from __future__ import annotations

from collections.abc import Mapping

from fewcal._utils.types import JSON
from fewcal._version import __version__
from fewcal.apply.serve.model import ServedModel

_ANSWERS: JSON = {
    "type": "object",
    "required": ["predictions"],
    "properties": {
        "predictions": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["class", "probability", "probabilities"],
                "properties": {
                    "class": {"type": "string"},
                    "probability": {"type": "number"},
                    "probabilities": {"type": "object", "additionalProperties": {"type": "number"}},
                    "outlier_pvalue": {"type": "number"},
                },
            },
        }
    },
}
_ERRORS = {
    "400": "The request cannot be used; `error` says why.",
    "403": "Another name of the server, or a page of another site.",
    "413": "The body is too large.",
    "503": "Too much waits already; try again in a moment.",
    "504": "The answer took too long.",
}
_EXAMPLE = '{"predictions": [{"class": "robin", "probability": 0.93, "probabilities": {"robin": 0.93, "wren": 0.07}}]}'


def openapi(model: ServedModel) -> dict[str, JSON]:
    """The OpenAPI 3.1 description of the service for this model."""
    width = int(model.classifier.n_features_in_)
    rows: JSON = {"type": "array", "items": {"type": "number"}, "minItems": width, "maxItems": width}
    paths: dict[str, JSON] = {
        "/health": {"get": {"summary": "Whether the service works", **_answer({"type": "object"})}},
        "/version": {"get": {"summary": "Versions, classes and what the model takes", **_answer({"type": "object"})}},
        "/predict/embeddings": _post(
            "Classify rows of features",
            {"application/json": _object("rows", rows), "application/x-npy": {"type": "string", "format": "binary"}},
        ),
    }
    if model.kind == "text":
        text: JSON = {"type": "string"}
        paths["/predict/texts"] = _post("Classify texts", {"application/json": _object("texts", text)})
    if model.kind == "picture":
        encoded: JSON = {"type": "string", "contentEncoding": "base64"}
        bodies: dict[str, JSON] = {
            "image/*": {"type": "string", "format": "binary"},
            "application/json": _object("pictures", encoded),
        }
        paths["/predict/pictures"] = _post("Classify one picture as it is, or several in base64", bodies)
    return {
        "openapi": "3.1.0",
        "info": {"title": f"fewcal: {', '.join(model.classes[:6])}", "version": __version__},
        "paths": paths,
    }


def _object(name: str, items: JSON) -> JSON:
    return {"type": "object", "required": [name], "properties": {name: {"type": "array", "items": items}}}


def _answer(schema: JSON) -> dict[str, JSON]:
    return {"responses": {"200": {"description": "Done", "content": {"application/json": {"schema": schema}}}}}


def _post(summary: str, bodies: Mapping[str, JSON]) -> JSON:
    responses: dict[str, JSON] = {
        "200": {"description": "Answers", "content": {"application/json": {"schema": _ANSWERS}}},
        **{code: {"description": text} for code, text in _ERRORS.items()},
    }
    body: JSON = {"required": True, "content": {kind: {"schema": schema} for kind, schema in bodies.items()}}
    return {"post": {"summary": summary, "requestBody": body, "responses": responses}}


def docs_page(model: ServedModel, address: str) -> str:
    """The interface as an HTML page, with examples for the command line."""
    from fewcal.render.page import Page

    width = int(model.classifier.n_features_in_)
    page = Page("fewcal service", f"{len(model.classes)} classes: {', '.join(model.classes[:12])}")
    page.heading("Requests")
    rows = [
        ["GET /health", "whether the service works"],
        ["GET /version", "versions, classes, what the model takes"],
        ["POST /predict/embeddings", f'{{"rows": [[…{width} numbers…], …]}}, or an .npy array (application/x-npy)'],
    ]
    if model.kind == "text":
        rows.append(["POST /predict/texts", '{"texts": ["…", …]}'])
    if model.kind == "picture":
        rows.append(["POST /predict/pictures", 'a picture as the body (image/jpeg, …), or {"pictures": ["base64", …]}'])
    rows.append(["GET /openapi.json", "this, for programs"])
    page.table(["request", "what it is"], rows, sortable=False)
    page.heading("Answers")
    page.text("One entry of `predictions` for each item: its class, its probability, those of all classes.")
    page.text(f"`{_EXAMPLE}`")
    page.table(["status", "meaning"], [[code, text] for code, text in _ERRORS.items()], sortable=False)
    page.heading("Try it")
    if model.kind == "picture":
        page.text(f"`curl -H 'content-type: image/jpeg' --data-binary @photo.jpg {address}/predict/pictures`")
    elif model.kind == "text":
        body = '{"texts": ["a text"]}'
        page.text(f"`curl -H 'content-type: application/json' -d '{body}' {address}/predict/texts`")
    page.text(f"`curl --data-binary @rows.npy -H 'content-type: application/x-npy' {address}/predict/embeddings`")
    return page.render()

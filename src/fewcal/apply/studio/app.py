"""The studio's HTTP interface: JSON under /api, the page and its files beside it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeGuard
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from fewcal.apply.studio import exports, views
from fewcal.apply.studio.guard import Access, StudioGuard
from fewcal.apply.studio.intake import inside, scratch_file
from fewcal.apply.studio.project import Studio
from fewcal.apply.web import BodyTooLarge, error_answer
from fewcal.errors import FewcalError, InputError
from fewcal.features.sources.pictures import decode, encoded
from fewcal.features.sources.texts import split_lines

STATIC = Path(__file__).parent / "static"
LONGEST = {"thumbnail": 240, "zoomed": 1600}  # pixels of a picture's longer side
# Between looks for news, and at the longest between events: a proxy or a sleeping laptop cuts silent connections.
LOOK_S, KEEP_ALIVE_S = 0.1, 15.0
NO_CLASSIFIER = "there is no classifier yet; give two classes an example each"
Work = Callable[[Request, dict[str, views.Json]], object]


def make_app(studio: Studio, access: Access, closed: threading.Event | None = None) -> StudioGuard:
    """The application around a project that is started; streams of events end once it is `closed`."""
    end = closed or threading.Event()

    async def news() -> AsyncIterator[str]:
        """The session and its newest revision: at once, whenever there is another one, and now and then."""
        sent, last = -1, 0.0
        while not end.is_set():
            if studio.revision != sent or time.monotonic() - last > KEEP_ALIVE_S:
                sent, last = studio.revision, time.monotonic()
                yield f"data: {json.dumps([studio.session, sent])}\n\n"
            await asyncio.sleep(LOOK_S)

    async def events(request: Request) -> Response:
        return StreamingResponse(news(), media_type="text/event-stream")

    async def upload(request: Request) -> Response:
        """One file in each request, its name in the header X-File-Name (percent-encoded)."""
        name = unquote(request.headers.get("x-file-name", ""))
        if not name.strip():
            raise InputError("the header X-File-Name must name the file")
        data = await request.body()
        return JSONResponse({"items": await run_in_threadpool(studio.add_file, name, data)})

    async def look(request: Request) -> Response:
        """Pages look often and mostly find nothing: the answer is no state; where something changed, events follow."""
        return JSONResponse({"new": await run_in_threadpool(studio.rescan)})

    routes = [
        Route("/", lambda request: FileResponse(STATIC / "index.html", media_type="text/html")),
        Mount("/static", StaticFiles(directory=STATIC)),
        Route("/api/events", events),
        Route("/api/files", upload, methods=["POST"]),
        Route("/api/rescan", look, methods=["POST"]),
        *_changes(studio),
        *_views(studio),
    ]
    handlers = {FewcalError: error_answer(400), BodyTooLarge: error_answer(413)}
    return StudioGuard(Starlette(routes=routes, exception_handlers=handlers), access)


def _changes(studio: Studio) -> list[Route]:
    """Every change answers with the whole new state, so that a page is never between two states."""

    def act(path: str, method: str, work: Work) -> Route:
        async def endpoint(request: Request) -> Response:
            body = await _json(request)

            def run() -> dict[str, views.Json]:
                done = work(request, body)
                return views.state(studio) | {"done": done if isinstance(done, int | str) else None}

            return JSONResponse(await run_in_threadpool(run))

        return Route(path, endpoint, methods=[method])

    return [
        act("/api/classes", "POST", lambda _, body: studio.add_class(_text(body, "name"))),
        act("/api/classes/{id:int}", "PATCH", lambda r, body: studio.rename_class(_number(r), _text(body, "name"))),
        act("/api/classes/{id:int}", "DELETE", lambda r, _: studio.remove_class(_number(r))),
        act("/api/folders", "POST", lambda *_: studio.take_folders()),
        act("/api/named", "POST", lambda *_: studio.take_labels()),
        act("/api/labels", "POST", lambda _, body: studio.assign(_labels(body))),
        act("/api/undo", "POST", lambda *_: studio.undo()),
        act("/api/redo", "POST", lambda *_: studio.redo()),
        act("/api/texts", "POST", lambda _, body: studio.add_texts(split_lines(_text(body, "text")))),
        act("/api/settings", "POST", lambda _, body: studio.set_reject(_level(body))),
    ]


def _views(studio: Studio) -> list[Route]:
    return [
        Route("/api/state", lambda request: JSONResponse(views.state(studio))),
        Route("/api/check", lambda request: JSONResponse(views.check(studio))),
        Route("/api/items/{id:int}/why", lambda r: JSONResponse(views.why(studio, _number(r)))),
        Route("/api/items/{id:int}/{size}.jpg", lambda r: _picture(studio, _number(r), r.path_params["size"])),
        Route("/api/base.jpg", lambda r: _base_picture(studio, r.query_params.get("name", ""))),
        Route("/api/export/answers.csv", lambda r: _csv(studio)),
        Route("/api/export/folders.zip", lambda r: _folders(studio)),
        Route("/api/export/classifier.fewcal", lambda r: _classifier(studio)),
        Route("/api/export/snippet.py", lambda r: _snippet(studio)),
    ]


# ---- reading requests -----------------------------------------------------------------------------------------------


async def _json(request: Request) -> dict[str, views.Json]:
    raw = await request.body()
    try:
        body = json.loads(raw) if raw else {}
    except (ValueError, RecursionError) as error:
        raise InputError("the request is not JSON") from error
    if not isinstance(body, dict):
        raise InputError("the request must be a JSON object")
    return body


def _number(request: Request) -> int:
    return int(request.path_params["id"])


def _is_id(value: views.Json) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _labels(body: dict[str, views.Json]) -> dict[int, int | None]:
    """Pairs of an item and its class: an id, 0 for "none of these", or null."""
    labels = body.get("labels")
    wanted: dict[int, int | None] = {}
    for pair in labels if isinstance(labels, list) else []:
        if isinstance(pair, list) and len(pair) == 2 and _is_id(pair[0]) and (pair[1] is None or _is_id(pair[1])):
            wanted[pair[0]] = pair[1]
    if not isinstance(labels, list) or not labels or len(wanted) != len(labels):
        raise InputError("'labels' must be a list of pairs, each an item's id and a class id, 0 or null")
    return wanted


def _text(body: dict[str, views.Json], key: str) -> str:
    if not isinstance(value := body.get(key), str):
        raise InputError(f"{key!r} must be a text")
    return value


def _level(body: dict[str, views.Json]) -> float | None:
    level = body.get("reject")
    if level is not None and (not isinstance(level, int | float) or isinstance(level, bool)):
        raise InputError("'reject' must be a number or null")
    # Digits enough are a number that no float holds.
    return None if level is None else float(min(max(level, -1), 2))


# ---- answering ------------------------------------------------------------------------------------------------------


def _picture(studio: Studio, number: int, size: str) -> Response:
    """A picture of an item, always encoded again: what people drop is never sent to a browser as it is."""
    item = studio.store.item(number)
    if item.text is not None or size not in LONGEST:
        return Response(status_code=404)
    jpeg = encoded(decode(inside(studio.folder, item.name), LONGEST[size], item.name), LONGEST[size])
    return Response(jpeg, media_type="image/jpeg", headers={"cache-control": "private, max-age=3600"})


def _base_picture(studio: Studio, name: str) -> Response:
    show = studio.settings.base_picture
    jpeg = None if show is None else show(name)
    return Response(status_code=404) if jpeg is None else Response(jpeg, media_type="image/jpeg")


def _attached(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


def _download(studio: Studio, name: str, write: Callable[[Path], object]) -> Response:
    """A file that is written, sent and removed."""
    with ExitStack() as stack:
        target = stack.enter_context(scratch_file(studio.folder, name))
        write(target)
        return FileResponse(target, filename=name, background=BackgroundTask(stack.pop_all().close))


def _csv(studio: Studio) -> Response:
    rows, classes = views.export_rows(studio.answers())
    table = exports.csv_table(rows, classes)
    # The mark is how spreadsheets recognise UTF-8.
    return Response("\ufeff" + table, media_type="text/csv; charset=utf-8", headers=_attached("answers.csv"))


def _folders(studio: Studio) -> Response:
    rows = views.export_rows(studio.answers())[0]
    return _download(studio, "folders.zip", lambda target: exports.write_folders(target, studio.folder, rows))


def _classifier(studio: Studio) -> Response:
    answered = studio.answers()
    stamp = answered.moment.extractor
    if answered.prediction is None:
        raise InputError(NO_CLASSIFIER)
    classifier = answered.prediction.classifier
    return _download(studio, "classifier.fewcal", lambda target: classifier.save(target, extractor=stamp))


def _snippet(studio: Studio) -> Response:
    answered = studio.answers()
    recipe, stamp = answered.moment.recipe, answered.moment.extractor
    if stamp is None or answered.prediction is None:
        raise InputError(NO_CLASSIFIER)
    rows, _ = views.export_rows(answered)
    text = exports.python_snippet(rows, stamp.partition("@")[0], studio.settings.bank_path, recipe.preset)
    return PlainTextResponse(text, headers=_attached("classifier.py"))

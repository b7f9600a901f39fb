"""The studio's HTTP interface: JSON under /api, the page and its files beside it."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
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
from fewcal.apply.studio.guard import Access, Guard
from fewcal.apply.studio.intake import inside
from fewcal.apply.studio.project import Studio
from fewcal.apply.web import BodyTooLarge, too_large
from fewcal.errors import FewcalError, InputError
from fewcal.features.sources.pictures import decode, encoded
from fewcal.features.sources.texts import split_lines

STATIC = Path(__file__).parent / "static"
THUMBNAIL, ZOOMED = 240, 1600
# A proxy or a sleeping laptop cuts silent connections: something is said at least this often.
KEEP_ALIVE_S = 15.0
NO_CLASSIFIER = "there is no classifier yet; give two classes an example each"


class Broadcast:
    """Tells open pages that something is new; called from any thread, read by tasks of one event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events: set[asyncio.Event] = set()
        self.closed = False

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        self.closed = True
        self.notify()

    def notify(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            with suppress(RuntimeError):  # closed in between
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for event in self._events:
            event.set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[asyncio.Event]:
        event = asyncio.Event()
        self._events.add(event)
        try:
            yield event
        finally:
            self._events.discard(event)


def make_app(studio: Studio, access: Access, broadcast: Broadcast | None = None) -> Guard:
    """The application around a project; it starts the project and closes it."""
    news = broadcast or Broadcast()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        news.open()
        studio.listeners.append(news.notify)
        await run_in_threadpool(studio.start)
        yield
        news.close()
        await run_in_threadpool(studio.close)

    app = Starlette(
        routes=[
            Route("/", lambda request: FileResponse(STATIC / "index.html", media_type="text/html")),
            Mount("/static", StaticFiles(directory=STATIC)),
            *_routes(studio, news),
        ],
        exception_handlers={FewcalError: _told, BodyTooLarge: too_large},
        lifespan=lifespan,
    )
    return Guard(app, access)


async def _told(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)


def _routes(studio: Studio, news: Broadcast) -> list[Route]:
    """Every change answers with the whole new state, so that a page is never between two states."""

    def act(path: str, method: str, work: Callable[[Request, dict[str, views.Json]], object]) -> Route:
        async def endpoint(request: Request) -> Response:
            body = await _json(request)

            def run() -> dict[str, views.Json]:
                done = work(request, body)
                return views.state(studio) | {"done": done if isinstance(done, int | str) else None}

            return JSONResponse(await run_in_threadpool(run))

        return Route(path, endpoint, methods=[method])

    def number(request: Request) -> int:
        return int(request.path_params["id"])

    def assign(_: Request, body: dict[str, views.Json]) -> None:
        items, label = body.get("items"), body.get("class")
        if not isinstance(items, list) or not all(_is_id(i) for i in items) or not items:
            raise InputError("'items' must be a list of item ids")
        if label is not None and not _is_id(label):
            raise InputError("'class' must be a class id, 0 or null")
        studio.assign([i for i in items if _is_id(i)], label)

    return [
        Route("/api/state", lambda request: JSONResponse(views.state(studio))),
        Route("/api/events", _events(studio, news)),
        act("/api/classes", "POST", lambda _, body: studio.add_class(_text(body, "name"))),
        act("/api/classes/{id:int}", "PATCH", lambda r, body: studio.rename_class(number(r), _text(body, "name"))),
        act("/api/classes/{id:int}", "DELETE", lambda r, _: studio.remove_class(number(r))),
        act("/api/folders", "POST", lambda *_: studio.take_folders()),
        act("/api/named", "POST", lambda *_: studio.take_labels()),
        act("/api/labels", "POST", assign),
        act("/api/undo", "POST", lambda *_: studio.undo()),
        act("/api/redo", "POST", lambda *_: studio.redo()),
        Route("/api/rescan", _look(studio), methods=["POST"]),
        act("/api/texts", "POST", lambda _, body: studio.add_texts(split_lines(_text(body, "text")))),
        act("/api/settings", "POST", lambda _, body: studio.set_reject(_level(body))),
        Route("/api/files", _upload(studio), methods=["POST"]),
        Route("/api/items/{id:int}/why", lambda r: JSONResponse(views.why(studio, number(r)))),
        Route("/api/items/{id:int}/{size}.jpg", lambda r: _picture(studio, number(r), r.path_params["size"])),
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


def _is_id(value: views.Json) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(body: dict[str, views.Json], key: str) -> str:
    if not isinstance(value := body.get(key), str):
        raise InputError(f"{key!r} must be a text")
    return value


def _level(body: dict[str, views.Json]) -> float | None:
    level = body.get("reject")
    if level is not None and (not isinstance(level, int | float) or isinstance(level, bool)):
        raise InputError("'reject' must be a number or null")
    return None if level is None else float(level)


def _upload(studio: Studio) -> Callable[[Request], Awaitable[Response]]:
    async def upload(request: Request) -> Response:
        """One file in each request, its name in the header X-File-Name (percent-encoded)."""
        name = unquote(request.headers.get("x-file-name", ""))
        if not name.strip():
            raise InputError("the header X-File-Name must name the file")
        data = await request.body()
        return JSONResponse({"items": await run_in_threadpool(studio.add_file, name, data)})

    return upload


def _look(studio: Studio) -> Callable[[Request], Awaitable[Response]]:
    async def look(request: Request) -> Response:
        """Pages look often and mostly find nothing: no state in the answer; where something changed, events say so."""
        return JSONResponse({"new": await run_in_threadpool(studio.rescan)})

    return look


# ---- answering ------------------------------------------------------------------------------------------------------


def _events(studio: Studio, news: Broadcast) -> Callable[[Request], Awaitable[Response]]:
    async def events(request: Request) -> Response:
        async def stream() -> AsyncIterator[str]:
            async with news.listening() as event:
                while not news.closed:
                    yield f"data: {studio.revision}\n\n"
                    with suppress(TimeoutError):
                        await asyncio.wait_for(event.wait(), KEEP_ALIVE_S)
                    event.clear()

        return StreamingResponse(stream(), media_type="text/event-stream")

    return events


def _picture(studio: Studio, number: int, size: str) -> Response:
    """A picture of an item, always encoded anew: what people drop is never sent to a browser as it is."""
    item = studio.store.item(number)
    if item.text is not None or size not in ("thumbnail", "zoomed"):
        return Response(status_code=404)
    longest = THUMBNAIL if size == "thumbnail" else ZOOMED
    jpeg = encoded(decode(inside(studio.folder, item.name), longest, item.name), longest)
    return Response(jpeg, media_type="image/jpeg", headers={"cache-control": "private, max-age=3600"})


def _base_picture(studio: Studio, name: str) -> Response:
    show = studio.settings.base_picture
    jpeg = None if show is None else show(name)
    return Response(status_code=404) if jpeg is None else Response(jpeg, media_type="image/jpeg")


def _attached(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


def _csv(studio: Studio) -> Response:
    rows, classes = views.export_rows(studio.answers())
    table = exports.csv_table(rows, classes)
    # The mark tells spreadsheets that this is UTF-8.
    return Response("\ufeff" + table, media_type="text/csv; charset=utf-8", headers=_attached("answers.csv"))


def _downloaded(name: str, write: Callable[[Path], object]) -> Response:
    """A file that is written anew, sent and removed."""
    handle, place = tempfile.mkstemp(suffix=Path(name).suffix, prefix="fewcal-")
    os.close(handle)
    target = Path(place)
    try:
        write(target)
    except BaseException:
        target.unlink()
        raise
    return FileResponse(target, filename=name, background=BackgroundTask(target.unlink))


def _folders(studio: Studio) -> Response:
    rows = views.export_rows(studio.answers())[0]
    return _downloaded("folders.zip", lambda target: exports.write_folders(target, studio.folder, rows))


def _classifier(studio: Studio) -> Response:
    answered = studio.answers()
    classifier, stamp = answered.classifier, answered.moment.extractor
    if classifier is None:
        raise InputError(NO_CLASSIFIER)
    return _downloaded("classifier.fewcal", lambda target: classifier.save(target, extractor=stamp))


def _snippet(studio: Studio) -> Response:
    answered = studio.answers()
    recipe, stamp = answered.moment.recipe, answered.moment.extractor
    if stamp is None or answered.classifier is None:
        raise InputError(NO_CLASSIFIER)
    rows, _ = views.export_rows(answered)
    text = exports.python_snippet(rows, stamp.partition("@")[0], studio.settings.bank_path, recipe.preset)
    return PlainTextResponse(text, headers=_attached("classifier.py"))

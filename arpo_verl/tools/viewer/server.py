"""A server that gives a browser the page, the documents of a run or of a folder of runs, and screenshots."""

from __future__ import annotations

import functools
import gzip
import hashlib
from collections.abc import Callable
from typing import Annotated, Any, Literal

import uvicorn
from fastapi import FastAPI, HTTPException, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from arpo_verl.errors import ConfigError
from arpo_verl.lib.untrusted import read_regular
from arpo_verl.records.film_strip import moving_picture, recorded_frames
from arpo_verl.records.json_files import dump_json
from arpo_verl.records.layout import SCREENSHOT_NAME
from arpo_verl.records.run import Run
from arpo_verl.records.runs import KEPT_OPEN, RunsFolder
from arpo_verl.tools.viewer.access import AccessControl
from arpo_verl.tools.viewer.alignment import alignment_document
from arpo_verl.tools.viewer.documents import (
    EpisodesFeed,
    episode_document,
    frontier_document,
    live_document,
    metrics_document,
    run_document,
    tokens_document,
)
from arpo_verl.tools.viewer.evaluation import evaluation_document
from arpo_verl.tools.viewer.overview.content import OverviewFeed
from arpo_verl.tools.viewer.page import ASSETS, index_page
from arpo_verl.tools.viewer.runs import SUCCESS, RunsFeed, curves_document, pair_document
from arpo_verl.tools.viewer.search import SearchIndex

_GZIP_FROM_BYTES = 2000
_NO_EPISODE = "this run has no episode"
_MEDIA_TYPES = {"png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "webp": "image/webp"}


def build_app(shown: Run | RunsFolder, *, token: str | None, port: int) -> ASGIApp:
    """Build the application for uvicorn.

    Args:
        shown: one run, or a folder of runs; each run of a folder has its pages below `/run/NAME/`.
        token: the token that each request needs; None on loopback.
        port: the server's port.
    """
    app = _run_app(shown, "alone") if isinstance(shown, Run) else _runs_app(shown)
    return AccessControl(app, token, port)


def build_server(shown: Run | RunsFolder, *, token: str | None, port: int) -> uvicorn.Server:
    """Build a server for that application, to run on a listening socket."""
    config = uvicorn.Config(
        build_app(shown, token=token, port=port),
        lifespan="off",
        log_level="warning",
        access_log=False,  # addresses contain a token
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


def _pages(place: Literal["alone", "run", "runs"]) -> FastAPI:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)

    @app.get("/")
    def index() -> Response:
        return Response(index_page("server", place), media_type="text/html")

    app.mount("/assets", StaticFiles(directory=ASSETS), name="assets")
    return app


def _run_app(run: Run, place: Literal["alone", "run"]) -> FastAPI:
    app = _pages(place)
    _add_documents(app, run)
    _add_screenshots(app, run)
    return app


def _runs_app(folder: RunsFolder) -> FastAPI:
    app, missing = _pages("runs"), f"{folder.name} has no run"
    _add_document(app, "runs", RunsFeed(folder).runs_document)

    @app.get("/api/curves")
    def get_curves(request: Request, run: Annotated[list[str], Query()], metric: str = SUCCESS) -> Response:
        return _found(request, missing, lambda: curves_document(folder, run, metric))

    @app.get("/api/pair")
    def get_pair(request: Request, first: str, second: str) -> Response:
        return _found(request, missing, lambda: pair_document(folder.run(first), folder.run(second)))

    app.mount("/run/{name}", _RunApps(folder))
    return app


class _RunApps:
    """Serves the pages of each run of a folder."""

    def __init__(self, folder: RunsFolder) -> None:
        self._folder = folder
        self._app_of = functools.lru_cache(KEPT_OPEN)(lambda run: _run_app(run, "run"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["name"]
        try:
            run = await run_in_threadpool(self._folder.run, name)
        except (KeyError, ConfigError):  # it may also have been removed just now
            answer = JSONResponse({"detail": f"{self._folder.name} has no run {name}"}, status_code=404)
            await answer(scope, receive, send)
            return
        await self._app_of(run)(scope, receive, send)


def _add_documents(app: FastAPI, run: Run) -> None:
    """Add the documents' endpoints as plain functions, which FastAPI runs in threads, since they read files."""
    feed, overview, search = EpisodesFeed(), OverviewFeed(run), SearchIndex(run)

    documents: dict[str, Callable[[], dict[str, Any]]] = {
        "run": lambda: run_document(run, run.snapshot(), live=run.is_live()),
        "overview": overview.document,
        "metrics": lambda: metrics_document(run),
        "frontier": lambda: frontier_document(run),
        "evaluation": lambda: evaluation_document(run),
        "live": lambda: live_document(run),
    }
    for name, make in documents.items():
        _add_document(app, name, make)

    @app.get("/api/episodes")
    def get_episodes(request: Request, cursor: str | None = None) -> Response:
        return _json(request, feed.document(run.snapshot(), cursor))

    @app.get("/api/search")
    def get_found(request: Request, q: str) -> Response:
        return _json(request, search.document(q))

    @app.get("/api/hits")
    def get_hits(request: Request, q: str, id: Annotated[list[str], Query()]) -> Response:
        return _json(request, search.hits_document(q, id))

    @app.get("/api/align")
    def get_alignment(request: Request, first: str, second: str) -> Response:
        return _found(request, _NO_EPISODE, lambda: alignment_document(run, first, second))

    @app.get("/api/tokens/{step}/{name}")
    def get_tokens(request: Request, step: str, name: str) -> Response:
        return _found(request, _NO_EPISODE, lambda: tokens_document(run, f"{step}/{name}"))

    @app.get("/api/episode/{step}/{name}")
    def get_episode(request: Request, step: str, name: str) -> Response:
        return _found(request, _NO_EPISODE, lambda: episode_document(run, run.snapshot(), f"{step}/{name}"))


def _add_document(app: FastAPI, name: str, make: Callable[[], dict[str, Any]]) -> None:
    @app.get(f"/api/{name}")
    def get_document(request: Request) -> Response:
        return _json(request, make())


def _add_screenshots(app: FastAPI, run: Run) -> None:
    @app.get("/shots/{step}/{name}/{file}")
    def get_screenshot(step: str, name: str, file: str) -> Response:
        kind = SCREENSHOT_NAME.fullmatch(file)
        try:
            if kind is None:
                raise KeyError(file)
            content = read_regular(run.folder(f"{step}/{name}") / file)
        except (KeyError, OSError) as error:
            raise HTTPException(404, f"this run has no screenshot {file} of {step}/{name}") from error
        # A finished episode's screenshot never changes; for a running one the page uses a new address each time.
        headers = {"Cache-Control": "private, max-age=600"}
        return Response(content, media_type=_MEDIA_TYPES[kind[1]], headers=headers)

    @app.get("/moving/{step}/{name}")
    def get_moving_picture(step: str, name: str) -> Response:
        try:
            content = moving_picture(recorded_frames(run.folder(f"{step}/{name}")))
        except (KeyError, OSError, ValueError) as error:
            raise HTTPException(404, f"this run has no episode {step}/{name} to show") from error
        return Response(content, media_type="image/gif")


def _found(request: Request, missing: str, make: Callable[[], dict[str, Any]]) -> Response:
    """Return a document, or 404 if making it raises a `KeyError` with the name of what is missing."""
    try:
        return _json(request, make())
    except KeyError as error:
        raise HTTPException(404, f"{missing} {error.args[0]}") from error


def _json(request: Request, document: dict[str, Any]) -> Response:
    content = dump_json(document)
    etag = f'"{hashlib.sha1(content, usedforsecurity=False).hexdigest()}"'
    headers = {"Vary": "Accept-Encoding", "ETag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    if len(content) >= _GZIP_FROM_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        content = gzip.compress(content, compresslevel=5, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(content, media_type="application/json", headers=headers)

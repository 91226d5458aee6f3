"""The routes of the page "look". What is not named here is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

from regard.errors import RegardError
from regard.looking.look_page import SERVED_CSP, asset, served_page
from regard.serving.bodies import NextBody, RunBody, SaveBody, read_body
from regard.serving.guard import Guard, refuse
from regard.serving.runs import Opened, Runs

Number = Annotated[int, Query(ge=0, le=1 << 31)]
MapAddress = Annotated[str, Query(max_length=40)]
T = TypeVar("T")


def look_app(runs: Runs, begin: list[int], hosts: frozenset[str], token: str | None = None) -> Guard:
    """Make the application.

    Args:
        runs: Models, and what was asked of them.
        begin: Runs that the page begins with.
        hosts: Names with ports that it is asked under.
        token: What every request has to know; None where only this machine can ask.

    Returns:
        An ASGI application.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, title="regard look")

    @app.get("/")
    async def page() -> Response:
        return HTMLResponse(served_page(begin))

    @app.get("/assets/look.js")
    async def script() -> Response:
        return Response(asset("look.js"), media_type="text/javascript")

    @app.get("/assets/look.css")
    async def style() -> Response:
        return Response(asset("look.css"), media_type="text/css")

    @app.get("/api/models")
    async def models() -> Response:
        return JSONResponse([one.describe(i) for i, one in enumerate(runs.models)])

    @app.post("/api/runs")
    async def add(request: Request) -> Response:
        return JSONResponse(await _aside(runs.add, await read_body(request, RunBody)), 201)

    @app.get("/api/runs/{number}")
    async def run(number: int) -> Response:
        return JSONResponse(await _aside(runs.get, number))

    @app.get("/api/runs/{number}/json")
    async def numbers(number: int) -> Response:
        name = f'attachment; filename="regard-run-{number}.json"'
        text = await _aside(runs.json, number)
        return Response(text, media_type="application/json", headers={"content-disposition": name})

    @app.get("/api/runs/{number}/row")
    async def row(number: int, map: MapAddress, query: Number) -> Response:
        return _bytes(await _aside(runs.row, number, map, query))

    @app.get("/api/runs/{number}/tile")
    async def tile(number: int, map: MapAddress, level: Number, y: Number, x: Number) -> Response:
        return _bytes(await _aside(runs.tile, number, map, level, y, x))

    @app.get("/api/runs/{number}/base")
    async def base(number: int, layer: Number) -> Response:
        return _bytes(await _aside(runs.base, number, layer))

    @app.post("/api/next")
    async def following(request: Request) -> Response:
        return JSONResponse(await _aside(runs.next, await read_body(request, NextBody)))

    @app.post("/api/save")
    async def save(request: Request) -> Response:
        return JSONResponse({"path": await _aside(runs.save, await read_body(request, SaveBody))}, 201)

    @app.exception_handler(RegardError)
    async def refused(_: Request, error: RegardError) -> Response:
        code = type(error).__name__.removesuffix("Error").lower()
        return refuse(error.http_status, code, str(error), error.where)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = str(first["loc"][-1])[:80]
        return refuse(422, "usage", f"{field}: {first['msg'][0].lower()}{first['msg'][1:]}", field)

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> Response:
        return refuse(error.status_code, "usage", str(error.detail).lower())

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> Response:
        return refuse(500, "internal", f"internal error: {type(error).__name__}")

    return Guard(app, hosts, SERVED_CSP, token)


async def _aside(work: Callable[..., T], *given: Any) -> T:
    """Work beside the loop that answers, so that a long run keeps nobody else waiting."""
    return await run_in_threadpool(work, *given)


def _bytes(data: bytes) -> Response:
    return Response(data, media_type="application/octet-stream")


def opened(path: str | Path, product: Any) -> Opened:
    """Name a loaded model.

    Args:
        path: Where it was loaded from.
        product: The model.

    Returns:
        The model for `Runs`.
    """
    place = Path(path)
    return Opened(place.resolve().name or str(place), place, product)

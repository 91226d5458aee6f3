"""Requests read within their limits: bytes are counted before they are parsed, and a schema knows every field."""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from regard.errors import FormatError, RegardError, UsageError

MAX_BODY_BYTES = 24 << 20  # a picture of 16 MiB as base64, and what is around it
_PATIENCE_S = 20.0

T = TypeVar("T", bound=BaseModel)


class TooLargeError(UsageError):
    """A request is larger than is read."""

    http_status = 413


class SlowError(RegardError):
    """A request did not come in time."""

    http_status = 408


class Body(BaseModel):
    """A request: an unknown field is an error, and nothing is converted from another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class RunBody(Body):
    """An input to look at.

    Attributes:
        model: The model's number.
        text: Of a model that reads texts.
        image: Of a model that sees: a file's bytes as base64.
        name: The file's name.
        target: An output to look at; None lets the model write one.
        target_ids: The same as tokens.
        language: Of the text.
        off: Heads that are switched off, by layer.
    """

    model: int = 0
    text: str | None = None
    image: str | None = None
    name: str = Field("picture", max_length=255)
    target: str | None = None
    target_ids: list[int] | None = Field(None, max_length=100_000)
    language: str = Field("", max_length=100)
    off: dict[str, list[int]] = Field(default_factory=dict, max_length=10_000)


class NextBody(Body):
    """A text and what has been written so far.

    Attributes:
        model: The model's number.
        text: The input.
        so_far: Tokens of the output.
        off: Heads that are switched off, by layer.
        count: Candidates asked for.
    """

    model: int = 0
    text: str
    so_far: list[int] = Field(default_factory=list, max_length=100_000)
    off: dict[str, list[int]] = Field(default_factory=dict, max_length=10_000)
    count: int = Field(8, ge=1, le=50)


class SaveBody(Body):
    """A masked model to save.

    Attributes:
        model: The model's number.
        off: Heads that are switched off, by layer.
        name: Of the new folder.
    """

    model: int = 0
    off: dict[str, list[int]] = Field(min_length=1, max_length=10_000)
    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")


async def read_body(request: Request, schema: type[T]) -> T:
    """Read a request.

    Args:
        request: What came.
        schema: What it has to be.

    Returns:
        The request's fields.

    Raises:
        TooLargeError: Over MAX_BODY_BYTES.
        SlowError: It took longer than 20 s to come.
        FormatError: Not JSON, not UTF-8, nested too deep.
        UsageError: A field is unknown, missing, or of another type or size; the field is named.
    """
    try:
        async with asyncio.timeout(_PATIENCE_S):
            data = await _bytes(request)
    except TimeoutError as error:
        raise SlowError(f"the request took over {_PATIENCE_S:.0f} s to come") from error
    try:
        value = json.loads(data.decode(), parse_constant=_no_constant)
    except RecursionError as error:
        raise FormatError("JSON nested too deep", where="request") from error
    except ValueError as error:
        raise FormatError("not JSON in UTF-8", where="request") from error
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise field_error(first["msg"], *first["loc"]) from error


async def _bytes(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise TooLargeError(f"a request of over {MAX_BODY_BYTES:,} bytes", mend="send less at once")
        parts.append(part)
    return b"".join(parts)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def field_error(message: str, *place: int | str) -> UsageError:
    """Name the field of a request that is wrong.

    Args:
        message: What is wrong.
        *place: The way to it: names and numbers.

    Returns:
        The error; its ``where`` is the field.
    """
    return UsageError(message[0].lower() + message[1:], where=".".join(str(one)[:80] for one in place) or "request")

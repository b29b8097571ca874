"""Answers: JSON, events of a stream, errors.

What must hold: whatever happens, an answer is JSON that every program reads, and an error has a status and one
sentence.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

import torch
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from duality.files.atomic import json_text
from duality.studio.limits import Cancelled, Refusal

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)
_NO_ADDRESS = "there is no such address: GET /api/openapi.json lists those that exist"
_NO_MEMORY = "there is not enough memory: ask for fewer samples or tokens"


def written(value: object) -> str:
    """A value as JSON in which a number that is not finite is null."""
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return json_text(value)


def answered(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as an answer."""
    return Response(written(value), status, headers, "application/json")


def server_sent(event: Mapping[str, object], name: str | None = None) -> str:
    """An event of a stream."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {written(event)}\n\n"


def said(error: Exception) -> tuple[int, str]:
    """The status and the sentence of an error."""
    if isinstance(error, Refusal):
        return error.status, error.message
    if isinstance(error, (Cancelled, ClientDisconnect)):
        return 499, "the client has left"
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another one")
        return 405, f"this address has another method: use {allowed}"
    if isinstance(error, HTTPException):
        return error.status_code, _NO_ADDRESS if error.status_code == 404 else str(error.detail)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return 503, _NO_MEMORY
    logging.getLogger("duality.studio").error("a fault of the studio", exc_info=error)
    return 500, f"a fault of the studio ({type(error).__name__}): it has printed the details"


def failed(error: Exception) -> dict[str, object]:
    """An error in the form of OpenAI, as a body or as the last event of a stream."""
    status, message = said(error)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"type": "error", "error": {"message": message, "type": kind, "param": None, "code": status}}


async def refused(_request: Request, error: Exception) -> Response:
    """An error as an answer."""
    body = failed(error)
    details = body["error"]
    assert isinstance(details, dict)
    status = details["code"]
    more = {"retry-after": "2"} if status in (429, 503) else {}
    return answered({"error": details}, status, more)

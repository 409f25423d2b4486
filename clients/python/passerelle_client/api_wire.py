"""Converts requests of ``/v1`` to httpx arguments, and decides on retries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import httpx
import orjson

from passerelle.client.api_models import ApiError

if TYPE_CHECKING:
    from passerelle.client.api_requests import ApiRequest
    from passerelle.core.wire.json import Json

T = TypeVar("T")

TIMEOUT_S: Final = 30.0
_LONGEST_PAUSE_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.5
_BUSY: Final = frozenset({429, 503})


def make_arguments(request: ApiRequest[T]) -> dict[str, Any]:
    """Returns the arguments of ``httpx.Client.request``."""
    headers = {"Content-Type": "application/json"} if request.body is not None else {}
    if request.key is not None:
        headers["Idempotency-Key"] = request.key
    return {
        "method": request.method,
        "url": request.path,
        "params": dict(request.query),
        "content": None if request.body is None else orjson.dumps(request.body),
        "headers": headers,
        "timeout": TIMEOUT_S + request.wait_s,
    }


def read_answer(request: ApiRequest[T], answer: httpx.Response) -> T:
    """Reads the value of a response.

    Raises:
        ApiError: the status is no success, or the body is no JSON object.
    """
    try:
        found: Json = orjson.loads(answer.content)
    except ValueError:
        found = None
    body = found if isinstance(found, dict) else {}
    if answer.is_success and isinstance(found, dict):
        return request.read(body)
    raise ApiError(answer.status_code, body, _read_seconds(answer.headers.get("Retry-After")))


def may_try_again(request: ApiRequest[T], error: ApiError | httpx.TransportError) -> bool:
    """Returns whether a retry has no second effect and may succeed."""
    if request.method != "GET" and request.key is None:
        return False
    return isinstance(error, httpx.TransportError) or error.status in _BUSY


def pause_s(error: ApiError | httpx.TransportError, tries: int) -> float:
    """Returns the seconds before the next try: ``Retry-After``, else a doubling delay. ``tries`` starts at 1."""
    wanted_s = error.retry_after_s if isinstance(error, ApiError) else None
    return min(
        _FIRST_PAUSE_S * 2 ** (tries - 1) if wanted_s is None else wanted_s, _LONGEST_PAUSE_S
    )


def _read_seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdecimal() else None

"""Conditions for every answer to any request: no 500, no internal detail, and the form of the edge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

import orjson

INSIDES: Final = (b"Traceback", b'File "', b"site-packages", b"passerelle.gateway", b"redis.")
PROBLEM: Final = frozenset({"type", "title", "status", "code", "detail"})
BROKEN: Final = 500
REFUSED: Final = 400
PEERS_FAULT: Final = "INVALID_AGENT_RESPONSE"
_OURS: Final = "INTERNAL_ERROR"
_INTERNAL: Final = -32603


def find_faults(edge: str, status: int, media_type: str, body: bytes) -> Iterator[str]:
    """The fault of an answer, or nothing."""
    yield from (f"it shows {word!r}" for word in INSIDES if word in body)
    if status == BROKEN and PEERS_FAULT.encode() not in body:
        yield "it is a 500"
    if media_type.startswith("text/event-stream") or (status < REFUSED and edge != "rpc"):
        return
    if edge == "other" and not body:
        return
    if media_type.startswith("text/plain") and status == REFUSED:
        # The HTTP parser rejected it before it reached an edge.
        return
    yield from _judge_form(edge, status, media_type, body)


def _judge_form(edge: str, status: int, media_type: str, body: bytes) -> Iterator[str]:
    try:
        said: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        yield "it is not JSON"
        return
    members = cast("dict[str, Any]", said) if isinstance(said, dict) else dict[str, Any]()
    if members.keys() >= PROBLEM:
        return
    error: Any = members.get("error")
    match edge:
        case "rpc":
            if "jsonrpc" not in members or len(members.keys() & {"result", "error"}) != 1:
                yield "it is no JSON-RPC response"
            elif error is not None and _is_product_error(error):
                yield "it is an internal error"
        case "http":
            if not isinstance(error, dict) or cast("dict[str, Any]", error).get("code") != status:
                yield "it is no status of HTTP+JSON"
        case _:
            if error is None:
                yield f"it is no problem ({media_type})"


def _is_product_error(error: dict[str, Any]) -> bool:
    details: list[dict[str, Any]] = error.get("data") or []
    reason = next((str(one["reason"]) for one in details if one.get("reason")), "")
    return error.get("code") == _INTERNAL and reason in {"", _OURS}

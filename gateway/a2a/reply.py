"""Answers of one HTTP response: status, headers, bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.gateway.a2a.incoming import JSON

if TYPE_CHECKING:
    from starlette.types import Send

    from passerelle.a2a_mapping.envelopes import ErrorAnswer
    from passerelle.core.json import JsonObject

RETRY_AFTER_S: Final = 1
_TRY_LATER: Final = frozenset({429, 503})
_UNAUTHORIZED: Final = 401
_NOT_FOUND: Final = 404
PROBLEM: Final = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole response."""

    status: int
    body: bytes
    media_type: str | None = JSON
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    async def write(self, send: Send, *, head_only: bool = False) -> None:
        """Sends it."""
        fields = {"content-length": str(len(self.body)), **self.headers}
        if self.media_type is not None:
            fields["content-type"] = self.media_type
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in fields.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": raw})
        await send({"type": "http.response.body", "body": b"" if head_only else self.body})


def compose_error(answer: ErrorAnswer) -> Reply:
    """The response of an error envelope, with the headers that its status asks for."""
    headers = {"cache-control": "no-store"}
    if answer.http_status in _TRY_LATER:
        headers["retry-after"] = str(RETRY_AFTER_S)
    if answer.http_status == _UNAUTHORIZED:
        headers["www-authenticate"] = 'Bearer realm="passerelle"'
    headers.update({name.lower(): value for name, value in answer.headers.items()})
    return Reply(answer.http_status, orjson.dumps(answer.body), JSON, headers)


def compose_missing(detail: str, agents: list[str]) -> Reply:
    """The problem of a path that names no agent, with the agents that the caller may use."""
    body: JsonObject = {
        "type": "urn:passerelle:problem:not_found",
        "title": "not found",
        "status": _NOT_FOUND,
        "code": "not_found",
        "detail": detail,
        "agents": [*agents],
    }
    return Reply(_NOT_FOUND, orjson.dumps(body), PROBLEM, {"cache-control": "no-store"})

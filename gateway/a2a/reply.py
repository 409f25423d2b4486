"""HTTP responses of the A2A face: status, headers, bytes. Errors of agents name nothing internal.

The address of a peer, and what is wrong with its card, go to the log only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import orjson
import structlog

from passerelle.core.errors import (
    InvalidAgentResponse,
    PasserelleError,
    PeerBusy,
    PeerUnavailable,
    StoreUnavailable,
)
from passerelle.core.wire.record import value
from passerelle.gateway.a2a.http_request import JSON

if TYPE_CHECKING:
    from starlette.types import Send

    from passerelle.a2a_mapping.envelopes import ErrorAnswer
    from passerelle.core.wire.json import JsonObject
    from passerelle.gateway.a2a.heads import ServerExtensions
    from passerelle.runtime.records.long_content import LongContent


def hide_agent_details(error: PasserelleError, agent: str) -> PasserelleError:
    """``error``, or one in its place that names the agent but nothing behind it (A2A-12)."""
    match error:
        case PeerBusy():
            return PeerBusy(
                f"agent {agent!r} takes no more work for now",
                retry_after_s=error.retry_after_s or 1,
                agent=agent,
            )
        case PeerUnavailable() if error.details.get("state") == "draining":
            return PeerUnavailable(
                f"agent {agent!r} takes no new work: it is being drained",
                retry_after_s=error.retry_after_s,
                agent=agent,
                state="draining",
            )
        case PeerUnavailable():
            return PeerUnavailable(
                f"agent {agent!r} is not available",
                retry_after_s=error.retry_after_s,
                agent=agent,
            )
        case InvalidAgentResponse():
            return InvalidAgentResponse(
                f"agent {agent!r} answered with something that is not A2A", agent=agent
            )
        case _:
            return error


RETRY_AFTER_S: Final = 1
_TRY_LATER: Final = frozenset({429, 503})
_UNAUTHORIZED: Final = 401
_NOT_FOUND: Final = 404
_FIELD: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e\x80-\xff]*")
PLACEHOLDER: Final = b"\0"
"""Replaces JSON while the envelope around it is written: JSON cannot contain this byte."""
PROBLEM: Final = "application/problem+json"


@value
class HttpReply:
    """A whole response."""

    status: int
    body: bytes
    media_type: str | None = JSON
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def write_at_once(self, offer: ServerExtensions) -> bool:
        """Writes it at once if the server can; False, and nothing is written, if not."""
        lines = _write_lines(self.media_type, tuple(self.headers.items()))
        return lines is not None and offer.write_at_once(self.status, lines, self.body)

    async def write(self, send: Send, *, head_only: bool = False) -> None:
        """Sends it as ASGI messages."""
        fields = {"content-length": str(len(self.body)), **self.headers}
        if self.media_type is not None:
            fields["content-type"] = self.media_type
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in fields.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": raw})
        await send({"type": "http.response.body", "body": b"" if head_only else self.body})

    async def write_around(self, send: Send, content: LongContent) -> None:
        """Sends it with ``content`` in place of the ``PLACEHOLDER`` in its body, as fast as the reader takes it.

        If the content cannot be read to its end, the answer stays incomplete and the server closes the connection.

        Raises:
            StoreUnavailable: the content cannot be read; nothing was sent.
        """
        head, _, tail = self.body.partition(PLACEHOLDER)
        size = len(head) + content.json.size + len(tail)
        fields = {"content-length": str(size), **self.headers}
        if self.media_type is not None:
            fields["content-type"] = self.media_type
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in fields.items()]
        async with aclosing(content.read()) as chunks:
            # Send nothing before the content is known to exist.
            first = await anext(chunks)
            await send({"type": "http.response.start", "status": self.status, "headers": raw})
            await send({"type": "http.response.body", "body": head + first, "more_body": True})
            try:
                async for chunk in chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except StoreUnavailable as error:
                structlog.get_logger().error("a2a.answer_cut", reason=error.reason)
                return
        await send({"type": "http.response.body", "body": tail})


@lru_cache(256)
def _write_lines(media_type: str | None, fields: tuple[tuple[str, str], ...]) -> bytes | None:
    """Header lines without the length; None if the server has to check what is in them."""
    named = {name.lower(): value for name, value in fields}
    if media_type is not None:
        named["content-type"] = media_type
    lines = [f"{name}: {value}" for name, value in named.items()]
    if not all(map(_FIELD.fullmatch, lines)):
        return None
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def compose_error(answer: ErrorAnswer) -> HttpReply:
    """The response of an error envelope, with the headers that its status needs."""
    headers = {"cache-control": "no-store"}
    if answer.http_status in _TRY_LATER:
        headers["retry-after"] = str(RETRY_AFTER_S)
    if answer.http_status == _UNAUTHORIZED:
        headers["www-authenticate"] = 'Bearer realm="passerelle"'
    headers.update({name.lower(): value for name, value in answer.headers.items()})
    return HttpReply(answer.http_status, orjson.dumps(answer.body), JSON, headers)


def compose_missing(detail: str, agents: list[str]) -> HttpReply:
    """The problem for a path that names no agent, with the agents that the caller may use."""
    body: JsonObject = {
        "type": "urn:passerelle:problem:not_found",
        "title": "not found",
        "status": _NOT_FOUND,
        "code": "not_found",
        "detail": detail,
        "agents": [*agents],
    }
    return HttpReply(_NOT_FOUND, orjson.dumps(body), PROBLEM, {"cache-control": "no-store"})

"""``PUT /v1/blobs/{sha256}``: an agent that dials in uploads content before it names it in an artifact."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Final

from starlette.responses import JSONResponse
from starlette.routing import Route

from passerelle.core.errors import Forbidden, InvalidInput, Limited
from passerelle.core.frozen import frozen
from passerelle.core.ports.blobs import UPLOADED
from passerelle.core.principal import AccessScope
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.record import record
from passerelle.gateway.http.bodies import read_bytes
from passerelle.runtime.common.calls import require_scope
from passerelle.store.blobs import is_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from starlette.requests import Request
    from starlette.responses import Response

    from passerelle.core.commands import Authenticator
    from passerelle.core.ports.blobs import Uploads
    from passerelle.core.principal import Principal
    from passerelle.delegation.runs.outputs import OutputPolicy
    from passerelle.gateway.auth.credentials import CredentialReader
    from passerelle.runtime.limits.gate import Gate

PATH: Final = "/v1/blobs/{sha256}"
_AT_ONCE: Final = 8
"""Bodies that one instance holds in memory; further ones wait, and TCP slows their senders down."""
_OF_ONE_AGENT: Final = 2
"""Of these per agent: one whose bodies arrive slowly leaves slots for the others."""
_TYPE_CHARS: Final = 128
_ANY_TYPE: Final = "application/octet-stream"
_QUOTA_RETRY_S: Final = 3_600
_SLOT_RETRY_S: Final = 1


@record
class BlobTaken:
    """``url`` goes into a part of an artifact; it is valid for a day, for this agent."""

    url: str
    sha256: str
    size: int


@frozen
class BlobEdge:
    """Answers agents that dial in, for the names that their credential may serve."""

    uploads: Uploads
    policy: OutputPolicy
    dials_in: Callable[[str], bool]
    authenticator: Authenticator
    reader: CredentialReader
    gate: Gate | None
    _taking: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(_AT_ONCE), repr=False
    )
    _under_way: Counter[str] = field(default_factory=Counter[str], repr=False)

    async def answer(self, request: Request) -> Response:
        """Stores one upload. Repeating it has no further effect."""
        principal = await self.authenticator.authenticate(self.reader.read_scope(request.scope))
        agent = self._find_agent(principal, request.query_params.get("agent", ""))
        sha256 = request.path_params["sha256"]
        if not is_digest(sha256):
            raise InvalidInput("sha256", "is the SHA-256 of the body, in hex")
        media_type = _read_type(request)
        if self.gate is not None:
            await self.gate.enter(principal, slot=False)
        room_bytes = self.policy.upload_bytes
        with self._count(agent):
            async with self._taking:
                content = await _read(request, sha256, self.policy.max_bytes)
                if not await self.uploads.put(agent, sha256, content, media_type, room_bytes):
                    reason = f"an agent may upload {room_bytes} bytes within a day"
                    raise Limited("quota", reason, _QUOTA_RETRY_S)
        taken = BlobTaken(f"{UPLOADED}{sha256}", sha256, len(content))
        return JSONResponse(to_wire(taken), 201, {"Cache-Control": "no-store"})

    @contextmanager
    def _count(self, agent: str) -> Generator[None]:
        if self._under_way[agent] >= _OF_ONE_AGENT:
            reason = f"{_OF_ONE_AGENT} uploads of the agent are in progress, which is the limit"
            raise Limited("concurrency", reason, _SLOT_RETRY_S)
        self._under_way[agent] += 1
        try:
            yield
        finally:
            self._under_way[agent] -= 1
            if not self._under_way[agent]:
                del self._under_way[agent]

    def _find_agent(self, principal: Principal, agent: str) -> str:
        require_scope(principal, (AccessScope.SERVE,))
        if not principal.may_serve(agent):
            raise Forbidden("the name is not granted to this credential", agent=agent)
        if not self.dials_in(agent):
            raise InvalidInput("agent", "no agent of this name dials in")
        return agent


def make_blob_route(edge: BlobEdge) -> Route:
    """The route of the edge."""
    return Route(PATH, edge.answer, methods=["PUT"], name="put_blob")


async def _read(request: Request, sha256: str, limit_bytes: int) -> bytes:
    digest = hashlib.sha256()
    content = await read_bytes(request, limit_bytes, digest.update)
    if digest.hexdigest() != sha256:
        raise InvalidInput("sha256", "is not the SHA-256 of the body")
    return content


def _read_type(request: Request) -> str:
    given = request.headers.get("Content-Type", _ANY_TYPE).strip()
    if not 0 < len(given) <= _TYPE_CHARS or not given.isascii() or not given.isprintable():
        raise InvalidInput("Content-Type", f"is one line of at most {_TYPE_CHARS} characters")
    kind, semicolon, parameters = given.partition(";")
    return f"{kind.lower()}{semicolon}{parameters}"

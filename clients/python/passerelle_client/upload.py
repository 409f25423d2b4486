"""Uploads of a reverse agent: over HTTP, with the credential of its link."""

from __future__ import annotations

import asyncio
import hashlib
import json
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from passerelle.client.items import CallRefused, UnknownOutcome

if TYPE_CHECKING:
    from passerelle.client.dialer import Identity
    from passerelle.core.wire.json import Json, JsonObject

_CHANNEL: Final = "/v1/channel"
_WITHIN_S: Final = 120.0
_CREATED: Final = 201


async def upload(identity: Identity, agent: str, content: bytes, media_type: str) -> str:
    """Uploads content. Returns its address, for the ``url`` of a part. Uploading the same content again is safe.

    Raises:
        CallRefused: the gateway refused it, by its ``code``.
        UnknownOutcome: no response arrived.
    """
    token = identity.token if isinstance(identity.token, str | None) else await identity.token()
    return await asyncio.to_thread(_put, identity, token, agent, content, media_type)


def _put(identity: Identity, token: str | None, agent: str, content: bytes, media_type: str) -> str:
    parts = urlsplit(identity.url)
    path = f"{parts.path.removesuffix(_CHANNEL)}/v1/blobs/{hashlib.sha256(content).hexdigest()}"
    host, port = parts.hostname or "", parts.port
    connection = (
        HTTPSConnection(host, port, timeout=_WITHIN_S, context=identity.tls)
        if parts.scheme == "wss"
        else HTTPConnection(host, port, timeout=_WITHIN_S)
    )
    headers = {"Content-Type": media_type}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    try:
        with suppress(BrokenPipeError, ConnectionResetError):  # a refusing server may close early
            connection.request("PUT", f"{path}?agent={quote(agent, safe='')}", content, headers)
        answer = connection.getresponse()
        status, body = answer.status, answer.read()
    except (OSError, HTTPException) as error:
        raise UnknownOutcome(f"the upload was not answered: {error}") from error
    finally:
        connection.close()
    reply = _read_object(body)
    if status != _CREATED:
        code, detail = reply.get("code", f"http_{status}"), reply.get("detail", "")
        raise CallRefused(str(code), str(detail), None, reply)
    return str(reply["url"])


def _read_object(body: bytes) -> JsonObject:
    try:
        reply: Json = json.loads(body)
    except ValueError:
        return {}
    return reply if isinstance(reply, dict) else {}

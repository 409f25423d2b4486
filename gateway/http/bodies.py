"""Reads the body of a request to the gateway's own routes: JSON, within a limit. All of them use this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.errors import ContentTypeNotSupported, TooLarge
from passerelle.core.wire.headers import refuse_encoding

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

JSON: Final = "application/json"
BODY_LIMIT_BYTES: Final = 1_048_576


async def read_json(request: Request, limit_bytes: int = BODY_LIMIT_BYTES) -> bytes:
    """The body of a request with the JSON content type, not compressed; an empty one needs no type.

    Checks the type before it reads. This also keeps foreign web pages out: an HTML form cannot send that type.

    Raises:
        ContentTypeNotSupported: it has another type, or a content encoding.
        TooLarge: it does not end within the limit; the rest is discarded.
    """
    media_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if media_type and media_type != JSON:
        raise ContentTypeNotSupported(media_type)
    refuse_encoding(media_type, request.headers.get("Content-Encoding", ""))
    content = await read_bytes(request, limit_bytes)
    if content and not media_type:
        raise ContentTypeNotSupported(media_type)
    return content


async def read_bytes(
    request: Request, limit_bytes: int, note: Callable[[bytes], object] | None = None
) -> bytes:
    """A body of any type; calls ``note`` with each piece.

    Raises:
        TooLarge: it does not end within the limit; a larger announced length is rejected at once.
    """
    announced = request.headers.get("Content-Length", "")
    if announced.isdecimal() and int(announced[:20]) > limit_bytes:
        raise TooLarge("the body", limit_bytes)
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > limit_bytes:
            raise TooLarge("the body", limit_bytes)
        if note is not None:
            note(piece)
    return bytes(content)

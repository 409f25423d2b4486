"""The body of a request to a route of the gateway's own: JSON, within a limit. Every route reads it here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.errors import ContentTypeNotSupported, TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

JSON: Final = "application/json"
BODY_LIMIT_BYTES: Final = 1_048_576


async def read_json(request: Request, limit_bytes: int = BODY_LIMIT_BYTES) -> bytes:
    """A body that says that it is JSON; one that is empty need not say it.

    The type is judged before anything is read. It also keeps web pages of others out: a form cannot have it.

    Raises:
        ContentTypeNotSupported: it says something else.
        TooLarge: it does not end within the limit; the rest is not kept.
    """
    media_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if media_type and media_type != JSON:
        raise ContentTypeNotSupported(media_type)
    content = await read_bytes(request, limit_bytes)
    if content and not media_type:
        raise ContentTypeNotSupported(media_type)
    return content


async def read_bytes(
    request: Request, limit_bytes: int, note: Callable[[bytes], object] | None = None
) -> bytes:
    """A body of any type; ``note`` is told each piece as it comes.

    Raises:
        TooLarge: it does not end within the limit; what is announced as larger is not begun.
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

"""Header fields of every binding: a single-value field may occur once, and lines of a list are joined.

A proxy, a guard and a program may each pick another line of a repeated field, so it is refused (RFC 9112 section 3.2
for ``Host``). A list may come in several lines (RFC 9110 section 5.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.errors import ContentTypeNotSupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SINGLE: Final = frozenset(
    {
        "a2a-version",
        "authorization",
        "content-length",
        "content-type",
        "host",
        "idempotency-key",
        "if-match",
        "last-event-id",
        "origin",
        "passerelle-device",
        "traceparent",
        "x-api-key",
    }
)
"""Single-value fields, in lower case."""
REASON: Final = "is given more than once"
_IDENTITY: Final = "identity"


def find_repeated(names: Sequence[bytes] | Sequence[str]) -> str | None:
    """The first single-value field with several lines."""
    if len(set(names)) == len(names):
        return None
    seen: set[str] = set()
    for name in names:
        text = (name.decode("latin-1") if isinstance(name, bytes) else name).lower()
        if text in seen and text in SINGLE:
            return text
        seen.add(text)
    return None


def join_fields(pairs: Iterable[tuple[str, str]], proxied: str | None = None) -> dict[str, str]:
    """Fields by lower-case name; lines of the same name are joined to one list, in order.

    Of ``proxied`` only the last line counts: the nearest proxy appends it after the client's.
    """
    fields: dict[str, str] = {}
    for name, value in pairs:
        key = name.lower()
        is_list = key in fields and key != proxied
        fields[key] = f"{fields[key]}, {value}" if is_list else value
    return fields


def read_fields(pairs: Sequence[tuple[bytes, bytes]], proxied: str | None = None) -> dict[str, str]:
    """The same for ASGI headers, whose names are in lower case."""
    fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
    if len(fields) == len(pairs):
        return fields
    texts = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs)
    return join_fields(texts, proxied)


def refuse_encoding(media_type: str, encoding: str) -> None:
    """Checks ``Content-Encoding``: bodies are read as they come (RFC 9110 section 8.4).

    Raises:
        ContentTypeNotSupported: it is not ``identity``.
    """
    if encoding and encoding.strip().lower() != _IDENTITY:
        raise ContentTypeNotSupported(media_type, encoding)

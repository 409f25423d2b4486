"""The fields of a head, over each binding: one with a single value is given once, and lines of a list are joined.

A field whose lines say different things is read differently by a proxy, a guard and a program behind them, so it is
refused (RFC 9112 section 3.2 for ``Host``). A list may come in several lines (RFC 9110 section 5.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
"""Fields with one value, in lower case."""
REASON: Final = "is given more than once"


def find_repeated(names: Sequence[bytes] | Sequence[str]) -> str | None:
    """The first of the fields with one value that has several lines."""
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
    """Fields by name in lower case; lines of the same name are one list, in their order.

    Of ``proxied`` the last line counts: the nearest proxy adds it behind what the caller says of itself.
    """
    fields: dict[str, str] = {}
    for name, value in pairs:
        key = name.lower()
        is_list = key in fields and key != proxied
        fields[key] = f"{fields[key]}, {value}" if is_list else value
    return fields


def read_fields(pairs: Sequence[tuple[bytes, bytes]], proxied: str | None = None) -> dict[str, str]:
    """The same for a head of ASGI, whose names are in lower case."""
    fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
    if len(fields) == len(pairs):
        return fields
    texts = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs)
    return join_fields(texts, proxied)

"""Replies of the server as Python values."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from passerelle.store.connection import Reply


def read_scores(reply: Reply) -> list[tuple[str, int]]:
    """Members and scores of a ZRANGE WITHSCORES."""
    flat = cast("list[bytes]", reply)
    return [
        (member.decode(), int(float(score)))
        for member, score in zip(flat[::2], flat[1::2], strict=True)
    ]


def read_hash(reply: Reply) -> dict[str, bytes]:
    """Fields of an HGETALL."""
    flat = cast("list[bytes]", reply)
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}

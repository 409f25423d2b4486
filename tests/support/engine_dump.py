"""The content of an engine in readable form, since DUMP compresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from tests.support.engine import ask, ask_all

_READS: Final = {
    b"string": ("GET",),
    b"hash": ("HGETALL",),
    b"stream": ("XRANGE", "-", "+"),
    b"zset": ("ZRANGE", "0", "-1"),
    b"set": ("SMEMBERS",),
}


def read_keys(url: str, keys: Sequence[str]) -> list[bytes]:
    """The name and content of each key; an expired key yields nothing."""
    kinds = cast("list[bytes]", ask_all(url, (("TYPE", key) for key in keys)))
    there = [(key, *_READS[kind]) for key, kind in zip(keys, kinds, strict=True) if kind != b"none"]
    stored = ask_all(url, ((verb, key, *rest) for key, verb, *rest in there))
    return [
        key.encode() + b" " + repr(one).encode()
        for (key, *_), one in zip(there, stored, strict=True)
        if one
    ]


def dump_engine(url: str) -> bytes:
    """All keys with their content."""
    keys = cast("list[bytes]", ask(url, "KEYS", "*"))
    return b"\n".join(read_keys(url, [key.decode() for key in keys]))

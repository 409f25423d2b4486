"""What an engine has, readable: DUMP compresses."""

from __future__ import annotations

from typing import Final, cast

from tests.support.engine import ask

_READS: Final = {
    b"string": ("GET",),
    b"hash": ("HGETALL",),
    b"stream": ("XRANGE", "-", "+"),
    b"zset": ("ZRANGE", "0", "-1"),
    b"set": ("SMEMBERS",),
}


def read_key(url: str, key: str) -> bytes:
    """The name of a key and all that it holds; nothing of one that has expired."""
    kind = cast("bytes", ask(url, "TYPE", key))
    if kind == b"none":
        return b""
    verb, *rest = _READS[kind]
    return key.encode() + b" " + repr(ask(url, verb, key, *rest)).encode()


def dump_engine(url: str) -> bytes:
    """All keys with what they hold."""
    keys = cast("list[bytes]", ask(url, "KEYS", "*"))
    return b"\n".join(read_key(url, key.decode()) for key in keys)

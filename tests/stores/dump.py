"""A whole store as text: every key by its type, and the content beside it. Loading it gives the same store."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path
from typing import Final, cast

import orjson

from passerelle.core.wire.json import JsonObject
from passerelle.store.keys import SCHEMA
from tests.support.engine import ask

FOLDER: Final = Path(__file__).parent


STORES: Final = ("schema-1", "schema-2", "schema-3-first", f"schema-{SCHEMA}")
"""One for each schema number, and for 3 the one of before sessions left memory. Number 1 had many forms, and was in no
release: this is the last but some hours."""


def find_dump(name: str) -> Path:
    """The file with one of the ``STORES``."""
    return FOLDER / f"{name}.json.gz"


def write_dump(url: str, blobs: Path, path: Path) -> None:
    """Writes the store at ``url`` and the content in ``blobs``; the same store gives the same bytes."""
    names = cast("list[bytes]", ask(url, "KEYS", "*"))
    kept = sorted(name for name in names if ask(url, "PTTL", name) == -1)
    files = sorted(one for one in blobs.rglob("*") if one.is_file())
    dump = {
        "keys": {_text(name): _read(url, name) for name in kept},
        "blobs": {f"{one.relative_to(blobs)}": _pack(one.read_bytes()) for one in files},
    }
    path.write_bytes(gzip.compress(orjson.dumps(dump), mtime=0))


def load_dump(url: str, blobs: Path, path: Path) -> None:
    """Fills an empty store and an empty folder."""
    dump = cast("dict[str, JsonObject]", orjson.loads(gzip.decompress(path.read_bytes())))
    for name, (kind, said) in cast("dict[str, list[object]]", dump["keys"]).items():
        _write(url, name.encode("latin-1"), str(kind), cast("list[object]", said))
    for name, content in dump["blobs"].items():
        file = blobs / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(str(content)))


def _read(url: str, name: bytes) -> list[object]:
    kind = cast("bytes", ask(url, "TYPE", name)).decode()
    match kind:
        case "string":
            said: object = [ask(url, "GET", name)]
        case "hash":
            said = ask(url, "HGETALL", name)
        case "list":
            said = ask(url, "LRANGE", name, 0, -1)
        case "set":
            said = sorted(cast("list[bytes]", ask(url, "SMEMBERS", name)))
        case "zset":
            said = ask(url, "ZRANGE", name, 0, -1, "WITHSCORES")
        case _:
            said = ask(url, "XRANGE", name, "-", "+")
    return [kind, _to_text(said)]


def _write(url: str, name: bytes, kind: str, said: list[object]) -> None:
    values = cast("list[bytes]", _to_bytes(said))
    match kind:
        case "string":
            ask(url, "SET", name, *values)
        case "hash":
            ask(url, "HSET", name, *values)
        case "list":
            ask(url, "RPUSH", name, *values)
        case "set":
            ask(url, "SADD", name, *values)
        case "zset":
            pairs = cast("list[tuple[bytes, float]]", values)
            ask(
                url, "ZADD", name, *(one for member, score in pairs for one in (str(score), member))
            )
        case _:
            for entry_id, members in cast("list[tuple[bytes, list[bytes]]]", values):
                ask(url, "XADD", name, entry_id, *members)


def _to_text(value: object) -> object:
    if isinstance(value, dict):
        value = [one for pair in cast("dict[object, object]", value).items() for one in pair]
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, list | tuple):
        return [_to_text(one) for one in cast("list[object]", value)]
    return value


def _to_bytes(value: object) -> object:
    if isinstance(value, str):
        return value.encode("latin-1")
    if isinstance(value, list):
        return [_to_bytes(one) for one in cast("list[object]", value)]
    return value


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _pack(content: bytes) -> str:
    return base64.b64encode(content).decode()

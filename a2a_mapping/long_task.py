"""Tasks and artifacts that are large, written piece by piece: the same bytes as in one go, and never all of them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, cast

import orjson

from passerelle.a2a_mapping.members import object_at, objects_at
from passerelle.core.wire.long_json import Elsewhere, LongJson, Slice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.core.wire.long_json import Piece


def measure_artifact(artifact: JsonObject) -> int:
    """Bytes of what the parts of an artifact hold; ids, names and the JSON around them do not count."""
    parts = artifact.get("parts")
    return sum(map(_measure_part, parts)) if isinstance(parts, list) else 0


def _measure_part(part: Json) -> int:
    if not isinstance(part, dict):
        return 0
    size = 0
    for name in ("text", "raw", "url"):
        held = part.get(name)
        if isinstance(held, str):
            size += len(held) if held.isascii() else len(held.encode(errors="surrogatepass"))
    if "data" in part:
        size += len(orjson.dumps(part["data"]))
    return size


def write_artifact(artifact: JsonObject) -> Iterator[bytes]:
    """An artifact, a part at a time."""
    return _keep_bytes(_write_artifact(artifact))


def write_task(task: JsonObject) -> Iterator[bytes]:
    """A Task, a part of an artifact at a time."""
    return _keep_bytes(_write_object(task, "artifacts", _write_artifacts))


def write_slim_task(task: JsonObject) -> LongJson:
    """A Task of which parts are elsewhere."""
    pieces: list[Piece] = []
    held = bytearray()
    for piece in _write_object(task, "artifacts", _write_artifacts):
        if isinstance(piece, bytes):
            held += piece
        else:
            pieces += (bytes(held), piece)
            held.clear()
    return LongJson((*pieces, bytes(held)))


def slim_frame(frame: JsonObject, content: bytes, blob: str) -> JsonObject:
    """A piece of an artifact without its parts, which stay in the ``blob`` whose ``content`` the frame is."""
    event = object_at(frame, "artifactUpdate")
    artifact = object_at(event, "artifact")
    packed = orjson.dumps(artifact.get("parts"))[1:-1]
    start = content.find(packed)
    if not packed or start < 0 or not objects_at(artifact, "parts"):
        return frame
    # Wherever the same bytes stand they are the same parts.
    piece = Slice(blob, start, len(packed), hashlib.sha256(packed).hexdigest())
    slim: JsonObject = {**artifact, "parts": [cast("JsonObject", Elsewhere(piece))]}
    return {"artifactUpdate": {**event, "artifact": slim}}


def is_slim(task: JsonObject) -> bool:
    """Whether parts of it are elsewhere."""
    return any(
        isinstance(part, Elsewhere)
        for artifact in objects_at(task, "artifacts")
        for part in objects_at(artifact, "parts")
    )


def _keep_bytes(pieces: Iterator[Piece]) -> Iterator[bytes]:
    for piece in pieces:
        if not isinstance(piece, bytes):
            raise TypeError("parts of it are elsewhere")
        yield piece


def _write_artifact(artifact: JsonObject) -> Iterator[Piece]:
    return _write_object(artifact, "parts", _write_each)


def _write_artifacts(artifacts: Sequence[Json]) -> Iterator[Piece]:
    for number, artifact in enumerate(artifacts):
        if number:
            yield b","
        if isinstance(artifact, dict):
            yield from _write_artifact(artifact)
        else:
            yield orjson.dumps(artifact)


def _write_each(values: Sequence[Json]) -> Iterator[Piece]:
    for number, value in enumerate(values):
        if number:
            yield b","
        yield value.slice if isinstance(value, Elsewhere) else orjson.dumps(value)


def _write_object(
    value: Mapping[str, Json], long: str, write: Callable[[Sequence[Json]], Iterator[Piece]]
) -> Iterator[Piece]:
    """An object whose member ``long`` is a list that is written by itself."""
    yield b"{"
    for number, (name, member) in enumerate(value.items()):
        if number:
            yield b","
        yield orjson.dumps(name)
        yield b":"
        if name == long and isinstance(member, list):
            yield b"["
            yield from write(member)
            yield b"]"
        else:
            yield orjson.dumps(member)
    yield b"}"

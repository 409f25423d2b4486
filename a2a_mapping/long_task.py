"""Large tasks and artifacts: encodes them piecewise, and makes previews of referenced content.

The pieces have the same bytes as one whole encoding, which is never held in memory. A preview is the beginning of a
content, to decide whether to fetch it (PO-9); making one is pure and total.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import orjson

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.wire.long_json import LongJson, Slice, SlicedMembers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.core.wire.long_json import Piece


def measure_artifact(artifact: JsonObject) -> int:
    """Bytes of the content of an artifact's parts, without ids, names and JSON syntax."""
    parts = artifact.get("parts")
    return sum(map(measure_part, parts)) if isinstance(parts, list) else 0


def measure_part(part: Json) -> int:
    """Bytes of the content of a part."""
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
    """Encodes an artifact, part by part."""
    return _keep_bytes(_write_artifact(artifact))


def write_task(task: JsonObject) -> Iterator[bytes]:
    """Encodes a Task, by parts of artifacts and messages of the history."""
    return _keep_bytes(_write_object(task, _LISTS))


def write_slim_task(task: JsonObject) -> LongJson:
    """Encodes a Task of which some parts are in the blob store."""
    pieces: list[Piece] = []
    held = bytearray()
    for piece in _write_object(task, _LISTS):
        if isinstance(piece, bytes):
            held += piece
        else:
            pieces += (bytes(held), piece)
            held.clear()
    return LongJson((*pieces, bytes(held)))


def slim_frame(frame: JsonObject, content: bytes, blob: str) -> JsonObject:
    """An artifact frame without its parts, which stay in the ``blob`` with the frame's bytes, ``content``."""
    event = object_at(frame, "artifactUpdate")
    artifact = object_at(event, "artifact")
    packed = orjson.dumps(artifact.get("parts"))[1:-1]
    start = content.find(packed)
    if not packed or start < 0 or not objects_at(artifact, "parts"):
        return frame
    # Equal bytes are equal parts, wherever they are found.
    piece = Slice(blob, start, len(packed), hashlib.sha256(packed).hexdigest())
    slim: JsonObject = {**artifact, "parts": [cast("JsonObject", SlicedMembers(piece))]}
    return {"artifactUpdate": {**event, "artifact": slim}}


def is_slim(task: JsonObject) -> bool:
    """Whether some of its parts are in the blob store."""
    return any(
        isinstance(part, SlicedMembers)
        for artifact in objects_at(task, "artifacts")
        for part in objects_at(artifact, "parts")
    )


def _keep_bytes(pieces: Iterator[Piece]) -> Iterator[bytes]:
    for piece in pieces:
        if not isinstance(piece, bytes):
            raise TypeError("some parts are in the blob store")
        yield piece


def _write_artifact(artifact: JsonObject) -> Iterator[Piece]:
    return _write_object(artifact, {"parts": _write_each})


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
        yield value.slice if isinstance(value, SlicedMembers) else orjson.dumps(value)


_Write: TypeAlias = "Callable[[Sequence[Json]], Iterator[Piece]]"
_LISTS: Final[Mapping[str, _Write]] = {"artifacts": _write_artifacts, "history": _write_each}
"""The long lists of a Task."""


def _write_object(value: Mapping[str, Json], lists: Mapping[str, _Write]) -> Iterator[Piece]:
    """Encodes an object; the members in ``lists`` are encoded item by item."""
    yield b"{"
    for number, (name, member) in enumerate(value.items()):
        if number:
            yield b","
        yield orjson.dumps(name)
        yield b":"
        if name in lists and isinstance(member, list):
            yield b"["
            yield from lists[name](member)
            yield b"]"
        else:
            yield orjson.dumps(member)
    yield b"}"


PREVIEW_CHARS: Final = 200


def preview_frame(frame: JsonObject) -> str:
    """Preview of a StreamResponse or a bare Message: its text, else its content."""
    task = object_at(frame, "task")
    holders = (
        object_at(object_at(frame, "artifactUpdate"), "artifact"),
        _status_message(object_at(frame, "statusUpdate")),
        _status_message(task),
        *objects_at(task, "artifacts")[:1],
        object_at(frame, "message"),
        frame,
    )
    return next(filter(None, (preview_parts(objects_at(one, "parts")) for one in holders)), "")


def preview_parts(parts: list[JsonObject]) -> str:
    """The beginning of the first text, else a short form of the first part."""
    shown = next((part for part in parts if text_at(part, "text")), parts[0] if parts else {})
    if text_at(shown, "text"):
        return _cut(text_at(shown, "text"))
    if "data" in shown:
        return _cut(orjson.dumps(shown["data"]).decode())
    name = text_at(shown, "filename") or text_at(shown, "mediaType")
    if "raw" in shown:
        size = len(text_at(shown, "raw")) * 3 // 4
        return _cut(f"{name or 'a file'}, {size} bytes")
    # A query may contain an access key.
    return _cut(text_at(shown, "url").partition("?")[0] or name)


def _status_message(holder: JsonObject) -> JsonObject:
    return object_at(object_at(holder, "status"), "message")


def _cut(text: str) -> str:
    return text[:PREVIEW_CHARS]

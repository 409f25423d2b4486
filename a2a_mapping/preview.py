"""The beginning of a content that stands elsewhere, for those who decide whether to fetch it (PO-9). Pure and total."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.members import object_at, objects_at, text_at

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject

PREVIEW_CHARS: Final = 200


def preview_frame(frame: JsonObject) -> str:
    """Of a StreamResponse, or of a bare Message: its words, else what it brings."""
    task = object_at(frame, "task")
    holders = (
        object_at(object_at(frame, "artifactUpdate"), "artifact"),
        _say(object_at(frame, "statusUpdate")),
        _say(task),
        *objects_at(task, "artifacts")[:1],
        object_at(frame, "message"),
        frame,
    )
    return next(filter(None, (preview_parts(objects_at(one, "parts")) for one in holders)), "")


def preview_parts(parts: list[JsonObject]) -> str:
    """The first words of a text, else the first part in brief."""
    shown = next((part for part in parts if text_at(part, "text")), parts[0] if parts else {})
    if text_at(shown, "text"):
        return _cut(text_at(shown, "text"))
    if "data" in shown:
        return _cut(orjson.dumps(shown["data"]).decode())
    name = text_at(shown, "filename") or text_at(shown, "mediaType")
    if "raw" in shown:
        size = len(text_at(shown, "raw")) * 3 // 4
        return _cut(f"{name or 'a file'}, {size} bytes")
    # A query may hold the key to what the address leads to.
    return _cut(text_at(shown, "url").partition("?")[0] or name)


def _say(holder: JsonObject) -> JsonObject:
    return object_at(object_at(holder, "status"), "message")


def _cut(text: str) -> str:
    return text[:PREVIEW_CHARS]

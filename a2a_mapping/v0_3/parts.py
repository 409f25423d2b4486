"""Parts: the text, file and data parts of 0.3, and the parts of 1.0 with one content member."""

from __future__ import annotations

from typing import Final

from passerelle.a2a_mapping.members import object_at
from passerelle.a2a_mapping.v0_3.forms import Form, rename
from passerelle.core.wire.json import Json, JsonObject

_WRAPPED: Final = "data_part_compat"
"""Marks data that is no object: 0.3 has objects only, so a value stands as ``{"value": …}`` (as a2a-sdk does it)."""
_FILE_NAMES: Final = {
    "file_with_bytes": "fileWithBytes",
    "file_with_uri": "fileWithUri",
    "mime_type": "mimeType",
}
_CONTENT: Final = {"fileWithBytes": "raw", "bytes": "raw", "fileWithUri": "url", "uri": "url"}
_LABELS: Final = {"mimeType": "mediaType", "name": "filename"}
_FILE: Final = {
    Form.KIND: {"raw": "bytes", "url": "uri"},
    Form.PROTO: {"raw": "fileWithBytes", "url": "fileWithUri"},
}


def read_part(part: JsonObject, form: Form) -> JsonObject:
    """A 1.0 part; one without ``kind`` is read in ``form``."""
    read = rename(part, {})
    file = part.get("file")
    if isinstance(file, dict):
        del read["file"]
        return _read_file(rename(file, _FILE_NAMES)) | read
    if "data" not in part:
        return read
    data = part["data"]
    if form is Form.PROTO and "kind" not in part and isinstance(data, dict):
        data = data.get("data")
    metadata = object_at(part, "metadata")
    if metadata.get(_WRAPPED) is True and isinstance(data, dict):
        data = data.get("value")
        metadata = {name: value for name, value in metadata.items() if name != _WRAPPED}
        read = {name: value for name, value in read.items() if name != "metadata"}
        read |= {"metadata": metadata} if metadata else {}
    return {**read, "data": data}


def write_part(part: JsonObject, form: Form) -> JsonObject:
    """A part of 0.3."""
    rest: JsonObject = {"metadata": part["metadata"]} if part.get("metadata") else {}
    if "data" in part:
        return _write_data(part["data"], rest, form)
    for member in ("raw", "url"):
        content = part.get(member)
        if content is not None:
            kind: JsonObject = {"kind": "file"} if form is Form.KIND else {}
            return {**kind, "file": _write_file(part, member, form), **rest}
    text = part.get("text", "")
    return {"kind": "text", "text": text, **rest} if form is Form.KIND else {"text": text, **rest}


def _read_file(file: JsonObject) -> JsonObject:
    contents = [(wire, file[name]) for name, wire in _CONTENT.items() if name in file]
    # ProtoJSON of some writers names the other one too, empty.
    contents.sort(key=lambda content: not content[1])
    read: JsonObject = dict(contents[:1])
    for name, wire in _LABELS.items():
        if file.get(name):
            read[wire] = file[name]
    return read


def _write_file(part: JsonObject, member: str, form: Form) -> JsonObject:
    file: JsonObject = {_FILE[form][member]: part[member]}
    for name, wire in _LABELS.items():
        if part.get(wire):
            file[name] = part[wire]
    return file


def _write_data(data: Json, rest: JsonObject, form: Form) -> JsonObject:
    if not isinstance(data, dict):
        data = {"value": data}
        rest = {"metadata": {**object_at(rest, "metadata"), _WRAPPED: True}}
    if form is Form.KIND:
        return {"kind": "data", "data": data, **rest}
    return {"data": {"data": data}, **rest}

"""Draws what stands in the documents about the frames of the channel."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any, Final

from passerelle.channels.asyncapi import render_frame_schema
from passerelle.protocol.wire import CLIENT_CODECS, SERVER_CODECS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.protocol.frame_codec import FrameCodec, Member

_INTRODUCTION: Final = """# Channel frames

Generated from [protocol/frames.py](../../protocol/frames.py) by `make generate`. [channels.md](channels.md) has the
rules, [channel-frames.schema.json](channel-frames.schema.json) the JSON Schema, and a gateway serves
`/v1/asyncapi.json`. A member in italics is optional.
"""


def render_frames() -> str:
    """The whole text of ``docs/protocol/channel-frames.md``."""
    lines = [_INTRODUCTION, "## What a client sends", ""]
    for codec in CLIENT_CODECS.values():
        lines += _draw_frame(codec)
    lines += ["## What the gateway sends", ""]
    for codec in SERVER_CODECS.values():
        lines += _draw_frame(codec)
    return "\n".join(lines).rstrip() + "\n"


def render_schema() -> str:
    """``docs/protocol/channel-frames.schema.json``."""
    return json.dumps(render_frame_schema(), indent=1, ensure_ascii=False) + "\n"


def _draw_frame(codec: FrameCodec[Any]) -> Iterator[str]:
    yield f"### `{codec.kind.TAG}`"
    yield ""
    yield (inspect.getdoc(codec.kind) or "").replace("``", "`")
    yield ""
    yield "| member | kind | what it says |"
    yield "|---|---|---|"
    for name, value in codec.kind.FIXED.items():
        yield f"| `{name}` | `{json.dumps(value)}` | always |"
    yield from map(_draw_member, codec.members)
    yield ""


def _draw_member(member: Member) -> str:
    name = f"`{member.wire.name}`"
    shown = name if member.needed else f"*{name}*"
    return f"| {shown} | {_describe(member.wire.kind.make_schema())} | {member.wire.about} |"


def _describe(schema: dict[str, Any]) -> str:
    match schema:
        case {"enum": [*words]}:
            return ", ".join(f"`{word}`" for word in words)
        case {"pattern": _}:
            return "cursor"
        case {"type": "string", "maxLength": most}:
            return f"text, at most {most}"
        case {"type": "string"}:
            return "text"
        case {"type": "integer", "minimum": least}:
            return f"integer from {least}"
        case {"type": "object", "additionalProperties": {"pattern": _}}:
            return "cursor by stream"
        case {"type": "object", "additionalProperties": _}:
            return "integer by name"
        case {"type": "array", "items": {"title": title}}:
            return f"list of {title}"
        case {"type": "array", "items": {"type": kind}}:
            return f"list of {'texts' if kind == 'string' else 'objects'}"
        case _:
            return str(schema["type"])

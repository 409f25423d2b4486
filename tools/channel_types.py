"""Draws the TypeScript types of the channel's frames for the JavaScript client."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from passerelle.protocol.cursor import GapReason
from passerelle.protocol.wire import CLIENT_CODECS, SERVER_CODECS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from passerelle.protocol.frame_codec import FrameCodec

_INTRODUCTION: Final = """// Drawn from protocol/frames.py; `make generate` writes it.

export type JsonObject = { [name: string]: any };
"""


def render_types() -> str:
    """The whole text of ``clients/js/src/frames.d.ts``."""
    lines = [_INTRODUCTION]
    lines += [f"export type GapReason = {_unite(reason.value for reason in GapReason)};", ""]
    for codec in (*CLIENT_CODECS.values(), *SERVER_CODECS.values()):
        lines += _draw_frame(codec)
    lines.append(_draw_union("ClientFrame", CLIENT_CODECS))
    lines.append(_draw_union("ServerFrame", SERVER_CODECS))
    return "\n".join(lines)


def _draw_frame(codec: FrameCodec[Any]) -> Iterator[str]:
    about = (inspect.getdoc(codec.kind) or "").replace("``", "`")
    yield f"/** {about} */"
    yield f"export interface {codec.kind.__name__} {{"
    yield f'  t: "{codec.kind.TAG}";'
    for name, value in codec.kind.FIXED.items():
        yield f"  {name}: {str(value).lower()};"
    for member in codec.members:
        if member.wire.about:
            yield f"  /** {member.wire.about} */"
        mark = "" if member.needed else "?"
        yield f"  {member.wire.name}{mark}: {_spell(member.wire.kind.make_schema())};"
    yield "}"
    yield ""


def _spell(schema: Mapping[str, Any]) -> str:
    match schema:
        case {"enum": [*words]}:
            return _unite(words)
        case {"type": "string"}:
            return "string"
        case {"type": "integer" | "number"}:
            return "number"
        case {"type": "boolean"}:
            return "boolean"
        case {"type": "object", "additionalProperties": values}:
            return f"Record<string, {_spell(values)}>"
        case {"type": "array", "items": {"title": title}}:
            return f'Omit<{title}, "t">[]'
        case {"type": "array", "items": items}:
            return f"{_spell(items)}[]"
        case _:
            return "JsonObject"


def _unite(words: Any) -> str:  # noqa: ANN401 - words of a schema, or of an enumeration
    return " | ".join(f'"{word}"' for word in sorted(words))


def _draw_union(name: str, codecs: Mapping[str, FrameCodec[Any]]) -> str:
    kinds = "".join(f"\n  | {codec.kind.__name__}" for codec in codecs.values())
    return f"export type {name} ={kinds};\n"

"""Draws the list of settings from their JSON Schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, cast

from passerelle.core.wire.json import Json, JsonObject
from passerelle.gateway.settings.source import render_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

_INTRODUCTION: Final = """# Settings

Generated from the models in `gateway/settings/model.py` by `make generate`. The JSON Schema for editors
is [gateway/settings.schema.json](../../gateway/settings.schema.json).

Flags override the environment, the environment overrides the file. The file is that of `--config`, else of
`PASSERELLE_CONFIG`, else `passerelle.yaml` in the working directory. A variable is `PASSERELLE_` and the name in
uppercase, with two underscores between the parts: `PASSERELLE_PORT`, `PASSERELLE_CHANNELS__HEARTBEAT`. Lists in a
variable are YAML or JSON. A duration consists of integers with units: `250ms`, `10s`, `2m`, `1h30m`, `7d`.

An unknown key is an error that names the nearest known one. `passerelle check CONFIG` lists all errors.
"""
_MANY: Final = {"array": "[]", "object": ".NAME"}
_SCALARS: Final = {"string": "text", "integer": "number", "boolean": "yes or no"}


def render_settings() -> str:
    """The whole text of ``docs/reference/settings.md``."""
    schema = cast("JsonObject", json.loads(render_schema()))
    definitions = cast("dict[str, JsonObject]", schema["$defs"])
    parts = [_INTRODUCTION, *_render_section("Top level", schema, definitions)]
    for heading, name in _list_sections("", schema, definitions):
        parts += _render_section(heading, definitions[name], definitions)
    return "\n".join(parts)


def _list_sections(
    prefix: str, schema: JsonObject, definitions: dict[str, JsonObject]
) -> Iterator[tuple[str, str]]:
    for name, member in _properties(schema).items():
        below = _find_section(member)
        if below is None or "properties" not in definitions[below]:
            continue
        heading = f"{prefix}{name}{_MANY.get(str(member.get('type')), '')}"
        yield heading, below
        yield from _list_sections(f"{heading}.", definitions[below], definitions)


def _render_section(
    heading: str, schema: JsonObject, definitions: dict[str, JsonObject]
) -> Iterator[str]:
    title = heading if heading == "Top level" else f"`{heading}`"
    yield from (f"## {title}", "")
    if heading != "Top level":
        yield from (_tidy(schema.get("description")), "")
    yield from ("| setting | kind | default | |", "|---|---|---|---|")
    required = cast("list[Json]", schema.get("required", []))
    for name, member in _properties(schema).items():
        default = "required" if name in required else _show_default(member)
        meaning = _tidy(member.get("description"))
        yield f"| `{name}` | {_show_kind(member, definitions)} | {default} | {meaning} |"
    yield ""


def _show_kind(member: JsonObject, definitions: dict[str, JsonObject]) -> str:
    options = cast("list[JsonObject]", member.get("anyOf", []))
    chosen = next((option for option in options if option.get("type") != "null"), member)
    if chosen.get("type") == "array":
        return f"list of {_show_kind(cast('JsonObject', chosen.get('items', {})), definitions)}"
    reference = chosen.get("$ref")
    if isinstance(reference, str):
        target = definitions[reference.rpartition("/")[2]]
        return "section" if "properties" in target else _show_kind(target, definitions)
    words = chosen.get("enum")
    if isinstance(words, list):
        return ", ".join(f"`{word}`" for word in words)
    if "d|h|ms|m|s" in str(chosen.get("pattern", "")):
        return "duration"
    return _SCALARS.get(str(chosen.get("type")), "text")


def _show_default(member: JsonObject) -> str:
    default = member.get("default")
    if default is None or default in ([], {}) or isinstance(default, dict):
        return ""
    if isinstance(default, list):
        return ", ".join(f"`{item}`" for item in default)
    return f"`{default}`"


def _find_section(member: JsonObject) -> str | None:
    options = cast("list[JsonObject]", member.get("anyOf", []))
    inner = member.get("items") or member.get("additionalProperties")
    items = inner if isinstance(inner, dict) else {}
    for place in (member, items, *options):
        reference = place.get("$ref")
        if isinstance(reference, str):
            return reference.rpartition("/")[2]
    return None


def _properties(schema: JsonObject) -> dict[str, JsonObject]:
    return cast("dict[str, JsonObject]", schema.get("properties", {}))


def _tidy(text: Json) -> str:
    pieces = str(text or "").replace("``", "`").replace("|", "\\|").split("`")
    # Outside of code a word in angle brackets would be read as HTML.
    pieces[::2] = [piece.replace("<", "&lt;") for piece in pieces[::2]]
    return "`".join(pieces)

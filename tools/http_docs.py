"""Draws the reference of ``/v1`` from the table that serves it and from the published OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from passerelle.gateway.http.openapi import render_openapi

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import JsonObject

_INTRODUCTION: Final = """# HTTP API

Generated from the code by `make generate`. A gateway serves the same as OpenAPI 3.1 at `/v1/openapi.json`, with
all schemas.

- Requests have a bearer token: `Authorization: Bearer …`. Each call needs one of the scopes in its row.
- A request that changes something may have an `Idempotency-Key`: repeated with the same key, it is executed once.
- Lists take `pageSize` and `pageToken`. `nextPageToken` of the response is the `pageToken` of the next page; on the
  last page it is empty.
- Errors are `application/problem+json` (RFC 9457). `code` is stable ([error codes](../operate/error-codes.md));
  `field` and `reason` describe the invalid member.

Members with an asterisk are required. Deprecated members are omitted.
"""
_TITLES: Final = {
    "tasks:bulk": "tasks",
    "turns": "turns: messages to agents",
    "archive": "archive: archived sessions",
}


def render_http() -> str:
    """The whole text of ``docs/reference/http-api.md``."""
    document = render_openapi()
    paths = cast("dict[str, dict[str, JsonObject]]", document["paths"])
    groups: dict[str, list[str]] = {}
    for path, item in paths.items():
        name = path.split("/")[2]
        rows = groups.setdefault(_TITLES.get(name, name), [])
        rows += [_render(method, path, call) for method, call in item.items()]
    return "\n".join([_INTRODUCTION, *(line for one in groups.items() for line in _section(*one))])


def _section(name: str, rows: list[str]) -> Iterator[str]:
    yield from (f"## {name}", "", "| call | what it does | takes |", "|---|---|---|", *rows, "")


def _render(method: str, path: str, call: JsonObject) -> str:
    summary = str(call["summary"])
    scope = str(call.get("description", "")).removeprefix("Takes the scope ").rstrip(".")
    needs = f"; scope {scope}" if scope else ""
    takes = ", ".join(_list_members(call)) or "-"
    return f"| `{method.upper()} {path}` | {summary}{needs} | {takes} |"


def _list_members(call: JsonObject) -> Iterator[str]:
    for row in cast("list[JsonObject]", call["parameters"]):
        schema = cast("JsonObject", row["schema"])
        if row["in"] == "query" and not _is_deprecated(schema):
            yield _name(str(row["name"]), required=bool(row.get("required")))
    body = cast("JsonObject", call.get("requestBody", {}))
    content = cast("dict[str, JsonObject]", body.get("content", {}))
    schema = cast("JsonObject", content.get("application/json", {}).get("schema", {}))
    required = cast("list[str]", schema.get("required", []))
    for name in cast("JsonObject", schema.get("properties", {})):
        yield _name(name, required=name in required)


def _name(name: str, *, required: bool) -> str:
    return f"`{name}`{'*' if required else ''}"


def _is_deprecated(schema: JsonObject) -> bool:
    forms = [schema, *cast("list[JsonObject]", schema.get("anyOf", []))]
    return any(form.get("deprecated") for form in forms)

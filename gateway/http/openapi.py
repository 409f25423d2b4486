"""The published descriptions of the HTTP API: OpenAPI 3.1 for ``/v1``, AsyncAPI for channel frames.

The document of ``/v1`` is generated from the same table that serves it. It also describes the paths that are not calls:
event streams and their states, tickets and blobs.
"""

from __future__ import annotations

from functools import cache
from typing import Final, cast

import orjson
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from passerelle.channels.asyncapi import render_asyncapi
from passerelle.core.wire.codec import wire_schema
from passerelle.core.wire.json import Json, JsonObject
from passerelle.gateway.http.blobs import PATH as BLOBS
from passerelle.gateway.http.blobs import BlobTaken
from passerelle.gateway.http.openapi_errors import (
    PROBLEM,
    list_statuses,
    refer_errors,
    render_error_responses,
)
from passerelle.gateway.http.openapi_examples import EXAMPLES
from passerelle.gateway.http.openapi_words import use_wire_names
from passerelle.gateway.http.problem import MEDIA_TYPE
from passerelle.gateway.http.streams import LINES, LONGEST_WAIT_S
from passerelle.gateway.http.tickets import PATH as TICKETS
from passerelle.gateway.http.tickets import TicketGiven, TicketParams
from passerelle.gateway.http.v1 import DEVICE_HEADER, OPERATIONS, VERSION_HEADER, RouteOperation
from passerelle.runtime.common.calls import IDEMPOTENCY_KEY_LIMIT, KEY_HEADER
from passerelle.runtime.common.version import VERSION

_TEXT: Final[JsonObject] = {"type": "string"}
_CURSOR: Final[JsonObject] = {
    "type": "string",
    "description": "Opaque; send it back unchanged.",
    "pattern": "^[0-9a-f]{8}\\.(0|[1-9][0-9]*)\\.[0-9a-f]{8}$",
}
_EVENTS: Final[JsonObject] = {"type": "array", "items": {"type": "object"}}
_PAGE: Final[JsonObject] = {
    "type": "object",
    "required": ["events", "cursor", "more"],
    "properties": {
        "events": _EVENTS,
        "cursor": _CURSOR,
        "more": {"type": "boolean"},
        "snapshot": {"type": "object", "description": "The state, if `after` is absent."},
    },
}
_STATE: Final[JsonObject] = {
    "type": "object",
    "required": ["stream", "cursor", "snapshot"],
    "properties": {"stream": _TEXT, "cursor": _CURSOR, "snapshot": {"type": "object"}},
}
_STREAM: Final = (
    "The stream: `session:<id>`, `task:<id>`, `inbox`, `tasks`, `tasks:tenant`, `jobs`, "
    "`inputs:<session id>`, `results:<session id>` or `messages:<thread id>`."
)


def describe_stream_paths() -> dict[str, JsonObject]:
    """The path items, by path."""
    return {
        "/v1/streams/{stream}/events": {"get": _describe_events()},
        "/v1/streams/{stream}/snapshot": {"get": _describe_snapshot()},
        TICKETS: {"post": _describe_tickets()},
        BLOBS: {"put": _describe_blobs()},
    }


def _describe_events() -> JsonObject:
    wait: JsonObject = {"type": "integer", "minimum": 0, "maximum": LONGEST_WAIT_S}
    parameters: list[Json] = [
        _param("stream", "path", _TEXT, _STREAM, required=True),
        _param(
            "after", "query", _CURSOR, "Returns the events after this cursor; absent: the state."
        ),
        _param("wait", "query", wait, "Seconds to wait while the page is empty."),
        _param("ticket", "query", _TEXT, "For an EventSource, which cannot set headers."),
        _param("device", "query", _TEXT, "The device that the ticket is for."),
        _param("Last-Event-ID", "header", _CURSOR, "As `after`."),
    ]
    content: JsonObject = {
        "application/json": {"schema": _PAGE},
        LINES: {
            "schema": {
                "type": "string",
                "description": "Every event after `after`, or from the first one, to the end: one a line.",
            }
        },
        "text/event-stream": {
            "schema": {
                "type": "string",
                "description": "Events with their cursor as `id`; `gap`, then `snap`; `error` is the last one.",
            }
        },
    }
    gap: JsonObject = {
        "description": "The cursor is not valid: `why`, and the `top` to continue from.",
        "content": {MEDIA_TYPE: {"schema": PROBLEM}},
    }
    described = _describe_stream(
        "follow_stream", "The events after a cursor of a stream", parameters, content
    )
    responses = cast("JsonObject", described["responses"])
    return {**described, "responses": {**responses, "410": gap}}


def _describe_snapshot() -> JsonObject:
    stream = _param("stream", "path", _TEXT, _STREAM, required=True)
    content: JsonObject = {"application/json": {"schema": _STATE}}
    summary = "The state of a stream, and its cursor"
    return _describe_stream("read_snapshot", summary, [stream], content)


def _describe_tickets() -> JsonObject:
    content: JsonObject = {"application/json": {"schema": wire_schema(TicketGiven)}}
    described = _describe_stream(
        "issue_ticket",
        "Issue a one-time ticket with which a web page opens a channel",
        [],
        content,
        201,
    )
    body: JsonObject = {
        "required": True,
        "content": {"application/json": {"schema": wire_schema(TicketParams)}},
    }
    return {**described, "requestBody": body}


def _describe_blobs() -> JsonObject:
    digest: JsonObject = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    parameters: list[Json] = [
        _param("sha256", "path", digest, "The SHA-256 of the body.", required=True),
        _param("agent", "query", _TEXT, "The agent that dials in.", required=True),
    ]
    content: JsonObject = {"application/json": {"schema": wire_schema(BlobTaken)}}
    summary = "Upload content for an artifact of an agent"
    described = _describe_stream("put_blob", summary, parameters, content, 201)
    body: JsonObject = {"required": True, "content": {"*/*": {"schema": {}}}}
    return {**described, "requestBody": body}


def _describe_stream(
    name: str, summary: str, parameters: list[Json], content: JsonObject, status: int = 200
) -> JsonObject:
    return {
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "responses": {
            str(status): {"description": "Done.", "content": content},
            **refer_errors([400, 401, 403, 404, 429, 503]),
        },
    }


def _param(
    name: str, place: str, schema: JsonObject, about: str, *, required: bool = False
) -> JsonObject:
    return {
        "name": name,
        "in": place,
        "required": required,
        "description": about,
        "schema": schema,
    }


PATH: Final = "/v1/openapi.json"
_REF: Final = "#/components/schemas/{model}"
_SUCCESSES: Final = {200: "Done.", 201: "Made.", 202: "Accepted."}
_PROBLEM: Final[JsonObject] = {
    "type": "object",
    "description": "RFC 9457; `code` is stable, further members are fields of the error.",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
        "field": {"type": "string", "description": "The member that is wrong, by its path."},
        "reason": {"type": "string", "description": "What is wrong with the member."},
        "state": {
            "type": "string",
            "description": "The current status of the resource; on channels, `d.status`.",
        },
        "winner": {"type": "object", "description": "Who closed the approval, and how."},
    },
}


def make_openapi_route(public_url: str | None = None) -> Route:
    """``GET /v1/openapi.json``; public, as it contains no caller's data. Its server is ``public_url``."""

    async def answer(_request: Request) -> Response:
        document = render_openapi()
        if public_url is not None:
            document = {**document, "servers": [{"url": public_url.rstrip("/")}]}
        return Response(orjson.dumps(document), media_type="application/json")

    return Route(PATH, answer)


@cache
def render_openapi() -> JsonObject:
    """The document."""
    schemas: JsonObject = {"Problem": _PROBLEM}
    paths: dict[str, JsonObject] = {}
    for operation in OPERATIONS:
        described = _describe(operation, schemas)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    paths |= describe_stream_paths()
    document: JsonObject = {
        "openapi": "3.1.0",
        "info": {"title": "Passerelle control plane", "version": VERSION},
        # Relative to the address of the document.
        "servers": [{"url": "/"}],
        "paths": cast("JsonObject", paths),
        "components": {
            "schemas": schemas,
            "responses": render_error_responses(),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }
    use_wire_names(document)
    return document


def _describe(operation: RouteOperation, schemas: JsonObject) -> JsonObject:
    params = _hoist(operation.call.params, schemas)
    in_path = [_describe_param(params, name, "path") for name in operation.path_params]
    described: JsonObject = {
        "operationId": operation.call.name,
        "summary": operation.call.summary,
        "description": f"Requires the scope {' or '.join(operation.call.scopes)}.",
        "parameters": [*in_path, *_describe_rest(operation, params)],
        "responses": {
            **_describe_success(operation, schemas),
            **refer_errors(list_statuses(operation)),
        },
    }
    if operation.method != "GET":
        body = _without(params, operation.path_params)
        described["requestBody"] = {
            "required": bool(body.get("required")),
            "content": {"application/json": _add_example(operation.call.name, {"schema": body})},
        }
    return described


def _add_example(name: str, content: JsonObject) -> JsonObject:
    example = EXAMPLES.get(name)
    return content if example is None else {**content, "example": example}


def _describe_success(operation: RouteOperation, schemas: JsonObject) -> JsonObject:
    """The responses of a success; they have one schema, whatever the status."""
    content: JsonObject = {"application/json": {"schema": _name_result(operation, schemas)}}
    statuses = {operation.status, *([200] if operation.may_settle else [])}
    return {
        str(status): {"description": _SUCCESSES[status], "content": content}
        for status in sorted(statuses)
    }


def _describe_rest(operation: RouteOperation, params: JsonObject) -> list[Json]:
    device: JsonObject = {"name": DEVICE_HEADER, "in": "header", "schema": {"type": "string"}}
    if operation.method != "GET":
        key: JsonObject = {
            "name": KEY_HEADER,
            "in": "header",
            "description": "A request repeated with the same key is executed once.",
            "schema": {"type": "string", "minLength": 1, "maxLength": IDEMPOTENCY_KEY_LIMIT},
        }
        version: JsonObject = {
            "name": VERSION_HEADER,
            "in": "header",
            "description": 'The version that was read, in quotes, as in `ETag`: `"7"`.',
            "schema": {"type": "string"},
        }
        return [key, *([version] if operation.is_versioned else []), device]
    names = [name for name in _properties(params) if name not in operation.path_params]
    return [*(_describe_param(params, name, "query") for name in names), device]


def _describe_param(params: JsonObject, name: str, place: str) -> JsonObject:
    required = name in cast("list[Json]", params.get("required", []))
    schema = _properties(params)[name]
    return {"name": name, "in": place, "required": required, "schema": schema}


def _name_result(operation: RouteOperation, schemas: JsonObject) -> JsonObject:
    kind = operation.call.result or operation.call.model
    if kind is None:
        return {"type": "object"}
    schemas[kind.__name__] = _hoist(kind, schemas)
    return {"$ref": _REF.format(model=kind.__name__)}


def _hoist(kind: type[object], schemas: JsonObject) -> JsonObject:
    """The schema of a record; moves the definitions it refers to into ``schemas``."""
    adapter = TypeAdapter(kind)
    schema = cast("JsonObject", adapter.json_schema(by_alias=True, ref_template=_REF))
    schemas.update(cast("JsonObject", schema.pop("$defs", {})))
    return schema


def _without(params: JsonObject, names: tuple[str, ...]) -> JsonObject:
    required = [name for name in cast("list[str]", params.get("required", [])) if name not in names]
    properties: JsonObject = {
        name: schema for name, schema in _properties(params).items() if name not in names
    }
    return {**params, "properties": properties, "required": cast("list[Json]", required)}


def _properties(schema: JsonObject) -> JsonObject:
    return cast("JsonObject", schema.get("properties", {}))


ASYNCAPI_PATH: Final = "/v1/asyncapi.json"


def make_asyncapi_route() -> Route:
    """``GET /v1/asyncapi.json``; public, as it contains no caller's data."""

    async def answer(_request: Request) -> Response:
        return Response(orjson.dumps(render_asyncapi(VERSION)), media_type="application/json")

    return Route(ASYNCAPI_PATH, answer)

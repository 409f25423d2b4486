"""The OpenAPI 3.1 document of ``/v1``, drawn from the same table that serves it."""

from __future__ import annotations

from functools import cache
from typing import Final, cast

import orjson
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from passerelle.core.wire.json import Json, JsonObject
from passerelle.gateway.http.problem import MEDIA_TYPE
from passerelle.gateway.http.stream_paths import describe_stream_paths
from passerelle.gateway.http.v1 import (
    DEVICE_HEADER,
    OPERATIONS,
    VERSION_HEADER,
    Operation,
)
from passerelle.runtime.common.calls import IDEMPOTENCY_KEY_LIMIT, KEY_HEADER
from passerelle.runtime.common.version import VERSION

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
        "winner": {"type": "object", "description": "Who closed the question, and how."},
    },
}


def make_openapi_route() -> Route:
    """``GET /v1/openapi.json``; public, as it holds nothing of anybody."""

    async def answer(_request: Request) -> Response:
        return Response(orjson.dumps(render_openapi()), media_type="application/json")

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
    return {
        "openapi": "3.1.0",
        "info": {"title": "Passerelle control plane", "version": VERSION},
        "paths": cast("JsonObject", paths),
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }


def _describe(operation: Operation, schemas: JsonObject) -> JsonObject:
    params = _hoist(operation.call.params, schemas)
    in_path = [_describe_param(params, name, "path") for name in operation.path_params]
    described: JsonObject = {
        "operationId": operation.call.name,
        "summary": operation.call.summary,
        "description": f"Takes the scope {' or '.join(operation.call.scopes)}.",
        "parameters": [*in_path, *_describe_rest(operation, params)],
        "responses": {
            **_describe_success(operation, schemas),
            "default": {
                "description": "What went wrong.",
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
    }
    if operation.method != "GET":
        body = _without(params, operation.path_params)
        described["requestBody"] = {
            "required": bool(body.get("required")),
            "content": {"application/json": {"schema": body}},
        }
    return described


def _describe_success(operation: Operation, schemas: JsonObject) -> JsonObject:
    """Whatever the status, the answer has one form."""
    content: JsonObject = {"application/json": {"schema": _name_result(operation, schemas)}}
    statuses = {operation.status, *([200] if operation.may_settle else [])}
    return {
        str(status): {"description": _SUCCESSES[status], "content": content}
        for status in sorted(statuses)
    }


def _describe_rest(operation: Operation, params: JsonObject) -> list[Json]:
    device: JsonObject = {"name": DEVICE_HEADER, "in": "header", "schema": {"type": "string"}}
    if operation.method != "GET":
        key: JsonObject = {
            "name": KEY_HEADER,
            "in": "header",
            "required": operation.call.keyed,
            "schema": {"type": "string", "minLength": 1, "maxLength": IDEMPOTENCY_KEY_LIMIT},
        }
        version: JsonObject = {
            "name": VERSION_HEADER,
            "in": "header",
            "description": 'The version that was read, in quotes, as `ETag` gave it: `"7"`.',
            "schema": {"type": "string"},
        }
        return [key, *([version] if operation.is_versioned else []), device]
    names = [name for name in _properties(params) if name not in operation.path_params]
    return [*(_describe_param(params, name, "query") for name in names), device]


def _describe_param(params: JsonObject, name: str, place: str) -> JsonObject:
    required = name in cast("list[Json]", params.get("required", []))
    schema = _properties(params)[name]
    return {"name": name, "in": place, "required": required, "schema": schema}


def _name_result(operation: Operation, schemas: JsonObject) -> JsonObject:
    kind = operation.call.result or operation.call.model
    if kind is None:
        return {"type": "object"}
    schemas[kind.__name__] = _hoist(kind, schemas)
    return {"$ref": _REF.format(model=kind.__name__)}


def _hoist(kind: type[object], schemas: JsonObject) -> JsonObject:
    """The schema of a record; what it refers to moves into ``schemas``."""
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

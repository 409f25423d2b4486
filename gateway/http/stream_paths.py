"""What the OpenAPI document says of the paths that are no calls: streams of events, their states, tickets and blobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from passerelle.core.wire.codec import wire_schema
from passerelle.gateway.http.blobs import PATH as BLOBS
from passerelle.gateway.http.blobs import BlobTaken
from passerelle.gateway.http.problem import MEDIA_TYPE
from passerelle.gateway.http.streams import LONGEST_WAIT_S
from passerelle.gateway.http.tickets import PATH as TICKETS
from passerelle.gateway.http.tickets import TicketGiven, TicketParams

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json, JsonObject

_TEXT: Final[JsonObject] = {"type": "string"}
_CURSOR: Final[JsonObject] = {
    "type": "string",
    "description": "Kept and given back whole.",
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
        "snapshot": {"type": "object", "description": "The state, where nothing was asked after."},
    },
}
_STATE: Final[JsonObject] = {
    "type": "object",
    "required": ["stream", "cursor", "snapshot"],
    "properties": {"stream": _TEXT, "cursor": _CURSOR, "snapshot": {"type": "object"}},
}
_STREAM: Final = "The stream: `session:<id>`, `task:<id>` or `inbox`."


def describe_stream_paths() -> dict[str, JsonObject]:
    """The items by their paths."""
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
        _param("after", "query", _CURSOR, "What follows this cursor; absent: the state."),
        _param("wait", "query", wait, "Seconds for which an empty page is waited for."),
        _param("ticket", "query", _TEXT, "For an EventSource, which can set no header."),
        _param("device", "query", _TEXT, "The device that the ticket is for."),
        _param("Last-Event-ID", "header", _CURSOR, "As `after`."),
    ]
    content: JsonObject = {
        "application/json": {"schema": _PAGE},
        "text/event-stream": {
            "schema": {
                "type": "string",
                "description": "Events with their cursor as `id`; `gap`, then `snap`; `error` is the last one.",
            }
        },
    }
    gap: JsonObject = {
        "description": "The cursor cannot be honoured: `why`, and the `top` to go on from.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    described = _describe("follow_stream", "What follows a cursor of a stream", parameters, content)
    responses = cast("JsonObject", described["responses"])
    return {**described, "responses": {**responses, "410": gap}}


def _describe_snapshot() -> JsonObject:
    stream = _param("stream", "path", _TEXT, _STREAM, required=True)
    content: JsonObject = {"application/json": {"schema": _STATE}}
    summary = "The state of a stream, and the cursor from which it is followed on"
    return _describe("read_snapshot", summary, [stream], content)


def _describe_tickets() -> JsonObject:
    content: JsonObject = {"application/json": {"schema": wire_schema(TicketGiven)}}
    described = _describe(
        "issue_ticket", "A ticket with which a web page opens a channel once", [], content, 201
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
    summary = "Content that an artifact of an agent will name"
    described = _describe("put_blob", summary, parameters, content, 201)
    body: JsonObject = {"required": True, "content": {"*/*": {"schema": {}}}}
    return {**described, "requestBody": body}


def _describe(
    name: str, summary: str, parameters: list[Json], content: JsonObject, status: int = 200
) -> JsonObject:
    problem: JsonObject = {"schema": {"$ref": "#/components/schemas/Problem"}}
    return {
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "responses": {
            str(status): {"description": "Done.", "content": content},
            "default": {"description": "What went wrong.", "content": {MEDIA_TYPE: problem}},
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

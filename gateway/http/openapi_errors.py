"""The documented errors of each call, by status, each with an example problem.

``default`` is added to them: a status that is not listed has the same form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.gateway.http.problem import MEDIA_TYPE

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from passerelle.gateway.http.v1 import RouteOperation

PROBLEM: Final[JsonObject] = {"$ref": "#/components/schemas/Problem"}

_DESCRIPTIONS: Final[dict[int, tuple[str, str, str]]] = {
    400: (
        "The request is malformed; `field` names the member, `reason` what is wrong with it.",
        "invalid_input",
        "pageSize: should be a whole number",
    ),
    401: (
        "The credential is missing, unknown or expired.",
        "unauthenticated",
        "a credential is required",
    ),
    403: (
        "The credential lacks the scope or the right.",
        "forbidden",
        "the scope tasks:read is required",
    ),
    404: (
        "It does not exist, or belongs to another caller.",
        "not_found",
        "there is no task 'task_2f'",
    ),
    409: (
        "Its state does not allow it, another request was first, or the idempotency key was used for another request.",
        "conflict",
        "somebody else has changed it; read it again",
    ),
    410: (
        "The approval expired, was cancelled or was replaced.",
        "expired",
        "the approval is closed: expired",
    ),
    412: (
        "It has changed since it was read.",
        "version_mismatch",
        "version 3 was read, but version 4 is stored; read it again",
    ),
    413: (
        "The body or its content is too large.",
        "too_large",
        "the body is larger than 1048576 bytes",
    ),
    415: (
        "The body is not JSON.",
        "content_type_not_supported",
        "content type 'text/plain' is not supported",
    ),
    422: (
        "The content does not fit what was asked for.",
        "unknown_option",
        "optionId: is not one of the offered options",
    ),
    429: (
        "Over a rate, a quota or a budget; `Retry-After` states when to retry.",
        "rate_limited",
        "too many requests",
    ),
    502: (
        "The agent cannot be reached, or its answer is not A2A.",
        "peer_unavailable",
        "agent 'echo' is not available",
    ),
    503: (
        "The store is not available; `Retry-After` states when to retry.",
        "store_unavailable",
        "the store is not available",
    ),
}
_OF_ALL: Final[tuple[int, ...]] = (400, 401, 403, 429, 503)
_REACHES_AGENTS: Final = frozenset({"submit_turn", "start_task", "create_task"})
_DECIDES: Final = "respond_action"


def list_statuses(operation: RouteOperation) -> list[int]:
    """The error statuses of a call, in order."""
    found = {*_OF_ALL}
    if operation.path_params:
        found.add(404)
    if operation.method not in {"GET", "DELETE"}:
        found |= {413, 415}
    if operation.call.changes:
        found.add(409)
    if operation.is_versioned:
        found.add(412)
    if operation.call.name in _REACHES_AGENTS:
        found |= {404, 502}
    if operation.call.name == _DECIDES:
        found |= {410, 412, 422}
    return sorted(found)


def refer_errors(statuses: list[int]) -> JsonObject:
    """The error responses of a call, as references to the shared ones."""
    refs: JsonObject = {
        str(status): {"$ref": f"#/components/responses/{_name(status)}"} for status in statuses
    }
    return {**refs, "default": {"$ref": "#/components/responses/Error"}}


def render_error_responses() -> JsonObject:
    """``components.responses``: one for each status, and one for any other."""
    shared: JsonObject = {
        _name(status): _render(status, about, code, detail)
        for status, (about, code, detail) in _DESCRIPTIONS.items()
    }
    return {
        **shared,
        "Error": {"description": "Any other error.", "content": {MEDIA_TYPE: {"schema": PROBLEM}}},
    }


def _name(status: int) -> str:
    return f"Error{status}"


def _render(status: int, about: str, code: str, detail: str) -> JsonObject:
    example: JsonObject = {
        "type": f"urn:passerelle:problem:{code}",
        "title": code.replace("_", " "),
        "status": status,
        "code": code,
        "detail": detail,
    }
    return {"description": about, "content": {MEDIA_TYPE: {"schema": PROBLEM, "example": example}}}

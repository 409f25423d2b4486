"""The control plane over HTTP: a table of ``/v1`` routes over the calls of ``gateway/rpc``.

The body, the path and the query become the parameters of one call; the rest (caller, idempotency key, errors) is the
same for every route.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, Literal

import orjson
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from passerelle.a2a_mapping.members import objects_at, read_object
from passerelle.core.commands import Authenticator, CommandService
from passerelle.core.errors import InvalidInput, PasserelleError
from passerelle.core.frozen import frozen
from passerelle.core.ids import Shard
from passerelle.core.ports.chance import Ids
from passerelle.core.wire.codec import wire_schema
from passerelle.core.wire.json import Json, JsonObject
from passerelle.gateway.a2a.extensions import read_metadata
from passerelle.gateway.auth.credentials import READER, CredentialReader
from passerelle.gateway.auth.devices import find_list
from passerelle.gateway.http.bodies import read_json
from passerelle.gateway.http.problem import render_problem
from passerelle.gateway.rpc.table import ANSWERING, CALLS, call
from passerelle.runtime.common.calls import KEY_HEADER, Caller, MethodRow
from passerelle.runtime.common.carried import set_call_context
from passerelle.runtime.limits.gate import Gate
from passerelle.runtime.records.action_index import forget_ahead

DEVICE_HEADER: Final = "Passerelle-Device"
DEVICE_LIMIT: Final = 128
VERSION_HEADER: Final = "If-Match"
VERSION_PARAM: Final = "version"
_VERSION: Final = re.compile(r'"([1-9]\d{0,14})"')
_WHOLE: Final = re.compile("-?[0-9]+")
_NAMES_AGENT: Final = re.compile(r"\{(name|peer)\}")
_DIGITS: Final = 18
"""Longer numbers exceed every limit, and are read as the smallest number with one more digit."""
_NO_SHARD: Final = Shard(0)


PENDING: Final = "vote_recorded"
"""The outcome of a vote in a quorum: accepted, and nothing is decided yet."""
SETTLED: Final = frozenset({"already_cancelled", "already_done", "not_found"})
"""Outcomes of a command that had nothing to do: nothing follows, so they are not ``202``."""


class _AgentName(StringConvertor):
    """One or two path segments; the slash between them may be quoted."""

    regex = "[^/]+(?:/[^/]+)?"


register_url_convertor("agent", _AgentName())


@frozen
class RouteOperation:
    """One route. A ``{name}`` in the path is the parameter of that name; query and body have the others."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    call: MethodRow
    status: int = 200
    may_settle: bool = False
    """Whether the call may find nothing to do, with 200."""

    @property
    def pattern(self) -> str:
        """The path for the router: an agent may be one of its tenants, ``echo/acme``."""
        return _NAMES_AGENT.sub(r"{\1:agent}", self.path)

    @property
    def path_params(self) -> tuple[str, ...]:
        """The path parameters."""
        steps = self.path.split("/")
        return tuple(step[1:-1] for step in steps if step.startswith("{"))

    def list_params(self, kind: Literal["integer", "array"]) -> frozenset[str]:
        """The parameters of a type, including optional ones; a query has only strings."""
        properties = wire_schema(self.call.params).get("properties")
        members = properties.items() if isinstance(properties, dict) else ()
        return frozenset(
            name
            for name, schema in members
            if isinstance(schema, dict)
            and any(form.get("type") == kind for form in (schema, *objects_at(schema, "anyOf")))
        )

    @property
    def is_versioned(self) -> bool:
        """Whether ``If-Match`` can state the version that was read."""
        properties = wire_schema(self.call.params).get("properties")
        return self.call.changes and isinstance(properties, dict) and VERSION_PARAM in properties


OPERATIONS: Final[Sequence[RouteOperation]] = (
    RouteOperation("POST", "/v1/turns", CALLS["submit_turn"], 202),
    RouteOperation("GET", "/v1/tasks", CALLS["list_tasks"]),
    RouteOperation("POST", "/v1/tasks", CALLS["create_task"], 201),
    RouteOperation("GET", "/v1/tasks/{taskId}", CALLS["get_task"]),
    RouteOperation("PATCH", "/v1/tasks/{taskId}", CALLS["update_task"]),
    RouteOperation("POST", "/v1/tasks/{taskId}/give", CALLS["give_task"]),
    RouteOperation("POST", "/v1/tasks/{taskId}/start", CALLS["start_task"], 202),
    RouteOperation("POST", "/v1/tasks/{taskId}/progress", CALLS["append_task_progress"]),
    RouteOperation("POST", "/v1/tasks/{taskId}/pause", CALLS["pause_task"]),
    RouteOperation("POST", "/v1/tasks/{taskId}/resume", CALLS["resume_task"]),
    RouteOperation("POST", "/v1/tasks/{taskId}/cancel", CALLS["cancel_task"], 202, may_settle=True),
    RouteOperation("POST", "/v1/tasks/{taskId}/complete", CALLS["complete_task"]),
    RouteOperation("POST", "/v1/tasks/{taskId}/fail", CALLS["fail_task"]),
    RouteOperation("POST", "/v1/tasks/{taskId}/retry", CALLS["retry_task"], 202),
    RouteOperation("POST", "/v1/tasks/{taskId}/link", CALLS["link_tasks"]),
    RouteOperation("POST", "/v1/tasks/{taskId}/unlink", CALLS["unlink_tasks"]),
    RouteOperation("POST", "/v1/agents/{name}/pause", CALLS["pause_agent"]),
    RouteOperation("POST", "/v1/agents/{name}/drain", CALLS["drain_agent"]),
    RouteOperation("POST", "/v1/agents/{name}/resume", CALLS["resume_agent"]),
    *(
        RouteOperation("GET", f"/v1/tasks/{{taskId}}/{path}", CALLS[name])
        for path, name in (
            ("summary", "get_task_summary"),
            ("attempts", "get_attempts"),
            ("artifacts", "get_artifacts"),
            ("graph", "get_task_graph"),
            ("delivery", "get_delivery"),
            ("routing", "get_routing"),
            ("subagents", "get_subagents"),
            ("context", "get_context"),
            ("objects", "get_objects"),
            ("explain", "explain_task"),
        )
    ),
    RouteOperation("GET", "/v1/tasks/{taskId}/outputs/{sha256}", CALLS["get_output"]),
    RouteOperation("GET", "/v1/sessions", CALLS["list_sessions"]),
    RouteOperation("POST", "/v1/sessions", CALLS["open_session"], 201),
    RouteOperation("PATCH", "/v1/sessions/{sessionId}", CALLS["update_session"]),
    RouteOperation("POST", "/v1/sessions/{sessionId}/interrupt", CALLS["interrupt_turn"]),
    RouteOperation("GET", "/v1/sessions/{sessionId}", CALLS["get_session"]),
    RouteOperation("GET", "/v1/sessions/{sessionId}/tasks", CALLS["get_session_tasks"]),
    RouteOperation("GET", "/v1/sessions/{sessionId}/channels", CALLS["get_channels"]),
    RouteOperation("GET", "/v1/archive/{ref}", CALLS["get_archived"]),
    RouteOperation("GET", "/v1/threads/{threadId}", CALLS["get_thread"]),
    RouteOperation("GET", "/v1/threads/{threadId}/context", CALLS["get_thread_context"]),
    RouteOperation("GET", "/v1/threads/{threadId}/permissions", CALLS["get_permissions"]),
    RouteOperation("POST", "/v1/threads/{threadId}/resume", CALLS["resume_thread"]),
    RouteOperation("GET", "/v1/threads/{threadId}/queue", CALLS["get_turn_queue"]),
    RouteOperation("POST", "/v1/threads/{threadId}/queue/policy", CALLS["set_queue_policy"]),
    RouteOperation(
        "POST",
        "/v1/threads/{threadId}/queue/{queuedTurnId}/promote",
        CALLS["promote_queued_turn"],
    ),
    RouteOperation(
        "DELETE", "/v1/threads/{threadId}/queue/{queuedTurnId}", CALLS["remove_queued_turn"]
    ),
    RouteOperation("POST", "/v1/threads/{threadId}/rollback", CALLS["roll_back_thread"]),
    RouteOperation("POST", "/v1/threads/{threadId}/compact", CALLS["compact_thread"], 201),
    RouteOperation("POST", "/v1/streams/{stream}/ack", CALLS["ack_events"]),
    RouteOperation("POST", "/v1/streams/{stream}/reconnect", CALLS["reconnect_channel"]),
    RouteOperation("GET", "/v1/streams/{stream}/webhooks", CALLS["list_stream_webhooks"]),
    RouteOperation("PUT", "/v1/streams/{stream}/webhooks/{webhookId}", CALLS["set_stream_webhook"]),
    RouteOperation(
        "DELETE", "/v1/streams/{stream}/webhooks/{webhookId}", CALLS["delete_stream_webhook"]
    ),
    RouteOperation("POST", "/v1/notices", CALLS["send_notice"], 202),
    RouteOperation("GET", "/v1/approvals", CALLS["list_actions"]),
    RouteOperation("GET", "/v1/approvals/{actionId}", CALLS["get_action"]),
    RouteOperation("POST", "/v1/approvals/{actionId}/decision", CALLS[ANSWERING]),
    RouteOperation("POST", "/v1/approvals/{actionId}/seen", CALLS["see_action"]),
    RouteOperation("POST", "/v1/approvals/{actionId}/return", CALLS["return_again"], 202),
    RouteOperation("GET", "/v1/audit", CALLS["get_audit"]),
    RouteOperation("POST", "/v1/evidence", CALLS["export_evidence"], 201),
    RouteOperation("POST", "/v1/evidence/replay", CALLS["export_replay"], 201),
    RouteOperation("POST", "/v1/evidence/review", CALLS["export_review"], 201),
    RouteOperation("GET", "/v1/evidence/{evidenceId}", CALLS["get_evidence"]),
    RouteOperation("GET", "/v1/devices", CALLS["list_devices"]),
    RouteOperation("GET", "/v1/devices/push-key", CALLS["get_push_key"]),
    RouteOperation("POST", "/v1/devices/pair", CALLS["pair_device"], 201),
    RouteOperation("POST", "/v1/devices/{deviceId}/confirm", CALLS["confirm_device"]),
    RouteOperation("PATCH", "/v1/devices/{deviceId}", CALLS["rename_device"]),
    RouteOperation("DELETE", "/v1/devices/{deviceId}", CALLS["revoke_device"]),
    RouteOperation("PUT", "/v1/devices/{deviceId}/push", CALLS["set_device_push"]),
    RouteOperation("DELETE", "/v1/devices/{deviceId}/push", CALLS["remove_device_push"]),
    RouteOperation("POST", "/v1/approvals", CALLS["ask_permission"], 201),
    RouteOperation("POST", "/v1/approvals/evaluate", CALLS["evaluate_permission"]),
    RouteOperation("GET", "/v1/approvals/{actionId}/content", CALLS["get_action_content"]),
    RouteOperation("GET", "/v1/approvals/{actionId}/explain", CALLS["explain_action"]),
    RouteOperation("POST", "/v1/approvals/{actionId}/use", CALLS["use_permission"]),
    RouteOperation("POST", "/v1/approvals/{actionId}/cancel", CALLS["withdraw_permission"]),
    RouteOperation("POST", "/v1/approvals/{actionId}/resolve", CALLS["resolve_permission"]),
    RouteOperation("GET", "/v1/grants", CALLS["list_grants"]),
    RouteOperation("DELETE", "/v1/grants/{grantId}", CALLS["revoke_grant"]),
    RouteOperation("GET", "/v1/policy", CALLS["get_policy"]),
    RouteOperation("PUT", "/v1/policy", CALLS["set_policy"]),
    RouteOperation("POST", "/v1/policy/bypass", CALLS["set_bypass"]),
    RouteOperation("POST", "/v1/policy/try", CALLS["try_policy"]),
    RouteOperation("GET", "/v1/mutes", CALLS["list_mutes"]),
    RouteOperation("PUT", "/v1/mutes/{peer}", CALLS["mute_peer"]),
    RouteOperation("DELETE", "/v1/mutes/{peer}", CALLS["unmute_peer"]),
    RouteOperation("GET", "/v1/agents", CALLS["list_agents"]),
    RouteOperation("GET", "/v1/agents/{name}/health", CALLS["get_agent_health"]),
    RouteOperation("GET", "/v1/tools", CALLS["get_tool_inventory"]),
    RouteOperation("GET", "/v1/capabilities", CALLS["get_capabilities"]),
    RouteOperation("GET", "/v1/overview", CALLS["get_overview"]),
    RouteOperation("GET", "/v1/deliveries", CALLS["list_deliveries"]),
    RouteOperation("POST", "/v1/deliveries/retry", CALLS["retry_delivery"], 202),
    RouteOperation("GET", "/v1/schedules", CALLS["list_schedules"]),
    RouteOperation("POST", "/v1/schedules", CALLS["create_schedule"], 201),
    RouteOperation("GET", "/v1/schedules/{scheduleId}", CALLS["get_schedule"]),
    RouteOperation("GET", "/v1/schedules/{scheduleId}/history", CALLS["get_schedule_history"]),
    RouteOperation("POST", "/v1/schedules/{scheduleId}/pause", CALLS["pause_schedule"]),
    RouteOperation("POST", "/v1/schedules/{scheduleId}/resume", CALLS["resume_schedule"]),
    RouteOperation("POST", "/v1/schedules/{scheduleId}/run", CALLS["run_schedule"], 202),
    RouteOperation("DELETE", "/v1/schedules/{scheduleId}", CALLS["delete_schedule"]),
    RouteOperation("GET", "/v1/subagents", CALLS["list_subagents"]),
    RouteOperation("POST", "/v1/subagents", CALLS["spawn_subagent"], 201),
    RouteOperation("GET", "/v1/subagents:wait", CALLS["wait_subagents"]),
    RouteOperation("GET", "/v1/subagents/{subagentId}", CALLS["get_subagent"]),
    RouteOperation("POST", "/v1/subagents/{subagentId}/input", CALLS["send_subagent_input"], 202),
    RouteOperation("POST", "/v1/subagents/{subagentId}/resume", CALLS["resume_subagent"]),
    RouteOperation("POST", "/v1/subagents/{subagentId}/close", CALLS["close_subagent"]),
    RouteOperation("GET", "/v1/subagents/{subagentId}/events", CALLS["get_subagent_events"]),
    RouteOperation("GET", "/v1/jobs", CALLS["list_jobs"]),
    RouteOperation("POST", "/v1/jobs", CALLS["submit_job"], 201),
    RouteOperation("GET", "/v1/jobs/{jobId}", CALLS["get_job"]),
    RouteOperation("GET", "/v1/jobs/{jobId}/results", CALLS["get_job_results"]),
    RouteOperation("POST", "/v1/jobs/{jobId}/cancel", CALLS["cancel_job"], 202),
    RouteOperation("POST", "/v1/jobs/{jobId}/retry", CALLS["retry_job"], 202),
    RouteOperation("POST", "/v1/tasks:bulk", CALLS["change_tasks"]),
)


def make_v1_routes(
    service: CommandService,
    auth: Authenticator,
    ids: Ids,
    reader: CredentialReader = READER,
    gate: Gate | None = None,
    read_ahead: Callable[[str, str], None] | None = None,
    count: Callable[[str, str], None] = lambda _operation, _outcome: None,
) -> list[Route]:
    """A Starlette route for every operation.

    ``read_ahead(action, list)`` starts to read what an answer needs, while its device is looked up in its list.
    ``count(operation, outcome)`` is called after each answer: ``ok``, or the code of the error.
    """
    return [
        Route(
            operation.pattern,
            _Endpoint(
                operation,
                service,
                auth,
                reader,
                ids,
                gate,
                read_ahead if operation.call.name == ANSWERING else None,
                count,
            ).answer,
            methods=[operation.method],
            name=operation.call.name,
        )
        for operation in OPERATIONS
    ]


@frozen
class _Endpoint:
    operation: RouteOperation
    service: CommandService
    auth: Authenticator
    reader: CredentialReader
    ids: Ids
    gate: Gate | None
    read_ahead: Callable[[str, str], None] | None
    count: Callable[[str, str], None]

    async def answer(self, request: Request) -> Response:
        forget_ahead()
        try:
            caller = await self._identify(request)
            params = await self._read_params(request)
            result = await call(self.service, caller, self.operation.call.name, params, self.gate)
        except PasserelleError as error:
            self.count(self.operation.call.name, error.stable_code)
            return render_problem(_name_header(error))
        self.count(self.operation.call.name, "ok")
        return _render(self.operation, result)

    async def _identify(self, request: Request) -> Caller:
        device = request.headers.get(DEVICE_HEADER)
        if device is not None and not 0 < len(device) <= DEVICE_LIMIT:
            raise InvalidInput(DEVICE_HEADER, f"is 1 to {DEVICE_LIMIT} characters")
        credentials = self.reader.read_scope(request.scope, device)
        list_id = find_list(credentials) if self.read_ahead else None
        if self.read_ahead is not None and list_id is not None:
            self.read_ahead(request.path_params["actionId"], list_id)
        principal = await self.auth.authenticate(credentials)
        key = request.headers.get(KEY_HEADER)
        if key is None and self.operation.call.names_message:
            # Without a caller's key every request is new, with its own message.
            key = self.ids.mint("idem", _NO_SHARD)
        # Only the A2A face forwards tokens.
        set_call_context(read_metadata(request.headers), None)
        return Caller(
            principal,
            "http",
            key,
            request.headers.get("traceparent"),
            request.headers.get("tracestate"),
        )

    async def _read_params(self, request: Request) -> JsonObject:
        params = (
            _read_query(request, self.operation)
            if self.operation.method == "GET"
            else read_object(await read_json(request))
        )
        version = request.headers.get(VERSION_HEADER)
        if self.operation.is_versioned and version is not None:
            _add_version(params, version)
        for name in self.operation.path_params:
            if name in params:
                raise InvalidInput(name, "is already in the path")
            params[name] = request.path_params[name]
        return params


def _add_version(params: JsonObject, text: str) -> None:
    if text.strip() == "*":
        return
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(VERSION_HEADER, 'is a version in quotes, such as "7", or *')
    if params.setdefault(VERSION_PARAM, int(match[1])) != int(match[1]):
        raise InvalidInput(VERSION_HEADER, "differs from the version in the body")


def _read_query(request: Request, operation: RouteOperation) -> JsonObject:
    params: JsonObject = {}
    lists: dict[str, list[Json]] = {name: [] for name in operation.list_params("array")}
    whole_numbers = operation.list_params("integer")
    for name, text in request.query_params.multi_items():
        if name in lists:
            lists[name].append(text)
            params[name] = lists[name]
            continue
        if name in params:
            raise InvalidInput(name, "is given twice")
        whole = name in whole_numbers and _WHOLE.fullmatch(text) is not None
        params[name] = _read_whole(text) if whole else text
    return params


def _read_whole(text: str) -> int:
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    return sign * (int(digits) if len(digits) <= _DIGITS else 10**_DIGITS)


def _name_header(error: PasserelleError) -> PasserelleError:
    """The key is in a header here, so the error names the header."""
    if isinstance(error, InvalidInput) and error.field == "idempotencyKey":
        return InvalidInput(KEY_HEADER, error.reason)
    return error


def _render(operation: RouteOperation, result: JsonObject) -> Response:
    headers = {"Cache-Control": "no-store"}
    rev = result.get("rev", result.get(VERSION_PARAM))
    if isinstance(rev, int):
        headers["ETag"] = f'"{rev}"'
    settled = operation.may_settle and result.get("outcome") in SETTLED
    status = 200 if settled else operation.status
    if result.get("outcome") == PENDING:
        status = 202
    return Response(orjson.dumps(result), status, headers, "application/json")

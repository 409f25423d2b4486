"""A malformed or unknown id, or one of another kind, is refused at every edge by name, without an internal error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import pytest
from structlog.testing import capture_logs

from passerelle.core.principal import AccessScope
from passerelle.core.wire.codec import wire_schema
from passerelle.gateway.http.v1 import OPERATIONS, RouteOperation
from passerelle.gateway.rpc.table import CALLS
from tests.integration.devices.asking import bearer
from tests.support.raw_channel import open_channel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from passerelle.core.wire.json import Json, JsonObject
    from tests.integration.callers.rig import Instance, Rig

pytestmark = pytest.mark.anyio

OWNER: Final[dict[str, object]] = {"name": "ada", "kind": "person", "scopes": [*AccessScope]}
UNKNOWN: Final = f"00{'0' * 26}"
MALFORMED: Final = (
    "x",
    "se_00*",
    "se_zz" + "0" * 26,
    "se_40" + "0" * 26,
    f"se_{UNKNOWN}0",
    f"se_{UNKNOWN}\n",
    "se_\x00",
    "é",
    "s" * 255,
    "{00}:s:x",
)
"""Malformed: other letters, a shard beyond the last one, one letter too many, a store key."""
OTHERS: Final = (f"se_{UNKNOWN}", f"task_{UNKNOWN}", f"th_{UNKNOWN}", f"act_{UNKNOWN}")
"""Well formed, one of each kind, but unknown."""
IDS: Final = frozenset(
    {
        *("taskId", "sessionId", "contextId", "threadId", "turnId", "actionId", "parentTaskId"),
        *("grantId", "deviceId", "webhookId", "delivery", "stream", "target", "device"),
        *("evidenceId", "queuedTurnId", "scheduleId", "jobId", "subagentId", "target"),
    }
)
LAWFUL: Final[dict[str, dict[str, Json]]] = {
    "submit_turn": {"agent": "echo", "text": "a"},
    "create_task": {"agent": "echo", "objective": "a"},
    "respond_action": {"rev": 1, "digest": "0" * 64, "decisionId": "d", "optionId": "yes"},
    "give_task": {"owner": "bob"},
    "set_queue_policy": {"policy": "queue"},
    "fail_task": {"code": "c", "reason": "r"},
    "retry_task": {"reason": "r"},
    "link_tasks": {"kind": "related", "target": f"task_{UNKNOWN}"},
    "unlink_tasks": {"kind": "related", "target": f"task_{UNKNOWN}"},
    "update_session": {"title": "t"},
    "update_task": {"title": "t"},
    "append_task_progress": {"percent": 5},
    "ack_events": {"device": "dev_a", "cursor": "00000000.1.00000000"},
    "reconnect_channel": {"device": "dev_a"},
    "send_notice": {"kind": "notice", "code": "c"},
    "set_stream_webhook": {"webhookId": "w", "url": "https://hooks.example/a"},
    "delete_stream_webhook": {"webhookId": "w"},
    "get_output": {"sha256": "0" * 64},
    "confirm_device": {"digits": "000000"},
    "rename_device": {"name": "n"},
    "set_device_push": {"subscription": {}},
    "compact_thread": {"toTurn": f"turn_{UNKNOWN}"},
    "roll_back_thread": {"toTurn": f"turn_{UNKNOWN}"},
    "ask_permission": {"actionType": "tool_call", "subject": {}, "dedupeKey": "k"},
    "use_permission": {"subject": {}},
    "resolve_permission": {"rev": 1, "digest": "0" * 64, "decisionId": "d", "optionId": "yes"},
    "see_action": {"rev": 1},
    "evaluate_permission": {"about": "calls", "agent": "echo"},
    "submit_job": {"title": "j", "agents": ["echo"], "inputs": ["a"]},
    "spawn_subagent": {"agent": "echo", "text": "a"},
    "send_subagent_input": {"text": "a"},
}
"""The other required members of a call, all valid."""


def list_cases(call: str) -> list[JsonObject]:
    """Returns the parameters of a call, with each of its ids in several wrong forms."""
    properties = wire_schema(CALLS[call].params).get("properties")
    names = [name for name in properties if name in IDS] if isinstance(properties, dict) else []
    needed = wire_schema(CALLS[call].params).get("required")
    fill = {name: f"se_{UNKNOWN}" for name in names if isinstance(needed, list) and name in needed}
    return [
        {**fill, **LAWFUL.get(call, {}), name: text}
        for name in names
        for text in (*MALFORMED[::3], *OTHERS[1:3])
    ]


async def send(
    at: Instance, operation: RouteOperation, params: JsonObject
) -> tuple[int, JsonObject]:
    """Sends the call as an HTTP request."""
    path = operation.path
    rest = dict(params)
    for name in operation.path_params:
        path = path.replace(f"{{{name}}}", quote(str(rest.pop(name)), safe=""))
    headers = bearer("ada")
    if operation.method == "GET":
        query = {name: str(value) for name, value in rest.items()}
        answer = await at.http.get(path, params=query, headers=headers)
    else:
        if operation.call.key_member:
            headers = {**headers, "Idempotency-Key": "k"}
        answer = await at.http.request(operation.method, path, json=rest, headers=headers)
    return answer.status_code, answer.json()


async def send_over_channels(
    at: Instance, calls: Sequence[tuple[str, JsonObject]]
) -> list[tuple[str, JsonObject, object]]:
    """Sends the calls in order, up to 50 over each channel; returns each with the code of its answer."""
    found: list[tuple[str, JsonObject, object]] = []
    for some in batched(calls, 50):
        async with open_channel(str(at.http.base_url).rstrip("/")) as channel:
            await channel.greet("ada-key")
            for number, (call, params) in enumerate(some):
                frame: JsonObject = {"t": "rpc", "id": f"c{number}", "m": call, "d": params}
                await channel.send({**frame, "idem": f"k{len(found)}"})
                while not (answered := [f for f in channel.frames if f.get("id") == f"c{number}"]):
                    await channel.read_more()
                found.append((call, params, answered[0].get("code")))
    return found


def batched(
    calls: Sequence[tuple[str, JsonObject]], size: int
) -> Iterator[Sequence[tuple[str, JsonObject]]]:
    """Cuts a sequence into chunks."""
    return (calls[start : start + size] for start in range(0, len(calls), size))


async def test_no_id_in_any_parameter_of_any_call_causes_an_internal_error(rig: Rig) -> None:
    at = await rig.start(clients=[OWNER])
    with capture_logs() as lines:
        sent = [
            (operation.path, params, *await send(at, operation, params))
            for operation in OPERATIONS
            for params in list_cases(operation.call.name)
        ]
        calls = [(call, params) for call in CALLS for params in list_cases(call)]
        answered = await send_over_channels(at, calls)
    assert len(sent) > 300
    assert len(answered) > 300
    assert [one for one in sent if one[2] >= 500] == []
    assert [one for one in answered if one[2] == "internal"] == []
    assert [line for line in lines if line["event"].endswith(".fault")] == []


async def test_invalid_session_is_named_by_each_edge(rig: Rig) -> None:
    at = await rig.start(clients=[OWNER])
    for wrong in (*MALFORMED, *OTHERS):
        await refuse_session(at, wrong)
    assert rig.counted() == 0


async def refuse_session(at: Instance, wrong: str) -> None:
    """Every command that names a session refuses this one, over HTTP and over a channel."""
    turn: JsonObject = {"agent": "echo", "text": "a", "sessionId": wrong}
    made: JsonObject = {"agent": "echo", "objective": "a", "sessionId": wrong}
    for path, body in (("/v1/turns", turn), ("/v1/tasks", made)):
        answer = await at.http.post(path, json=body, headers=bearer("ada"))
        found = answer.json()
        assert (answer.status_code, found["code"], found["kind"]) == (404, "not_found", "session")
        assert found["name"] == wrong[:120]
    async with open_channel(str(at.http.base_url).rstrip("/")) as channel:
        await channel.greet("ada-key")
        await channel.send({"t": "rpc", "id": "c", "m": "submit_turn", "d": turn, "idem": "k"})
        answered = await channel.expect("err", id="c")
        assert (answered["code"], answered["d"]["kind"]) == ("not_found", "session")


async def test_task_and_context_ids_of_a_message_are_refused_or_used_as_a_name(rig: Rig) -> None:
    at = await rig.start(clients=[OWNER])
    with capture_logs() as lines:
        for wrong in (*MALFORMED, *OTHERS):
            await try_ids(at, wrong)
    assert [line for line in lines if line["event"].endswith(".fault")] == []


async def try_ids(at: Instance, wrong: str) -> None:
    """Sends a message to the id and gets it, over both bindings."""
    message: JsonObject = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "a"}]}
    named: list[JsonObject] = [
        {"taskId": wrong},
        {"contextId": wrong},
        {"referenceTaskIds": [wrong]},
    ]
    for more in named:
        params: JsonObject = {"message": {**message, **more}}
        answered = (await at.call("ada-key", "SendMessage", params)).json()
        assert answered.get("error", {}).get("code") != -32603, answered
        path = "/agents/echo/message:send"
        answer = await at.http.post(path, json=params, headers=bearer("ada"))
        assert answer.status_code < 500, answer.text
    for method in ("GetTask", "CancelTask", "SubscribeToTask"):
        answered = (await at.call("ada-key", method, {"id": wrong})).json()
        assert answered["error"]["code"] == -32001, answered

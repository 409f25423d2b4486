"""One table of calls: what is translated, what is refused, and by which field."""

import pytest

from passerelle.core.commands import (
    ActionAnswered,
    CancelAccepted,
    CancelTask,
    GetAction,
    GetRecord,
    GetTask,
    ListActions,
    RespondAction,
    SubmitTurn,
    TurnAccepted,
)
from passerelle.core.errors import (
    Forbidden,
    InvalidAgentResponse,
    InvalidInput,
    NotFound,
    PasserelleError,
    PeerUnavailable,
    UnknownMethod,
)
from passerelle.core.ids import FacadeTaskId
from passerelle.core.payloads.approval import ApprovalDecision
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.rpc.table import CALLS, call
from passerelle.runtime.common.calls import Caller
from tests.support.scripted_service import ScriptedService

OWNER = Principal(id="owner", kind="person", scopes=frozenset(AccessScope))
ACCEPTED = TurnAccepted("ses_1", "th_1", "turn_1", "task_1", FacadeTaskId("task_1~2"), "ctx")
DECISION = ApprovalDecision(
    decision_id="dec_1",
    outcome="allowed",
    cause="human",
    source="answer",
    rev=3,
    digest="d",
    decided_by="owner",
    decided_kind="person",
    decided_at="2026-11-20T00:00:00.000Z",
    option_id="allow_once",
)
ANSWER: JsonObject = {
    "actionId": "act_1",
    "rev": 3,
    "digest": "sha256:d",
    "decisionId": "dec_1",
    "optionId": "allow_once",
}


def caller(idem: str | None = "k-1", principal: Principal = OWNER) -> Caller:
    return Caller(principal, "channel", idem)


async def submit(params: JsonObject, idem: str | None = "k-1") -> SubmitTurn:
    service = ScriptedService(result=ACCEPTED)
    await call(service, caller(idem), "submit_turn", params)
    command = service.asked[0][1]
    assert isinstance(command, SubmitTurn)
    return command


@pytest.mark.anyio
@pytest.mark.requirement("CMD-1", "CMD-27")
async def test_text_becomes_a_message_and_the_answer_names_the_task() -> None:
    service = ScriptedService(result=ACCEPTED)
    params: JsonObject = {"agent": "echo", "text": "hi", "sessionId": "ses_1"}
    answer = await call(service, caller(), "submit_turn", params)
    _, command, idem = service.asked[0]
    assert isinstance(command, SubmitTurn)
    assert (command.agent, command.session_id, command.source) == ("echo", "ses_1", "channel")
    assert command.message["parts"] == [{"text": "hi"}]
    assert idem == "k-1"
    assert answer == {
        "sessionId": "ses_1",
        "threadId": "th_1",
        "turnId": "turn_1",
        "taskId": "task_1~2",
        "contextId": "ctx",
        "state": "accepted",
        "repeated": False,
    }


@pytest.mark.anyio
@pytest.mark.requirement("CMD-30")
async def test_repeat_under_one_key_is_the_same_command() -> None:
    params: JsonObject = {"agent": "echo", "text": "hi"}
    first, again, other = await submit(params), await submit(params), await submit(params, "k-2")
    assert first == again
    assert first.message["messageId"] != other.message["messageId"]


@pytest.mark.anyio
async def test_message_passes_with_unknown_members() -> None:
    message: JsonObject = {
        "messageId": "m",
        "role": "ROLE_USER",
        "parts": [{"data": {"n": 1}}],
        "x": {"y": 1},
    }
    command = await submit({"agent": "echo", "message": message, "contextId": "ctx"}, None)
    assert command.message == {**message, "contextId": "ctx"}
    assert command.context_id == "ctx"


BAD_TURNS: tuple[tuple[JsonObject, str], ...] = (
    ({}, "agent"),
    ({"agent": "echo"}, "message"),
    ({"agent": "", "text": "a"}, "agent"),
    ({"agent": "echo", "text": "a", "parts": [{"text": "b"}]}, "message"),
    ({"agent": "echo", "parts": []}, "parts"),
    ({"agent": "echo", "parts": [{}]}, "message.parts[0]"),
    ({"agent": "echo", "text": 1}, "text"),
    ({"agent": "echo", "text": "a", "colour": "red"}, "colour"),
    ({"agent": "echo", "message": {"parts": []}}, "message.parts"),
    (
        {"agent": "echo", "taskId": "a", "message": {"taskId": "b", "parts": [{"text": "a"}]}},
        "taskId",
    ),
)


@pytest.mark.anyio
@pytest.mark.parametrize(("params", "field"), BAD_TURNS)
async def test_turn_that_cannot_be_read_names_the_field(params: JsonObject, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        await submit(params)
    assert caught.value.field == field


@pytest.mark.anyio
async def test_text_without_an_idempotency_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match="idempotency key"):
        await submit({"agent": "echo", "text": "hi"}, None)


@pytest.mark.anyio
@pytest.mark.requirement("CMD-9", "CMD-14", "CMD-27")
async def test_each_method_is_one_command_or_query() -> None:
    service = ScriptedService(result=CancelAccepted())
    cancelled = await call(service, caller(), "cancel_task", {"taskId": "task_1", "reason": "late"})
    assert cancelled == {"outcome": "requested", "task": {"id": "x"}}
    service.result = ActionAnswered("won", 4, DECISION)
    answered = await call(service, caller(), "respond_action", ANSWER)
    assert (answered["outcome"], answered["rev"]) == ("won", 4)
    assert isinstance(answered["decision"], dict)
    assert answered["decision"]["optionId"] == "allow_once"
    for method, params in (
        ("get_task", {"taskId": "task_1"}),
        ("get_action", {"actionId": "act_1"}),
        ("list_actions", {}),
    ):
        assert await call(service, caller(None), method, {**params}) == {"id": "x"}
    assert [command for _, command, _ in service.asked] == [
        CancelTask("task_1", reason="late"),
        GetTask("task_1"),
        RespondAction("act_1", 3, "sha256:d", "dec_1", "allow_once"),
        GetRecord("task_1"),
        GetAction("act_1"),
        ListActions(),
    ]


@pytest.mark.anyio
@pytest.mark.requirement("CMD-30")
@pytest.mark.parametrize("idem", ["", "x" * 256, "a\nb"])
async def test_answer_needs_a_usable_key(idem: str | None) -> None:
    service = ScriptedService(result=ActionAnswered("won", 4, DECISION))
    with pytest.raises(InvalidInput) as caught:
        await call(service, caller(idem), "respond_action", ANSWER)
    assert caught.value.field == "idempotencyKey"
    assert service.asked == []


@pytest.mark.anyio
async def test_unknown_method_is_named() -> None:
    with pytest.raises(UnknownMethod, match="a2a:SendMessage"):
        await call(ScriptedService(), caller(), "a2a:SendMessage", {})


@pytest.mark.anyio
@pytest.mark.parametrize("name", list(CALLS))
async def test_right_is_asked_for_before_anything_is_read(name: str) -> None:
    service = ScriptedService()
    held = frozenset(AccessScope) - frozenset(CALLS[name].scopes)
    with pytest.raises(Forbidden) as caught:
        await call(service, caller(principal=Principal(id="c", scopes=held)), name, {"bad": 1})
    assert caught.value.details["scope"] == CALLS[name].scopes[0]
    assert service.asked == []


@pytest.mark.anyio
async def test_error_of_the_service_passes_as_it_is() -> None:
    service = ScriptedService(error=NotFound("task", "task_1"))
    with pytest.raises(NotFound):
        await call(service, caller(), "get_task", {"taskId": "task_1"})


@pytest.mark.anyio
@pytest.mark.parametrize(
    "error",
    [
        PeerUnavailable("its card at http://10.1.2.3:9 cannot be read", url="http://10.1.2.3:9"),
        InvalidAgentResponse("http://10.1.2.3:9 is not in the card"),
    ],
)
async def test_caller_does_not_learn_where_an_agent_is(error: PasserelleError) -> None:
    service = ScriptedService(error=error)
    with pytest.raises(type(error)) as caught:
        await call(service, caller(), "submit_turn", {"agent": "echo", "text": "hi"})
    assert "echo" in caught.value.message
    assert "10.1.2.3" not in caught.value.message + str(caught.value.details)

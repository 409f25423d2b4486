"""Before sending: rules, hooks and people allow or reject a message, and exactly the allowed message is sent."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

import pytest

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.commands import GetAction, GetOutput, GetTaskModel
from passerelle.core.errors import Forbidden
from passerelle.core.payloads.approval import ActionRequired, PermissionEvaluated
from passerelle.core.payloads.governance import HookCompleted, HookFailed, HookStarted
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.task.status import Status
from passerelle.delegation.verification.walk import verify_store
from passerelle.permission_bridge.cases import About
from passerelle.permission_bridge.conditions import read_condition
from passerelle.permission_bridge.hook_terms import HookTerms
from passerelle.permission_bridge.rules import Rule, make_policy
from passerelle.runtime.records.task_fields import OWNER
from passerelle.runtime.records.writes import AppendOptions
from tests.integration.delegation.test_policy import asks
from tests.support.harness import ADA
from tests.support.hook_server import HookServer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from passerelle.core.commands import TurnAccepted, WaitMode
    from passerelle.core.decision import Decision
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.permission_bridge.rules import Policy
    from tests.support.harness import Harness
    from tests.support.scripted_tasks import Turn, TurnScript

pytestmark = pytest.mark.anyio

SENDS: Final[frozenset[About]] = frozenset({"delegations"})
ASKS: Final = make_policy((Rule("ask-first", "ask", about=SENDS),))
DENIES: Final = make_policy((Rule("nothing-leaves", "deny", reason="no", about=SENDS),))
STOPPED: Final[list[tuple[str, str]]] = []
HOOK_EVENTS: Final[list[asyncio.Event]] = []
"""The first is set when a hook is called; the hook waits for the second."""
MALFORMED: Final[list[JsonObject]] = []
"""The message of ``break_message``."""
COMMANDS: Final[frozenset[About]] = frozenset({"commands"})
HERE: Final = "tests.integration.delegation.test_gate"
SECRET: Final = "the number of the safe"


def hook(name: str, on_error: str = "closed", **terms: object) -> Policy:
    made = HookTerms(
        name,
        frozenset({"before_delegate"}),
        call=f"{HERE}:{name}",
        on_error="open" if on_error == "open" else "closed",
    )
    return make_policy(hooks=(replace(made, **terms),))  # type: ignore[arg-type]  # the caller names the fields


async def wait_for_test(_given: JsonObject) -> JsonObject:
    asked, may_answer = HOOK_EVENTS
    asked.set()
    await may_answer.wait()
    return {"verdict": "allow"}


async def shout(given: JsonObject) -> JsonObject:
    message = cast("JsonObject", given["message"])
    [part] = cast("list[JsonObject]", message["parts"])
    return {"message": {**message, "parts": [{"text": str(part["text"]).upper()}]}}


def break_message(_given: JsonObject) -> JsonObject:
    return {"message": MALFORMED[0]}


def forbid(given: JsonObject) -> JsonObject:
    return {"verdict": "deny", "reason": f"not to {cast('JsonObject', given['case'])['peer.name']}"}


async def sleep(_given: JsonObject) -> None:
    await asyncio.sleep(60)


def raise_error(_given: JsonObject) -> None:
    raise ValueError("secret")


async def send_secret(turn: Turn) -> None:
    await turn.artifact(SECRET)
    await turn.status("COMPLETED", SECRET)


def keep_secret(given: JsonObject) -> JsonObject:
    return {"verdict": "deny"} if SECRET in str(given["answer"]) else {"verdict": "allow"}


def withhold(given: JsonObject) -> JsonObject:
    assert "answer" in given
    return {"verdict": "deny", "reason": "it is not for them"}


def note_end(given: JsonObject) -> None:
    STOPPED.append((str(given["taskId"]), str(given["status"])))


def doubt(_given: JsonObject) -> JsonObject:
    return {"verdict": "deny", "risk": "high"}


def allow(_given: JsonObject) -> JsonObject:
    return {"verdict": "allow"}


async def list_types(harness: Harness, accepted: TurnAccepted, *kinds: type) -> list[object]:
    payloads = [event.fact.payload for event in await harness.events(accepted)]
    return [one for one in payloads if isinstance(one, kinds)]


async def judge(harness: Harness, accepted: TurnAccepted) -> PermissionEvaluated:
    found = await list_types(harness, accepted, PermissionEvaluated)
    return cast("PermissionEvaluated", found[-1])


@pytest.mark.requirement("EXT-1", "EVC-10", "CMD-14", "ST-6")
async def test_asking_rule_holds_the_message_until_its_owner_allows_it(harness: Harness) -> None:
    harness.rules = ASKS
    accepted, answer = await harness.talk("hello")
    task = cast("JsonObject", answer["task"])
    assert cast("JsonObject", task["status"])["state"] == "TASK_STATE_AUTH_REQUIRED"
    record = await harness.record(accepted)
    assert (record.status, harness.peer.messages) == (Status.WAITING_PERMISSION, [])
    view = await harness.question(accepted)
    assert (view["actionType"], view["askedBy"], view["title"]) == (
        "delegation",
        "gateway",
        "Send this message to echo? “hello”",
    )
    await harness.respond(view, option_id="send")
    await harness.until(accepted, Status.COMPLETED)
    assert len(harness.peer.messages) == 1
    used = await judge(harness, accepted)
    assert (used.consumes, used.decision, used.rules) == (True, "ask", ("ask-first",))
    final = cast("JsonObject", (await harness.read(accepted))["status"])
    assert final["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.requirement("EXT-1", "EVC-10")
@pytest.mark.parametrize("how", ["refused", "expired", "cancelled", "denied by now"])
async def test_message_that_is_not_allowed_is_never_sent(harness: Harness, how: str) -> None:
    harness.rules = ASKS
    accepted, _ = await harness.talk("hello")
    view = await harness.question(accepted)
    match how:
        case "refused":
            await harness.respond(view, option_id="refuse", comment="not today")
        case "expired":
            await harness.run_due("expire", str(view["actionId"]), after_ms=25 * 3_600_000)
        case "cancelled":
            await harness.cancel(accepted)
        case _:
            harness.rules = DENIES
            await harness.respond(view, option_id="send")
    ended = Status.CANCELLED if how == "cancelled" else Status.FAILED
    record = await harness.until(accepted, ended)
    assert harness.peer.messages == []
    if how != "cancelled":
        assert record.rejected
        assert record.last_error is not None
        assert record.last_error.code == "not_permitted"
    if how == "denied by now":
        assert (await judge(harness, accepted)).decision == "deny"


@pytest.mark.requirement("EXT-1", "VAL-8")
async def test_denying_rule_rejects_the_task_and_is_recorded(harness: Harness) -> None:
    harness.rules = DENIES
    accepted, answer = await harness.talk("hello")
    status = cast("JsonObject", cast("JsonObject", answer["task"])["status"])
    assert status["state"] == "TASK_STATE_REJECTED"
    assert harness.peer.messages == []
    evaluated = await judge(harness, accepted)
    assert (evaluated.decision, evaluated.source, evaluated.rules) == (
        "deny",
        "rule",
        ("nothing-leaves",),
    )


async def test_approval_survives_the_process_that_opened_it(harness: Harness) -> None:
    harness.rules = ASKS
    accepted, _ = await harness.talk("hello")
    view = await harness.question(accepted)
    await harness.restart()
    await harness.adopt(accepted)
    await harness.respond(view, option_id="send")
    await harness.until(accepted, Status.COMPLETED)
    assert len(harness.peer.messages) == 1
    asked = await list_types(harness, accepted, ActionRequired)
    assert len(asked) == 1


async def test_decision_made_without_a_driver_is_used_by_the_next_driver(
    harness: Harness,
) -> None:
    harness.rules = ASKS
    accepted, _ = await harness.talk("hello")
    view = await harness.question(accepted)
    await harness.restart()
    await harness.respond(view, option_id="send")
    await harness.adopt(accepted)
    await harness.until(accepted, Status.COMPLETED)
    assert len(harness.peer.messages) == 1


async def test_rule_on_message_text_holds_only_matching_messages(harness: Harness) -> None:
    rule = Rule("money", "ask", read_condition("action.args.text.contains('IBAN')"), about=SENDS)
    harness.rules = make_policy((rule,))
    plain = await harness.send("hello")
    await harness.until(plain, Status.COMPLETED)
    asked, _ = await harness.talk("my IBAN")
    assert (await harness.record(asked)).status is Status.WAITING_PERMISSION


async def test_rule_on_callers_denies_their_calls(harness: Harness) -> None:
    rule = Rule(
        "not-ada", "deny", read_condition("caller.name == 'ada'"), about=frozenset({"calls"})
    )
    harness.rules = make_policy((rule,))
    accepted, _ = await harness.talk("hello")
    assert (await judge(harness, accepted)).rules == ("not-ada",)
    assert harness.peer.messages == []


@pytest.mark.requirement("EXT-3", "PRS-4")
async def test_message_rewritten_by_a_hook_is_sent_and_recorded(harness: Harness) -> None:
    harness.rules = hook("shout")
    accepted = await harness.send("hello")
    await harness.until(accepted, Status.COMPLETED)
    [sent] = harness.peer.messages
    assert cast("list[JsonObject]", sent["parts"])[0]["text"] == "HELLO"
    events = await harness.events(accepted)
    [started] = [one for one in events if isinstance(one.fact.payload, HookStarted)]
    [completed] = [one for one in events if isinstance(one.fact.payload, HookCompleted)]
    assert started.fact.refs["input"].blob
    kept = completed.fact.refs["updatedInput"].blob
    assert kept is not None
    assert (await harness.record(accepted)).attempts[0].updated_input == kept
    payload = completed.fact.payload
    assert isinstance(payload, HookCompleted)
    assert (payload.verdict, payload.updated_digest is not None) == ("rewrite", True)


@pytest.mark.requirement("EXT-3", "I2")
@pytest.mark.parametrize("is_changed", [True, False])
async def test_templated_append_is_used_only_without_a_write_during_the_hook(
    harness: Harness, *, is_changed: bool
) -> None:
    harness.rules = hook("wait_for_test")
    asked, may_answer = asyncio.Event(), asyncio.Event()
    HOOK_EVENTS[:] = [asked, may_answer]
    accepted = await harness.send("echo hello")
    await asked.wait()
    driver, record = harness.parts.dispatch.find(accepted.task_id), await harness.record(accepted)
    assert driver is not None

    task = EntityRef(EntityKind.TASK, accepted.task_id)

    def write(decision: Decision) -> AppendOptions:
        decision.set_field(task, OWNER, decision.fields(task)[OWNER])
        return AppendOptions()

    if is_changed:
        await harness.parts.writes.decide(record.session_id, [task], write)
    harness.peer.hold()
    may_answer.set()
    await wait_until(lambda: harness.peer.messages, 10.0, "the message is at the agent")
    assert (driver.run.templated is None) is is_changed
    harness.peer.release_all()
    await harness.until(accepted, Status.COMPLETED)
    await wait_until(driver.run.has_ended, 10.0, "the driver has the reply of its append")
    assert (driver.run.rendered is None) is is_changed
    assert len(harness.peer.messages) == 1
    assert (await verify_store(harness.store)).ok


async def test_rewritten_message_is_the_one_that_is_approved_and_sent(harness: Harness) -> None:
    made = hook("shout")
    harness.rules = make_policy(ASKS.rules, hooks=made.hooks)
    accepted, _ = await harness.talk("hello")
    view = await harness.question(accepted)
    subject = cast("JsonObject", cast("JsonObject", view["subject"])["content"])
    assert cast("list[JsonObject]", subject["parts"])[0]["text"] == "HELLO"
    await harness.restart()
    await harness.respond(view, option_id="send")
    await harness.adopt(accepted)
    await harness.until(accepted, Status.COMPLETED)
    [sent] = harness.peer.messages
    assert cast("list[JsonObject]", sent["parts"])[0]["text"] == "HELLO"


async def test_denying_rule_applies_to_the_original_message_before_a_rewrite(
    harness: Harness,
) -> None:
    rule = Rule("no-hello", "deny", read_condition("action.args.text == 'hello'"), about=SENDS)
    harness.rules = make_policy((rule,), hooks=hook("shout").hooks)
    accepted, _ = await harness.talk("hello")
    assert (await harness.record(accepted)).rejected
    assert harness.peer.messages == []


@pytest.mark.requirement("EXT-3", "PRS-3")
async def test_denying_hook_records_its_reason_and_nothing_is_sent(harness: Harness) -> None:
    harness.rules = hook("forbid")
    accepted, _ = await harness.talk("hello")
    evaluated = await judge(harness, accepted)
    assert (evaluated.decision, evaluated.source, evaluated.reason) == (
        "deny",
        "hook",
        "not to echo",
    )
    assert harness.peer.messages == []


@pytest.mark.requirement("EXT-3", "EXT-12")
@pytest.mark.parametrize(("name", "code"), [("sleep", "timeout"), ("raise_error", "raised")])
async def test_failing_hook_asks_if_closed_and_allows_if_open(
    harness: Harness, name: str, code: str
) -> None:
    harness.rules = hook(name, timeout_ms=30)
    closed, _ = await harness.talk("hello")
    assert (await harness.record(closed)).status is Status.WAITING_PERMISSION
    [failed] = await list_types(harness, closed, HookFailed)
    assert isinstance(failed, HookFailed)
    assert (failed.error.code, failed.applied) == (code, "ask")
    # A hook that times out gets its whole time.
    assert failed.duration_ms >= (29 if name == "sleep" else 0)
    assert "secret" not in failed.error.message
    harness.rules = hook(name, "open", timeout_ms=30)
    opened = await harness.send("hello")
    await harness.until(opened, Status.COMPLETED)
    [warning] = await list_types(harness, opened, WarningRaised)
    assert isinstance(warning, WarningRaised)
    assert warning.code == "hook_failed_open"


@pytest.mark.requirement("EXT-3", "EXT-12")
@pytest.mark.parametrize(
    ("malformed", "why"),
    [
        ({"metadata": {"checked": True}}, "message.parts: must be a list"),
        ({"parts": []}, "message.parts: must be a list"),
        ({"parts": "hello"}, "message.parts: must be a list"),
        ({"parts": ["hello"]}, "message.parts[0]: must be an object"),
        ({"parts": [{"words": "hello"}]}, "message.parts[0]: must have exactly one"),
        ({"parts": [{"text": 5}]}, "message.parts[0].text: must be a text"),
    ],
)
async def test_hook_whose_message_is_no_message_has_failed(
    harness: Harness, malformed: JsonObject, why: str
) -> None:
    MALFORMED[:] = [malformed]
    asking, _ = await harness.talk("ask Which colour?")
    harness.rules = hook("break_message")
    accepted, _ = await harness.talk("hello")
    assert (await harness.record(accepted)).status is Status.WAITING_PERMISSION
    [failed] = await list_types(harness, accepted, HookFailed)
    assert isinstance(failed, HookFailed)
    assert failed.error.code == "bad_answer"
    assert f"the hook break_message: its answer: {why}" in failed.error.message
    with pytest.raises(Forbidden, match=r"its answer: message\.parts"):
        await harness.send("blue", task=asking.facade)
    assert harness.peer.texts == ["ask Which colour?"]


NOTED: Final[JsonObject] = {"metadata": {"route": {"note": SECRET}}}
"""Members of a request beside its message."""


def forbid_secret(given: JsonObject) -> JsonObject:
    return {"verdict": "deny" if SECRET in str(given) else "silent"}


@pytest.mark.requirement("EXT-1", "EXT-3")
@pytest.mark.parametrize("judge_by", ["rule", "hook"])
async def test_metadata_of_the_request_is_evaluated_with_its_message(
    harness: Harness, judge_by: str
) -> None:
    asking, _ = await harness.talk("ask Which colour?")
    condition = f"action.args.metadata.route.note.contains('{SECRET}')"
    rule = Rule("no-secrets", "deny", read_condition(condition), about=SENDS)
    is_rule = judge_by == "rule"
    harness.rules = make_policy((rule,)) if is_rule else hook("forbid_secret")
    accepted = await harness.send("hello", params=NOTED)
    record = await harness.until(accepted, Status.FAILED)
    assert record.rejected
    with pytest.raises(Forbidden, match="policy forbids it"):
        await harness.send("blue", task=asking.facade, params=NOTED)
    assert harness.peer.texts == ["ask Which colour?"]
    plain: JsonObject = {"metadata": {"route": {"note": "fast"}}}
    allowed = await harness.send("hello", params=plain)
    await harness.until(allowed, Status.COMPLETED)
    sent = [one.params for one in harness.peer.requests if "Message" in one.method]
    assert [one.get("metadata") for one in sent] == [None, plain["metadata"]]


@pytest.mark.requirement("EXT-1", "EVC-10")
@pytest.mark.parametrize("is_taken_over", [True, False])
async def test_approver_sees_the_metadata_of_the_request(
    harness: Harness, *, is_taken_over: bool
) -> None:
    harness.rules = ASKS
    accepted = await harness.send("hello", params=NOTED)
    await harness.await_answer(accepted)
    view = await harness.question(accepted)
    content = cast("JsonObject", cast("JsonObject", view["subject"])["content"])
    assert content["requestMetadata"] == NOTED["metadata"]
    if is_taken_over:
        await harness.restart()
        await harness.adopt(accepted)
    await harness.respond(view, option_id="send")
    await harness.until(accepted, Status.COMPLETED)
    [sent] = [one for one in harness.peer.requests if "Message" in one.method]
    assert sent.params["metadata"] == NOTED["metadata"]


@pytest.mark.requirement("EXT-3")
@pytest.mark.parametrize("keeps", [True, False])
async def test_history_has_a_rewritten_message_once_as_its_caller_wrote_it(
    harness: Harness, *, keeps: bool
) -> None:
    harness.rules = hook("shout")
    harness.peer.keeps_history = keeps
    accepted, _ = await harness.talk("hello")
    assert harness.peer.texts == ["HELLO"]
    history = cast("list[JsonObject]", (await harness.read(accepted))["history"])
    written = [(one["role"], one["parts"]) for one in history if one["role"] == "ROLE_USER"]
    assert written == [("ROLE_USER", [{"text": "hello"}])]


@pytest.mark.requirement("PRS-3")
async def test_allowing_hook_does_not_override_an_asking_rule(harness: Harness) -> None:
    harness.rules = make_policy(ASKS.rules, hooks=hook("allow").hooks)
    accepted, _ = await harness.talk("hello")
    evaluated = await judge(harness, accepted)
    assert (evaluated.decision, evaluated.source) == ("ask", "rule")
    assert ("hook", "allow", "allow") in [(s.source, s.verdict, s.ref) for s in evaluated.trail]


@pytest.mark.requirement("EXT-3", "PRS-4")
@pytest.mark.parametrize("wait", ["unary", "stream"])
@pytest.mark.parametrize(("name", "verdict"), [("withhold", "deny"), ("raise_error", "")])
async def test_withheld_response_is_not_stored(
    harness: Harness, tmp_path: Path, wait: WaitMode, name: str, verdict: str
) -> None:
    harness.rules = hook(name, points=frozenset({"before_deliver"}))
    harness.peer.next(send_secret)
    accepted = await harness.send("hello", wait=wait)
    record = await harness.until(accepted, Status.FAILED)
    assert record.last_error is not None
    assert (record.last_error.code, record.artifacts) == ("withheld", ())
    completed = [*await list_types(harness, accepted, HookCompleted)]
    assert [one.verdict for one in completed if isinstance(one, HookCompleted)] == [verdict] * bool(
        verdict
    )
    assert "hook.started" in await harness.types(accepted)
    blobs = [one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()]
    assert SECRET not in str([await harness.entries(accepted.session_id), record, blobs])


def send_members(**members: Json) -> TurnScript:
    """An agent that works and completes, with text in one member of its task only."""

    async def work(turn: Turn) -> None:
        task = await turn.open()
        task.record.update(members)
        await turn.status("COMPLETED")

    return work


async def send_secret_in_update(turn: Turn) -> None:
    task = await turn.open()
    status: JsonObject = {"state": "TASK_STATE_WORKING"}
    await turn.tell(
        {
            "statusUpdate": {
                "taskId": task.id,
                "contextId": turn.context_id,
                "status": status,
                "metadata": {"note": SECRET},
            }
        }
    )
    await turn.status("COMPLETED")


async def send_secret_in_artifact(turn: Turn) -> None:
    task = await turn.open()
    await turn.tell(
        {
            "artifactUpdate": {
                "taskId": task.id,
                "contextId": turn.context_id,
                "artifact": {"artifactId": "a", "parts": [{"text": "fine"}]},
                "lastChunk": True,
                "metadata": {"note": SECRET},
            }
        }
    )
    await turn.status("COMPLETED")


SAID: Final[JsonObject] = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": SECRET}]}


@pytest.mark.requirement("EXT-3", "PRS-4")
@pytest.mark.parametrize(
    ("work", "wait"),
    [
        (send_members(metadata={"note": SECRET}), "unary"),
        (send_members(history=[SAID]), "unary"),
        (send_secret_in_update, "stream"),
        (send_secret_in_artifact, "stream"),
        (send_secret, "unary"),
        (send_secret, "stream"),
    ],
    ids=["metadata", "history", "update", "artifact", "unary", "stream"],
)
async def test_hook_receives_every_member_of_a_response(
    harness: Harness, tmp_path: Path, work: TurnScript, wait: WaitMode
) -> None:
    harness.rules = hook("keep_secret", points=frozenset({"before_deliver"}))
    harness.peer.next(work)
    accepted = await harness.send("hello", wait=wait)
    record = await harness.until(accepted, Status.FAILED)
    assert record.last_error is not None
    assert record.last_error.code == "withheld"
    blobs = [one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()]
    assert SECRET not in str([await harness.entries(accepted.session_id), record, blobs])


async def test_input_of_a_hook_can_be_read_afterwards(
    harness: Harness,
) -> None:
    harness.rules = hook("allow", points=frozenset({"before_deliver"}))
    harness.peer.next(send_secret)
    accepted = await harness.send("hello")
    await harness.until(accepted, Status.COMPLETED)
    started = [one.fact for one in await harness.events(accepted) if one.type == "hook.started"]
    assert started
    for fact in started:
        blob = fact.refs["input"].blob or ""
        read = await harness.service.read(ADA, GetOutput(accepted.task_id, blob, 0, 4_000))
        assert SECRET in base64.b64decode(str(read["content"])).decode()


async def test_hook_is_called_once_per_response(harness: Harness) -> None:
    harness.rules = hook("allow", points=frozenset({"before_deliver"}))
    accepted = await harness.send("ask Which colour?")
    await harness.until(accepted, Status.WAITING_INPUT)
    await harness.send("blue", task=accepted.facade)
    await harness.until(accepted, Status.COMPLETED)
    completed = await list_types(harness, accepted, HookCompleted)
    assert 2 <= len(completed) <= 3


@pytest.mark.requirement("EXT-3", "I9")
async def test_hook_is_notified_of_the_end_of_a_task_by_a_due_row(harness: Harness) -> None:
    harness.rules = hook("forbid", points=frozenset({"on_stop"}))
    ended = hook("note_end", points=frozenset({"on_stop"}))
    harness.rules = ended
    STOPPED.clear()
    accepted = await harness.send("hello")
    await harness.until(accepted, Status.COMPLETED)
    task = (await harness.record(accepted)).task_id
    await harness.run_due("stop", task, after_ms=0)
    assert [(task, "completed")] == STOPPED
    [completed] = await list_types(harness, accepted, HookCompleted)
    assert isinstance(completed, HookCompleted)
    assert completed.point == "on_stop"
    assert f"stop:{task}" not in await harness.due(task)


@pytest.mark.requirement("PRS-3", "EXT-1")
async def test_uncertain_classifier_turns_an_allow_into_an_approval_and_is_recorded(
    harness: Harness,
) -> None:
    doubtful = HookTerms("classifier", frozenset(), call=f"{HERE}:doubt", on_error="open")
    made = make_policy((Rule("go", "allow", about=SENDS),), classifier=doubtful)
    harness.rules = made
    accepted, _ = await harness.talk("hello")
    assert (await harness.record(accepted)).status is Status.WAITING_PERMISSION
    evaluated = await judge(harness, accepted)
    assert (evaluated.decision, evaluated.source, evaluated.risk) == ("ask", "classifier", "high")
    assert [(s.source, s.verdict) for s in evaluated.trail] == [
        ("rule", "allow"),
        ("default", "allow"),
        ("classifier", "ask"),
    ]


@pytest.mark.requirement("EXT-3", "PRS-3")
async def test_http_hook_decides_an_agents_request(harness: Harness) -> None:
    async with HookServer() as server:
        terms = HookTerms("remote", frozenset({"on_permission_request"}), url=server.url)
        harness.rules = make_policy(hooks=(terms,))
        server.answer = {"verdict": "allow", "reason": "a small sum"}
        first = await harness.send(asks("pay"))
        await harness.until(first, Status.COMPLETED)
        evaluated = await judge(harness, first)
        assert (evaluated.source, evaluated.reason) == ("hook", "a small sum")
        assert cast("JsonObject", server.asked[0]["case"])["action.tool"] == "pay"
        server.answer = {"verdict": "allow", "message": {"parts": []}}
        second, _ = await harness.talk(asks("pay"))
        [failed] = await list_types(harness, second, HookFailed)
        assert isinstance(failed, HookFailed)
        assert (failed.error.code, failed.applied) == ("bad_answer", "ask")
        server.answer = None
        third, _ = await harness.talk(asks("pay"))
        assert (await judge(harness, third)).decision == "ask"
    fourth, _ = await harness.talk(asks("pay"))
    [away] = await list_types(harness, fourth, HookFailed)
    assert isinstance(away, HookFailed)
    assert away.error.code == "unreachable"
    await harness.parts.dispatch.consulting.hooks.caller.close()


@pytest.mark.requirement("EXT-1")
@pytest.mark.parametrize("effect", ["ask", "deny"])
async def test_delegation_rule_applies_to_further_messages(harness: Harness, effect: str) -> None:
    condition = read_condition("action.args.text.contains('IBAN')")
    rule = Rule("money", "ask" if effect == "ask" else "deny", condition, about=SENDS)
    harness.rules = make_policy((rule,))
    accepted = await harness.send("ask Which colour?")
    await harness.until(accepted, Status.WAITING_INPUT)
    with pytest.raises(Forbidden, match="the message is not sent"):
        await harness.send("my IBAN", task=accepted.facade)
    assert (await judge(harness, accepted)).rules == ("money",)
    assert len(harness.peer.messages) == 1
    await harness.send("blue", task=accepted.facade)
    await harness.until(accepted, Status.COMPLETED)
    assert len(harness.peer.messages) == 2


async def test_repeated_further_message_is_rewritten_and_sent_once(
    harness: Harness,
) -> None:
    accepted = await harness.send("ask Which colour?")
    await harness.until(accepted, Status.WAITING_INPUT)
    harness.rules = hook("shout")
    message = harness.message("blue")
    for _ in range(2):
        await harness.send("", task=accepted.facade, message=message, idem="key-1")
    await harness.until(accepted, Status.COMPLETED)
    sent = harness.peer.messages[-1]
    assert cast("list[JsonObject]", sent["parts"])[0]["text"] == "BLUE"
    assert len(harness.peer.messages) == 2


def stop_rule(effect: str) -> Policy:
    condition = read_condition("action.tool == 'cancel_task' && caller.name == 'ada'")
    made = Rule("stops", "ask" if effect == "ask" else "deny", condition, about=COMMANDS)
    return make_policy((made,))


@pytest.mark.requirement("EXT-1")
async def test_command_held_by_a_rule_is_executed_after_its_approval(
    harness: Harness,
) -> None:
    accepted = await harness.send("ask Which colour?")
    record = await harness.until(accepted, Status.WAITING_INPUT)
    harness.rules = stop_rule("ask")
    with pytest.raises(Forbidden, match="needs an approval first"):
        await harness.cancel(accepted)
    with pytest.raises(Forbidden, match="needs an approval first") as refused:
        await harness.cancel(accepted)
    assert refused.value.stable_code == "approval_required"
    action = str(refused.value.details["actionId"])
    assert (await harness.record(accepted)).open_actions == (*record.open_actions, action)
    view = await harness.service.read(ADA, GetAction(action))
    assert (view["askedBy"], view["actionType"]) == ("principal", "cancel_task")
    await harness.respond(view, option_id="allow")
    with pytest.raises(Forbidden, match="needs an approval first"):
        await harness.cancel(accepted, "another reason is another command")
    await harness.cancel(accepted)
    await harness.until(accepted, Status.CANCELLED)
    assert (await list_uses(harness, accepted)) == 1


async def list_uses(harness: Harness, accepted: TurnAccepted) -> int:
    found = await list_types(harness, accepted, PermissionEvaluated)
    return sum(cast("PermissionEvaluated", one).consumes for one in found)


@pytest.mark.requirement("EXT-1")
async def test_command_that_a_rule_denies_is_refused_and_recorded(harness: Harness) -> None:
    accepted = await harness.send("ask Which colour?")
    await harness.until(accepted, Status.WAITING_INPUT)
    harness.rules = stop_rule("deny")
    with pytest.raises(Forbidden, match="policy forbids it"):
        await harness.cancel(accepted)
    assert (await judge(harness, accepted)).rules == ("stops",)
    assert (await harness.record(accepted)).status is Status.WAITING_INPUT


async def test_new_request_of_an_agent_does_not_close_a_commands_approval(harness: Harness) -> None:
    accepted = await harness.send("ask Which colour?")
    await harness.until(accepted, Status.WAITING_INPUT)
    harness.rules = stop_rule("ask")
    with pytest.raises(Forbidden) as refused:
        await harness.cancel(accepted)
    action = str(refused.value.details["actionId"])

    async def ask_again(turn: Turn) -> None:
        await turn.status("WORKING", "Hm.")
        await turn.status("INPUT_REQUIRED", "Which size?")

    harness.peer.next(ask_again)
    await harness.send("blue", task=accepted.facade)

    async def is_asked_again() -> bool:
        return len((await harness.record(accepted)).occurrences) == 2

    assert await wait_until(is_asked_again, 10, "the agent asks again")
    assert (await harness.service.read(ADA, GetAction(action)))["state"] == "pending"
    await harness.send("large", task=accepted.facade)
    await harness.until(accepted, Status.COMPLETED)
    view = await harness.service.read(ADA, GetAction(action))
    decision = cast("JsonObject", view["decision"])
    assert (view["state"], decision["cause"]) == ("cancelled", "peer_terminal")


@pytest.mark.requirement("VAL-8")
async def test_each_delegation_is_explained_with_the_deciding_source(harness: Harness) -> None:
    by_rule, by_hook = DENIES, hook("forbid")
    explained: list[tuple[str, str]] = []
    for rules in (by_rule, by_hook, make_policy()):
        harness.rules = rules
        accepted = await harness.send("hello")
        await harness.await_answer(accepted)
        found = await harness.service.read(ADA, GetTaskModel(accepted.facade, "explain"))
        reasons = cast("list[JsonObject]", found["policy"])
        explained += [(str(one["code"]), str(one["text"])) for one in reasons]
    assert ("deny", "rule by nothing-leaves: no") in explained
    assert ("hook_deny", "hook forbid at before_delegate: not to echo") in explained
    assert ("deny", "hook: not to echo") in explained
    assert ("allow", "default: the credential covers the agent") in explained

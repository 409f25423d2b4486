"""The cost of an approval request, its answer and a hook: store calls, calls to the agent, and JSON conversions.

Counted as in ``tests/integration/a2a/test_cost_of_a_message.py``. Work of due rows and the relay is not counted:
neither runs in these tests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pytest

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import Batch, EntityKind, EntityRef, PackedBatch
from passerelle.core.commands import RespondAction, SubmitTurn, TurnAccepted
from passerelle.core.errors import NotFound
from passerelle.core.payloads.approval import PermissionEvaluated
from passerelle.core.payloads.conversation import TurnSubmitted
from passerelle.core.payloads.governance import HookCompleted, HookStarted
from passerelle.core.task.requests import GiveTask
from passerelle.core.task.status import Status
from passerelle.delegation.verification.walk import verify_store
from passerelle.permission_bridge.hook_terms import HookTerms
from passerelle.permission_bridge.rules import make_policy
from passerelle.runtime.common.carried import restore_extensions
from passerelle.runtime.records.writes import AppendOptions
from tests.support.harness import ADA, BOB
from tests.support.message_cost import measure

if TYPE_CHECKING:
    from passerelle.core.commands import WaitMode
    from passerelle.core.decision import Decision
    from passerelle.core.wire.json import JsonObject
    from tests.support.harness import Harness
    from tests.support.message_cost import Cost

pytestmark = pytest.mark.anyio

LONG_S: Final = 30.0
QUESTION: Final = (2, 23, 2)
"""Store calls, JSON written, JSON read."""
ANSWER: Final = (4, 45, 2)
HOOKED: Final = (3, 17, 2)
WARM_UPS: Final = 6
"""Talks before the counted one: what is stored is filled into a template only once that is learned."""
HERE: Final = "tests.integration.delegation.test_cost_of_questions"


def no_verdict(_given: JsonObject) -> None:
    """A hook without a verdict."""


@dataclass
class Dialogue:
    """One request for input and its text answer."""

    harness: Harness
    asked: TurnAccepted | None = None

    async def ask(self) -> None:
        """Sends the message that makes the agent ask."""
        self.asked, answer = await self.harness.talk("ask Which colour?")
        assert _read_state(answer) == "TASK_STATE_INPUT_REQUIRED"

    async def answer(self) -> None:
        """Answers the question and waits until the task has completed."""
        assert self.asked is not None
        accepted = await self.harness.send("blue", task=self.asked.facade)
        assert _read_state(await self.harness.await_answer(accepted)) == "TASK_STATE_COMPLETED"


def _read_state(answer: JsonObject) -> str:
    return text_at(object_at(object_at(answer, "task"), "status"), "state")


def _count(cost: Cost) -> tuple[int, int, int]:
    return cost.store_calls, cost.written, cost.read


@pytest.mark.requirement("CMD-14")
async def test_cost_of_an_approval_and_its_answer_is_unchanged(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.timeouts = replace(harness.timeouts, parked_poll_s=LONG_S, parked_poll_max_s=LONG_S)
    for _ in range(WARM_UPS):
        talk = Dialogue(harness)
        await talk.ask()
        await talk.answer()
    talk, looked = Dialogue(harness), harness.peer.count("GetTask")
    asked = await measure(monkeypatch, talk.ask)
    assert harness.peer.count("GetTask") == looked, "the agent has reported that it waits"
    answered = await measure(monkeypatch, talk.answer)
    assert harness.peer.count("GetTask") == looked + 1, "it is polled before the answer is sent"
    print(f"functions entered: {asked.functions}, {answered.functions}")  # noqa: T201  for readers of the counts
    assert (_count(asked), _count(answered)) == (QUESTION, ANSWER)


@pytest.mark.requirement("EXT-3")
async def test_hook_without_a_verdict_costs_one_append_and_stores_no_message_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = HookTerms("scan", frozenset({"before_delegate"}), call=f"{HERE}:no_verdict")
    harness.rules = make_policy(hooks=(terms,))
    for _ in range(WARM_UPS):
        await harness.talk("echo hello")
    sent: list[TurnAccepted] = []

    async def talk() -> None:
        sent.append((await harness.talk("echo hello"))[0])

    cost = await measure(monkeypatch, talk)
    print(f"functions entered: {cost.functions}")  # noqa: T201  for readers of the counts
    assert _count(cost) == HOOKED
    events = {type(one.fact.payload): one for one in await harness.events(sent[0])}
    started, evaluated = events[HookStarted].fact, events[PermissionEvaluated].fact.payload
    record = await harness.record(sent[0])
    assert started.refs["input"].sequence == record.inputs[0]
    assert started.refs["input"].blob is None
    assert isinstance(events[HookCompleted].fact.payload, HookCompleted)
    assert isinstance(evaluated, PermissionEvaluated)
    assert [one.ref for one in evaluated.trail if one.source == "hook"] == ["scan"]
    assert (await verify_store(harness.store)).ok


@pytest.mark.requirement("I9")
@pytest.mark.parametrize("is_here", [True, False])
async def test_delivery_row_of_an_answer_is_due_at_once_without_a_local_driver(
    harness: Harness, *, is_here: bool
) -> None:
    talk = Dialogue(harness)
    await talk.ask()
    assert talk.asked is not None
    if not is_here:
        await harness.restart()
    delays_ms: list[int] = []

    async def note(batch: Batch | PackedBatch) -> None:
        rows = batch.due if isinstance(batch, Batch) else ()
        times = [one.at_ms for one in rows if one.member.startswith("return:")]
        delays_ms.extend(at_ms - harness.clock.now_ms() for at_ms in times if at_ms is not None)

    harness.log.before_append = note
    await harness.send("blue", task=talk.asked.facade)
    harness.log.before_append = None
    assert (5_000 < delays_ms[0] <= 10_000) if is_here else (delays_ms[0] <= 0), (
        "the delay covers a failed driver"
    )


@pytest.mark.requirement("I2", "CMD-14")
@pytest.mark.parametrize("kind", [EntityKind.TASK, EntityKind.THREAD, EntityKind.ACTION])
async def test_answer_is_accepted_after_a_concurrent_write_without_effect(
    harness: Harness, kind: EntityKind
) -> None:
    talk = Dialogue(harness)
    await talk.ask()
    assert talk.asked is not None
    record, writes = await harness.record(talk.asked), harness.parts.writes
    (action,) = record.open_actions
    ids = {EntityKind.TASK: record.task_id, EntityKind.THREAD: record.thread_id or ""}
    ref = EntityRef(kind, ids.get(kind, action))

    def touch(decision: Decision) -> AppendOptions:
        # Writes an existing field with its value, so only the version changes.
        name, value = next(iter(decision.fields(ref).items()), ("touched", None))
        decision.set_field(ref, name, value)
        return AppendOptions()

    await writes.decide(record.session_id, [ref], touch)
    await talk.answer()
    assert [one["parts"] for one in harness.peer.messages[1:]] == [[{"text": "blue"}]]
    turns = [one.fact for one in await harness.events(talk.asked)]
    assert sum(isinstance(one.payload, TurnSubmitted) for one in turns) == 2


@pytest.mark.requirement("I2")
async def test_text_after_the_approval_was_answered_is_a_further_message(
    harness: Harness,
) -> None:
    talk = Dialogue(harness)
    await talk.ask()
    assert talk.asked is not None
    view = await harness.question(talk.asked)
    answer = RespondAction(
        action_id=str(view["actionId"]),
        rev=1,
        digest=str(view["digest"]),
        decision_id="dec_1",
        content={"text": "red"},
        option_id="reply",
    )
    harness.peer.hold()
    # The driver is not notified.
    await harness.parts.actions.answer(ADA, answer)
    accepted = await harness.send("blue", task=talk.asked.facade)
    decided = await harness.parts.writes.load([EntityRef(EntityKind.ACTION, answer.action_id)])
    (question,) = (one.record for one in decided.values())
    assert isinstance(question, ActionRecord)
    assert question.decision is not None
    assert question.decision.decision_id == "dec_1"
    assert accepted.turn_id != talk.asked.turn_id
    harness.peer.release_all()


@pytest.mark.requirement("I4")
@pytest.mark.parametrize("wait", ["unary", "stream"])
async def test_driver_that_is_passed_a_message_holds_the_same_state_as_the_store(
    harness: Harness, wait: WaitMode
) -> None:
    # Polling a waiting agent writes a fact, which would change the task.
    harness.timeouts = replace(harness.timeouts, parked_poll_s=LONG_S, parked_poll_max_s=LONG_S)
    talk = Dialogue(harness)
    await talk.ask()
    assert talk.asked is not None
    harness.peer.hold()
    params: JsonObject = {"metadata": {"k": 1}, "configuration": {"historyLength": 3}}
    restore_extensions(["https://b", "https://a"])
    submitted = SubmitTurn(
        "echo", harness.message("blue"), "a2a", wait, task=talk.asked.facade, params=params
    )
    accepted = await harness.service.execute(ADA, submitted, None)
    assert isinstance(accepted, TurnAccepted)
    driver = harness.parts.dispatch.find(talk.asked.task_id)
    assert driver is not None
    record, turn_id = await harness.record(talk.asked), accepted.turn_id
    handed = await driver.run.read_turn(turn_id)
    assert handed is not None
    assert handed.message is submitted.message
    assert handed == await harness.parts.contents.read_turn(record, turn_id)
    assert (handed.send_options.streams, bool(handed.send_options.options)) == (
        wait == "stream",
        True,
    )
    folded = await harness.parts.contents.fold_task(record)
    assert driver.run.content == folded.task
    assert driver.run.context.accepted == list(folded.accepted)
    assert len(folded.accepted) == 2
    harness.peer.release_all()
    assert _read_state(await harness.await_answer(accepted)) == "TASK_STATE_COMPLETED"


@pytest.mark.requirement("I2")
async def test_transferred_task_refuses_a_message_of_its_previous_owner(
    harness: Harness,
) -> None:
    """The message is authorized for the owner, and the transfer is stored before the message."""
    asked = await harness.send("silent", wait="none")
    await harness.until(asked, Status.QUEUED)
    transfers = list[object]()

    async def transfer_first(_batch: Batch | PackedBatch) -> None:
        harness.log.before_append = None
        transfers.append(await harness.service.execute(ADA, GiveTask(asked.task_id, BOB.id), None))

    harness.log.before_append = transfer_first
    with pytest.raises(NotFound):
        await harness.send("and a further word", task=asked.facade)
    assert len(transfers) == 1
    turns = [one.fact for one in await harness.events(asked)]
    assert sum(isinstance(one.payload, TurnSubmitted) for one in turns) == 1
    assert harness.peer.texts == ["silent"]

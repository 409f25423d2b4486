"""A thread is rolled back to a turn: later turns stay stored, are marked, and no longer count (EXT-11, PRS-5)."""

from __future__ import annotations

from typing import cast

import pytest

from passerelle.core.batch import Batch, EntityKind, EntityRef
from passerelle.core.commands import TurnAccepted
from passerelle.core.errors import (
    Forbidden,
    IdempotencyConflict,
    InvalidInput,
    NotFound,
    StoreUnavailable,
    UnsupportedOperation,
)
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.session.boundaries import read_state
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs.turn_request import OpenedTurn, TurnRequest
from passerelle.delegation.runs.turn_templates import TemplatedTurns
from passerelle.delegation.verification.walk import verify_store
from passerelle.runtime.records.places import list_places
from tests.support.control_client import ControlClient
from tests.support.harness import ADA, BOB
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio


async def read_thread(control: ControlClient, thread_id: str) -> ThreadRecord:
    ref = EntityRef(EntityKind.THREAD, thread_id)
    record = (await control.harness.parts.writes.load_one(ref)).record
    assert isinstance(record, ThreadRecord)
    return record


async def say(control: ControlClient, *texts: str, agent: str = "echo") -> list[TurnAccepted]:
    """Sends turns of one context and waits for each response."""
    sent: list[TurnAccepted] = []
    for text in texts:
        context = sent[0].context_id if sent else None
        accepted = await control.harness.send(text, agent=agent, context_id=context)
        await control.harness.await_answer(accepted)
        sent.append(accepted)
    return sent


async def go_back(
    control: ControlClient, to: TurnAccepted, idem: str | None = None, who: Principal = ADA
) -> JsonObject:
    return await control.do(
        "roll_back_thread", idem, who, threadId=to.thread_id, toTurn=to.turn_id, reason="no boats"
    )


async def read_types(control: ControlClient, accepted: TurnAccepted, after: int) -> list[str]:
    return [
        event.type for event in await control.harness.events(accepted) if event.sequence > after
    ]


@pytest.mark.requirement("EXT-11", "PRS-5", "A2A-4", "LT-17", "CMD-30")
async def test_rollback_removes_two_turns_and_the_next_turn_starts_without_them(
    control: ControlClient,
) -> None:
    one = (await say(control, "echo 1"))[0]
    then = await read_thread(control, one.thread_id)
    two = await control.harness.send("echo 2", context_id=one.context_id)
    await control.harness.await_answer(two)
    other = await control.harness.send("echo 3", agent="other", context_id=one.context_id)
    await control.harness.await_answer(other)
    before = await read_thread(control, one.thread_id)
    shown = [await control.harness.read(accepted) for accepted in (one, two, other)]
    head = len(await control.harness.events(one))
    answer = await go_back(control, one, "back")
    assert answer == {
        "threadId": one.thread_id,
        "outcome": "rolled_back",
        "toTurn": one.turn_id,
        "covers": answer["covers"],
        "boundaryId": answer["boundaryId"],
        "turns": [two.turn_id, other.turn_id],
        "tasks": [two.facade, other.facade],
        "renewed": ["echo", "other"],
        "repeated": False,
    }
    assert await read_types(control, one, head) == [
        "history.rollback.started",
        "task.updated",
        "task.updated",
        "history.reconstructed",
        "history.rollback.completed",
        "snapshot.updated",
    ]
    now = await read_thread(control, one.thread_id)
    assert read_state(now) == read_state(then) != read_state(before)
    assert now.remotes == {}
    # All tasks stay readable, and are marked as rolled back.
    assert [await control.harness.read(accepted) for accepted in (one, two, other)] == shown
    marks = [(await control.record(one.task_id)).rolled_back for one in (one, two, other)]
    assert marks == [None, answer["boundaryId"], answer["boundaryId"]]
    line = await control.do("get_task_summary", taskId=two.facade)
    assert line["rolledBack"] == (await control.do("get_task", taskId=two.facade))["rolledBack"]
    # A repeat returns the same answer and does not roll back again.
    three = await control.harness.send("echo 4", context_id=one.context_id)
    await control.harness.await_answer(three)
    assert await go_back(control, one, "back") == {**answer, "repeated": True}
    after = await read_thread(control, one.thread_id)
    assert (after.turns, after.artifacts["result"].version) == (2, 2)
    contexts = [str(message["contextId"]) for message in control.harness.peer.messages]
    assert contexts[0] == contexts[1] != contexts[2]
    (artifact,) = (await control.record(three.task_id)).artifacts
    assert artifact.replaces == then.artifacts["result"].artifact_id
    with pytest.raises(IdempotencyConflict):
        await go_back(control, three, "back")
    assert (await verify_store(control.harness.store)).ok


@pytest.mark.requirement("EXT-11", "PRS-5")
async def test_a_thread_is_rolled_back_further_but_not_to_a_removed_turn(
    control: ControlClient,
) -> None:
    sent = await say(control, "echo 1", "echo 2", "echo 3", "echo 4")
    await go_back(control, sent[2])
    with pytest.raises(InvalidInput, match=r"toTurn.*already rolled back"):
        await go_back(control, sent[3])
    nothing = await go_back(control, sent[2])
    assert (nothing["outcome"], nothing.get("boundaryId")) == ("no_op", None)
    answer = await go_back(control, sent[0])
    assert answer["turns"] == [sent[1].turn_id, sent[2].turn_id]
    state = read_state(await read_thread(control, sent[0].thread_id))
    assert (state.turns, state.artifacts["result"].version) == (1, 1)
    gone = [(await control.record(one.task_id)).rolled_back is not None for one in sent]
    assert gone == [False, True, True, True]


@pytest.mark.requirement("EXT-11", "PRS-5")
async def test_rollback_over_open_work_or_to_an_unknown_turn_is_refused_by_name(
    control: ControlClient,
) -> None:
    (one,), (elsewhere,) = await say(control, "echo 1"), await say(control, "echo 1")
    head = len(await control.harness.events(one))
    for unknown in (elsewhere.turn_id, "turn_00zzzzzzzzzzzzzzzzzzzzzzzzzz", "x"):
        with pytest.raises(InvalidInput) as refused:
            await control.do("roll_back_thread", threadId=one.thread_id, toTurn=unknown)
        assert refused.value.field == "toTurn"
    with pytest.raises(NotFound):
        await go_back(control, one, None, BOB)
    reader = Principal("ada", kind="person", scopes=frozenset({AccessScope.READ_TASKS}))
    with pytest.raises(Forbidden):
        await go_back(control, one, None, reader)

    async def ask(turn: Turn) -> None:
        await turn.status("INPUT_REQUIRED", "which boat?")

    assert await read_types(control, one, head) == []
    control.harness.peer.next(ask)
    asked = await control.harness.send("a boat", context_id=one.context_id)
    await control.harness.await_answer(asked)
    with pytest.raises(UnsupportedOperation, match="toTurn") as open_task:
        await go_back(control, one)
    assert open_task.value.details["tasks"] == asked.facade
    await control.harness.cancel(asked)
    assert (await go_back(control, one))["tasks"] == [asked.facade]
    with pytest.raises(UnsupportedOperation, match="rolled back"):
        await control.do("retry_task", taskId=asked.facade, reason="again")


@pytest.mark.requirement("EXT-11")
async def test_a_turn_during_a_rollback_is_rolled_back_as_well(
    control: ControlClient,
) -> None:
    one, two = await say(control, "echo 1", "echo 2")
    late: list[TurnAccepted] = []

    async def come_first(batch: Batch) -> None:
        if any(b"history.rollback.started" in one.begin for one in batch.events) and not late:
            late.append(await control.harness.send("echo late", context_id=one.context_id))
            await control.harness.await_answer(late[0])

    control.harness.log.before_append = come_first
    answer = await go_back(control, one)
    assert answer["turns"] == [two.turn_id, late[0].turn_id]
    assert (await verify_store(control.harness.store)).ok


@pytest.mark.requirement("EXT-11", "I2")
async def test_a_rollback_is_stored_completely_or_not_at_all(control: ControlClient) -> None:
    one, _ = await say(control, "echo 1", "echo 2")
    before, head = await read_thread(control, one.thread_id), len(await control.harness.events(one))
    control.harness.log.refuses_writes = True
    with pytest.raises(StoreUnavailable):
        await go_back(control, one, "back")
    control.harness.log.refuses_writes = False
    assert await read_thread(control, one.thread_id) == before
    assert await read_types(control, one, head) == []

    async def lose_reply(_batch: Batch) -> None:
        control.harness.log.after_append = None
        raise StoreUnavailable("the reply is lost", "unknown")

    control.harness.log.after_append = lose_reply
    with pytest.raises(StoreUnavailable):
        await go_back(control, one, "back")
    again = await go_back(control, one, "back")
    assert (again["outcome"], again["repeated"]) == ("rolled_back", True)
    sent = await read_types(control, one, head)
    assert sent.count("history.rollback.completed") == 1


@pytest.mark.requirement("EXT-11", "LT-14")
async def test_a_rolled_back_context_continues_the_same_with_and_without_templates(
    control: ControlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same conversation with templates and without: threads and facts differ only in ids and times."""
    shapes: list[list[str]] = []
    opened, fill = list[bool](), TemplatedTurns.open

    async def see_open(turns: TemplatedTurns, request: TurnRequest) -> OpenedTurn | None:
        turn = await fill(turns, request)
        opened.append(turn is not None)
        return turn

    monkeypatch.setattr(TemplatedTurns, "open", see_open)
    for templated in (True, False):
        if not templated:

            async def decide_all(*_args: object) -> None:
                return None

            monkeypatch.setattr(TemplatedTurns, "open", decide_all)
        one, _ = await say(control, "echo 1", "echo 2")
        await go_back(control, one)
        for text in ("echo 3", "echo 4"):
            await control.harness.await_answer(
                await control.harness.send(text, context_id=one.context_id)
            )
        place = list_places(ADA, one.context_id)[0]
        thread = await read_thread(control, place.thread.id)
        assert (thread.turns, thread.artifacts["result"].version) == (3, 3)
        assert thread.rolled_back is not None
        shapes.append([event.type for event in await control.harness.events(one)])
    assert shapes[0] == shapes[1]
    assert opened == [True] * 4
    assert (await verify_store(control.harness.store)).ok


async def test_models_of_a_thread_mark_what_was_rolled_back(control: ControlClient) -> None:
    one, two = await say(control, "echo 1", "echo 2")
    answer = await go_back(control, one)
    thread = await control.do("get_thread", threadId=one.thread_id)
    back = cast("JsonObject", thread["rolledBack"])
    assert (back["toTurn"], back["boundaryId"]) == (one.turn_id, answer["boundaryId"])
    lines = {line["taskId"]: line for line in cast("list[JsonObject]", thread["tasks"])}
    assert "rolledBack" in lines[two.facade]
    assert "rolledBack" not in lines[one.facade]
    (chain,) = cast("list[JsonObject]", thread["artifacts"])
    versions = cast("list[JsonObject]", chain["versions"])
    assert [(line["version"], line.get("rolledBack")) for line in versions] == [
        (1, None),
        (2, True),
    ]
    session = await control.do("get_session", sessionId=one.session_id)
    items = cast("list[JsonObject]", cast("JsonObject", session["history"])["items"])
    marked = {str(item["turnId"]) for item in items if item.get("rolledBack")}
    assert marked == {two.turn_id}
    last = items[-1]
    assert (last["kind"], last["ref"]) == ("rollback", answer["boundaryId"])


@pytest.mark.requirement("EXT-11", "PRS-5")
async def test_open_work_before_the_boundary_refuses_the_rollback(control: ControlClient) -> None:
    async def ask(turn: Turn) -> None:
        await turn.status("INPUT_REQUIRED", "which boat?")

    control.harness.peer.next(ask)
    (asked,) = await say(control, "a boat")
    two = await control.harness.send("echo 2", context_id=asked.context_id)
    await control.harness.await_answer(two)
    with pytest.raises(UnsupportedOperation, match="toTurn") as refused:
        await go_back(control, asked)
    assert refused.value.details["tasks"] == asked.facade
    # A task that was created and not started is no turn yet.
    await control.do("create_task", agent="echo", objective="later", contextId=asked.context_id)
    await control.harness.cancel(asked)
    assert (await go_back(control, asked))["tasks"] == [two.facade]


@pytest.mark.requirement("EXT-11", "CMD-30")
async def test_a_key_is_scoped_to_its_thread(control: ControlClient) -> None:
    one, _ = await say(control, "echo 1", "echo 2")
    sibling = await control.harness.send("echo 1", session_id=one.session_id)
    await control.harness.await_answer(sibling)
    await control.harness.await_answer(
        await control.harness.send("echo 2", context_id=sibling.context_id)
    )
    answers = [await go_back(control, first, "same key") for first in (one, sibling)]
    assert [answer["outcome"] for answer in answers] == ["rolled_back", "rolled_back"]
    assert [answer["threadId"] for answer in answers] == [one.thread_id, sibling.thread_id]

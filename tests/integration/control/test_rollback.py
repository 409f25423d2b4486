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
from tests.support.desk import Desk
from tests.support.house import ADA, BOB
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio


async def read_thread(desk: Desk, thread_id: str) -> ThreadRecord:
    ref = EntityRef(EntityKind.THREAD, thread_id)
    record = (await desk.house.parts.writes.load([ref]))[ref].record
    assert isinstance(record, ThreadRecord)
    return record


async def say(desk: Desk, *texts: str, agent: str = "echo") -> list[TurnAccepted]:
    """Sends turns of one context and waits for each response."""
    sent: list[TurnAccepted] = []
    for text in texts:
        context = sent[0].context_id if sent else None
        accepted = await desk.house.send(text, agent=agent, context_id=context)
        await desk.house.hear(accepted)
        sent.append(accepted)
    return sent


async def go_back(
    desk: Desk, to: TurnAccepted, idem: str | None = None, who: Principal = ADA
) -> JsonObject:
    return await desk.do(
        "roll_back_thread", idem, who, threadId=to.thread_id, toTurn=to.turn_id, reason="no boats"
    )


async def read_types(desk: Desk, accepted: TurnAccepted, after: int) -> list[str]:
    return [event.type for event in await desk.house.events(accepted) if event.sequence > after]


@pytest.mark.requirement("EXT-11", "PRS-5", "A2A-4", "LT-17", "CMD-30")
async def test_rollback_removes_two_turns_and_the_next_turn_starts_without_them(
    desk: Desk,
) -> None:
    one = (await say(desk, "echo 1"))[0]
    then = await read_thread(desk, one.thread_id)
    two = await desk.house.send("echo 2", context_id=one.context_id)
    await desk.house.hear(two)
    other = await desk.house.send("echo 3", agent="other", context_id=one.context_id)
    await desk.house.hear(other)
    before = await read_thread(desk, one.thread_id)
    shown = [await desk.house.read(accepted) for accepted in (one, two, other)]
    head = len(await desk.house.events(one))
    answer = await go_back(desk, one, "back")
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
    assert await read_types(desk, one, head) == [
        "history.rollback.started",
        "task.updated",
        "task.updated",
        "history.reconstructed",
        "history.rollback.completed",
        "snapshot.updated",
    ]
    now = await read_thread(desk, one.thread_id)
    assert read_state(now) == read_state(then) != read_state(before)
    assert now.remotes == {}
    # All tasks stay readable, and are marked as rolled back.
    assert [await desk.house.read(accepted) for accepted in (one, two, other)] == shown
    marks = [(await desk.record(one.task_id)).rolled_back for one in (one, two, other)]
    assert marks == [None, answer["boundaryId"], answer["boundaryId"]]
    line = await desk.do("get_task_summary", taskId=two.facade)
    assert line["rolledBack"] == (await desk.do("get_task", taskId=two.facade))["rolledBack"]
    # A repeat returns the same answer and does not roll back again.
    three = await desk.house.send("echo 4", context_id=one.context_id)
    await desk.house.hear(three)
    assert await go_back(desk, one, "back") == {**answer, "repeated": True}
    after = await read_thread(desk, one.thread_id)
    assert (after.turns, after.artifacts["result"].version) == (2, 2)
    contexts = [str(message["contextId"]) for message in desk.house.peer.messages]
    assert contexts[0] == contexts[1] != contexts[2]
    (artifact,) = (await desk.record(three.task_id)).artifacts
    assert artifact.replaces == then.artifacts["result"].artifact_id
    with pytest.raises(IdempotencyConflict):
        await go_back(desk, three, "back")
    assert (await verify_store(desk.house.store)).ok


@pytest.mark.requirement("EXT-11", "PRS-5")
async def test_a_thread_is_rolled_back_further_but_not_to_a_removed_turn(
    desk: Desk,
) -> None:
    sent = await say(desk, "echo 1", "echo 2", "echo 3", "echo 4")
    await go_back(desk, sent[2])
    with pytest.raises(InvalidInput, match=r"toTurn.*already rolled back"):
        await go_back(desk, sent[3])
    nothing = await go_back(desk, sent[2])
    assert (nothing["outcome"], nothing.get("boundaryId")) == ("no_op", None)
    answer = await go_back(desk, sent[0])
    assert answer["turns"] == [sent[1].turn_id, sent[2].turn_id]
    state = read_state(await read_thread(desk, sent[0].thread_id))
    assert (state.turns, state.artifacts["result"].version) == (1, 1)
    gone = [(await desk.record(one.task_id)).rolled_back is not None for one in sent]
    assert gone == [False, True, True, True]


@pytest.mark.requirement("EXT-11", "PRS-5")
async def test_rollback_over_open_work_or_to_an_unknown_turn_is_refused_by_name(
    desk: Desk,
) -> None:
    (one,), (elsewhere,) = await say(desk, "echo 1"), await say(desk, "echo 1")
    head = len(await desk.house.events(one))
    for unknown in (elsewhere.turn_id, "turn_00zzzzzzzzzzzzzzzzzzzzzzzzzz", "x"):
        with pytest.raises(InvalidInput) as refused:
            await desk.do("roll_back_thread", threadId=one.thread_id, toTurn=unknown)
        assert refused.value.field == "toTurn"
    with pytest.raises(NotFound):
        await go_back(desk, one, None, BOB)
    reader = Principal("ada", kind="person", scopes=frozenset({AccessScope.READ_TASKS}))
    with pytest.raises(Forbidden):
        await go_back(desk, one, None, reader)

    async def ask(turn: Turn) -> None:
        await turn.status("INPUT_REQUIRED", "which boat?")

    assert await read_types(desk, one, head) == []
    desk.house.peer.next(ask)
    asked = await desk.house.send("a boat", context_id=one.context_id)
    await desk.house.hear(asked)
    with pytest.raises(UnsupportedOperation, match="toTurn") as open_task:
        await go_back(desk, one)
    assert open_task.value.details["tasks"] == asked.facade
    await desk.house.cancel(asked)
    assert (await go_back(desk, one))["tasks"] == [asked.facade]
    with pytest.raises(UnsupportedOperation, match="rolled back"):
        await desk.do("retry_task", taskId=asked.facade, reason="again")


@pytest.mark.requirement("EXT-11")
async def test_a_turn_during_a_rollback_is_rolled_back_as_well(
    desk: Desk,
) -> None:
    one, two = await say(desk, "echo 1", "echo 2")
    late: list[TurnAccepted] = []

    async def come_first(batch: Batch) -> None:
        if any(b"history.rollback.started" in one.begin for one in batch.events) and not late:
            late.append(await desk.house.send("echo late", context_id=one.context_id))
            await desk.house.hear(late[0])

    desk.house.log.before_append = come_first
    answer = await go_back(desk, one)
    assert answer["turns"] == [two.turn_id, late[0].turn_id]
    assert (await verify_store(desk.house.store)).ok


@pytest.mark.requirement("EXT-11", "I2")
async def test_a_rollback_is_stored_completely_or_not_at_all(desk: Desk) -> None:
    one, _ = await say(desk, "echo 1", "echo 2")
    before, head = await read_thread(desk, one.thread_id), len(await desk.house.events(one))
    desk.house.log.refuses_writes = True
    with pytest.raises(StoreUnavailable):
        await go_back(desk, one, "back")
    desk.house.log.refuses_writes = False
    assert await read_thread(desk, one.thread_id) == before
    assert await read_types(desk, one, head) == []

    async def lose_reply(_batch: Batch) -> None:
        desk.house.log.after_append = None
        raise StoreUnavailable("the reply is lost", "unknown")

    desk.house.log.after_append = lose_reply
    with pytest.raises(StoreUnavailable):
        await go_back(desk, one, "back")
    again = await go_back(desk, one, "back")
    assert (again["outcome"], again["repeated"]) == ("rolled_back", True)
    sent = await read_types(desk, one, head)
    assert sent.count("history.rollback.completed") == 1


@pytest.mark.requirement("EXT-11", "LT-14")
async def test_a_rolled_back_context_continues_the_same_with_and_without_templates(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
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
        one, _ = await say(desk, "echo 1", "echo 2")
        await go_back(desk, one)
        for text in ("echo 3", "echo 4"):
            await desk.house.hear(await desk.house.send(text, context_id=one.context_id))
        place = list_places(ADA, one.context_id)[0]
        thread = await read_thread(desk, place.thread.id)
        assert (thread.turns, thread.artifacts["result"].version) == (3, 3)
        assert thread.rolled_back is not None
        shapes.append([event.type for event in await desk.house.events(one)])
    assert shapes[0] == shapes[1]
    assert opened == [True] * 4
    assert (await verify_store(desk.house.store)).ok


async def test_models_of_a_thread_mark_what_was_rolled_back(desk: Desk) -> None:
    one, two = await say(desk, "echo 1", "echo 2")
    answer = await go_back(desk, one)
    thread = await desk.do("get_thread", threadId=one.thread_id)
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
    session = await desk.do("get_session", sessionId=one.session_id)
    items = cast("list[JsonObject]", cast("JsonObject", session["history"])["items"])
    marked = {str(item["turnId"]) for item in items if item.get("rolledBack")}
    assert marked == {two.turn_id}
    last = items[-1]
    assert (last["kind"], last["ref"]) == ("rollback", answer["boundaryId"])


@pytest.mark.requirement("EXT-11", "PRS-5")
async def test_open_work_before_the_boundary_refuses_the_rollback(desk: Desk) -> None:
    async def ask(turn: Turn) -> None:
        await turn.status("INPUT_REQUIRED", "which boat?")

    desk.house.peer.next(ask)
    (asked,) = await say(desk, "a boat")
    two = await desk.house.send("echo 2", context_id=asked.context_id)
    await desk.house.hear(two)
    with pytest.raises(UnsupportedOperation, match="toTurn") as refused:
        await go_back(desk, asked)
    assert refused.value.details["tasks"] == asked.facade
    # A task that was created and not started is no turn yet.
    await desk.do("create_task", agent="echo", objective="later", contextId=asked.context_id)
    await desk.house.cancel(asked)
    assert (await go_back(desk, asked))["tasks"] == [two.facade]


@pytest.mark.requirement("EXT-11", "CMD-30")
async def test_a_key_is_scoped_to_its_thread(desk: Desk) -> None:
    one, _ = await say(desk, "echo 1", "echo 2")
    sibling = await desk.house.send("echo 1", session_id=one.session_id)
    await desk.house.hear(sibling)
    await desk.house.hear(await desk.house.send("echo 2", context_id=sibling.context_id))
    answers = [await go_back(desk, first, "same key") for first in (one, sibling)]
    assert [answer["outcome"] for answer in answers] == ["rolled_back", "rolled_back"]
    assert [answer["threadId"] for answer in answers] == [one.thread_id, sibling.thread_id]

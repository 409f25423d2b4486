"""Queued turns of a context: enqueued, promoted, removed, refused, and interrupting ones."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from passerelle.core.commands import SubmitTurn, TurnAccepted
from passerelle.core.errors import (
    Forbidden,
    IdempotencyConflict,
    NotFound,
    PeerUnavailable,
    UnsupportedOperation,
)
from passerelle.core.oversight_requests import DrainAgent, PauseAgent, ResumeAgent
from passerelle.core.payloads.conversation import QueueChanged, QueuePolicy
from passerelle.core.principal import OWNER
from passerelle.core.session.requests import (
    GetTurnQueue,
    PromoteQueuedTurn,
    RemoveQueuedTurn,
    SetQueuePolicy,
    TurnQueue,
)
from passerelle.core.task.requests import GiveTask
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs import turns as opening
from passerelle.permission_bridge.rules import DEFAULT_POLICY, Rule
from tests.support.harness import ADA, BOB, Harness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def begin(harness: Harness, text: str = "first") -> TurnAccepted:
    """Begins a turn that the agent works on until it is released."""
    harness.peer.hold()
    accepted = await harness.send(text, wait="none")
    await wait_until(lambda: harness.peer.texts[-1:] == [text], 10, "the agent works at it")
    return accepted


async def follow(
    harness: Harness, first: TurnAccepted, text: str, policy: QueuePolicy | None = "queue"
) -> TurnAccepted:
    command = SubmitTurn(
        "echo",
        {**harness.message(text), "contextId": first.context_id},
        "http",
        "none",
        context_id=first.context_id,
        when_busy=policy,
    )
    return cast("TurnAccepted", await harness.service.execute(ADA, command, None))


async def list_queue(harness: Harness, first: TurnAccepted) -> list[str]:
    read = await harness.service.read(ADA, GetTurnQueue(first.thread_id))
    return [str(one["turnId"]) for one in cast("list[JsonObject]", read["turns"])]


async def list_changes(harness: Harness, first: TurnAccepted) -> list[tuple[str, tuple[str, ...]]]:
    events = await harness.events(first)
    payloads = [one.fact.payload for one in events]
    return [(one.change, one.order) for one in payloads if isinstance(one, QueueChanged)]


@pytest.mark.requirement("EVC-11", "CF-2", "CMD-15")
async def test_queue_of_three_is_promoted_and_removed_in_order(harness: Harness) -> None:
    first = await begin(harness)
    assert first.position is None
    turns = [await follow(harness, first, f"turn {number}") for number in range(3)]
    assert [one.position for one in turns] == [1, 2, 3]
    one, two, three = (turn.turn_id for turn in turns)
    record = await harness.record(turns[0])
    assert (record.status, record.attempts) == (Status.QUEUED, ())
    assert "another message of this context is in progress" in str(record.status_reason)
    assert await list_queue(harness, first) == [one, two, three]
    promoted = await harness.service.execute(ADA, PromoteQueuedTurn(first.thread_id, three), None)
    assert [turn.turn_id for turn in cast("TurnQueue", promoted).turns] == [three, one, two]
    await harness.service.execute(ADA, RemoveQueuedTurn(first.thread_id, two), None)
    assert await list_queue(harness, first) == [three, one]
    assert (await harness.record(turns[1])).status is Status.CANCELLED
    assert await list_changes(harness, first) == [
        ("enqueued", (one,)),
        ("enqueued", (one, two)),
        ("enqueued", (one, two, three)),
        ("promoted", (three, one, two)),
        ("removed", (three, one)),
    ]
    harness.peer.release_all()
    for turn in (turns[2], turns[0]):
        await harness.until(turn, Status.COMPLETED)
    assert harness.peer.texts == ["first", "turn 2", "turn 0"]
    assert await list_queue(harness, first) == []
    assert (await list_changes(harness, first))[-2:] == [("dequeued", (one,)), ("dequeued", ())]
    types = await harness.types(first)
    assert types.count("turn.started") == 3, "the removed turn never started"


async def test_queued_turns_run_one_after_another(harness: Harness) -> None:
    first = await begin(harness)
    turns = [await follow(harness, first, f"turn {number}") for number in range(3)]
    harness.peer.release_all()
    for turn in turns:
        await harness.until(turn, Status.COMPLETED)
    assert harness.peer.most_sends == 1
    assert harness.peer.texts == ["first", "turn 0", "turn 1", "turn 2"]


@pytest.mark.requirement("SNAP-4", "VAL-5")
async def test_queue_is_the_same_after_a_restart(harness: Harness) -> None:
    first = await begin(harness)
    turns = [await follow(harness, first, f"turn {number}") for number in range(3)]
    await harness.service.execute(ADA, PromoteQueuedTurn(first.thread_id, turns[1].turn_id), None)
    await harness.service.execute(ADA, SetQueuePolicy(first.thread_id, "queue"), None)
    before = await harness.service.read(ADA, GetTurnQueue(first.thread_id))
    await harness.restart()
    assert await harness.service.read(ADA, GetTurnQueue(first.thread_id)) == before
    shown = cast("list[JsonObject]", before["turns"])
    assert [one["position"] for one in shown] == [1, 2, 3]
    assert {str(one["resumeState"]) for one in shown} == {"waiting"}
    assert before["policy"] == "queue"
    # Due rows restore the order even if the queue itself is lost.
    line = f"thread:{first.thread_id}"
    while await harness.store.queues.take(line) is not None:
        pass
    for turn in turns:
        await harness.run_due("queued", turn.task_id, after_ms=0)
    assert await harness.service.read(ADA, GetTurnQueue(first.thread_id)) == before
    harness.peer.release_all()
    await harness.adopt(first)
    for turn in (turns[1], turns[0], turns[2]):
        await harness.until(turn, Status.COMPLETED)
    sent = list(dict.fromkeys(harness.peer.texts))
    assert sent == ["first", "turn 1", "turn 0", "turn 2"]


async def test_queue_policy_of_a_context_can_be_set(harness: Harness) -> None:
    first = await begin(harness)
    aside = await follow(harness, first, "aside", None)
    await wait_until(lambda: harness.peer.texts == ["first", "aside"], 10, "both run concurrently")
    assert aside.position is None
    changed = await harness.service.execute(ADA, SetQueuePolicy(first.thread_id, "reject"), None)
    assert cast("TurnQueue", changed).policy == "reject"
    with pytest.raises(UnsupportedOperation, match="in progress"):
        await follow(harness, first, "refused", None)
    await harness.service.execute(ADA, SetQueuePolicy(first.thread_id, "queue"), None)
    waits = await follow(harness, first, "waits", None)
    assert waits.position == 1
    harness.peer.release_all()
    await harness.until(waits, Status.COMPLETED)
    rests = await follow(harness, first, "rests", None)
    assert rests.position is None
    await harness.until(rests, Status.COMPLETED)
    assert harness.peer.texts == ["first", "aside", "waits", "rests"]
    changes = await list_changes(harness, first)
    assert [one for one, _ in changes] == ["policy", "policy", "enqueued", "dequeued"]
    with pytest.raises(NotFound):
        await harness.service.execute(BOB, SetQueuePolicy(first.thread_id, "queue"), None)


async def test_interrupting_turn_cancels_running_turns_and_runs_first(harness: Harness) -> None:
    first = await harness.send("ask", wait="none")
    await harness.until(first, Status.WAITING_INPUT)
    working = await follow(harness, first, "slow 20", None)

    async def is_known() -> bool:
        run = (await harness.record(working)).run
        return run is not None and run.remote_task_id is not None

    await wait_until(is_known, 10, "the agent works at it")
    waits = await follow(harness, first, "waits")
    urgent = await follow(harness, first, "urgent", "interrupt")
    await harness.until(working, Status.CANCELLED)
    await harness.until(urgent, Status.COMPLETED)
    await harness.until(waits, Status.COMPLETED)
    assert harness.peer.texts[-2:] == ["urgent", "waits"]
    assert (await harness.record(first)).status is Status.WAITING_INPUT, (
        "a task that waits for input is not interrupted"
    )


async def test_caller_cannot_change_turns_of_others(harness: Harness) -> None:
    first = await begin(harness)
    turn = await follow(harness, first, "mine")
    other = await harness.send("other", wait="none")
    for command in (
        PromoteQueuedTurn(other.thread_id, turn.turn_id),
        RemoveQueuedTurn(first.thread_id, first.turn_id),
    ):
        with pytest.raises(NotFound):
            await harness.service.execute(ADA, command, None)
    with pytest.raises(NotFound):
        await harness.service.execute(BOB, RemoveQueuedTurn(first.thread_id, turn.turn_id), None)
    with pytest.raises(NotFound):
        await harness.service.read(BOB, GetTurnQueue(first.thread_id))
    assert await list_queue(harness, first) == [turn.turn_id]
    harness.peer.release_all()
    await harness.until(turn, Status.COMPLETED)


async def test_dequeued_turn_of_a_paused_agent_waits_for_the_agent(
    harness: Harness,
) -> None:
    first = await begin(harness)
    turn = await follow(harness, first, "later")
    await harness.service.execute(OWNER, PauseAgent("echo"), None)
    harness.peer.release_all()
    await harness.until(first, Status.COMPLETED)

    async def has_moved() -> bool:
        queued = (await harness.record(turn)).queued
        return queued is not None and queued.cause == "paused"

    await wait_until(has_moved, 10, "it waits for its agent")
    assert await list_queue(harness, first) == []
    await harness.service.execute(OWNER, ResumeAgent("echo"), None)
    await harness.until(turn, Status.COMPLETED)
    await asyncio.sleep(0)


@pytest.mark.requirement("TEV-5")
async def test_transferred_turn_belongs_to_its_new_owner_and_keeps_its_place(
    harness: Harness,
) -> None:
    first = await begin(harness)
    given, mine = [await follow(harness, first, text) for text in ("given", "mine")]
    await harness.service.execute(ADA, GiveTask(given.task_id, BOB.id), None)
    read = await harness.service.read(ADA, GetTurnQueue(first.thread_id))
    shown = cast("list[JsonObject]", read["turns"])
    assert [(one["turnId"], one["position"]) for one in shown] == [(mine.turn_id, 2)]
    for command in (
        RemoveQueuedTurn(first.thread_id, given.turn_id),
        PromoteQueuedTurn(first.thread_id, given.turn_id),
    ):
        with pytest.raises(NotFound):
            await harness.service.execute(ADA, command, None)
    record = await harness.record(given)
    assert (record.status, record.cancel_requested_by) == (Status.QUEUED, None)


async def test_interrupting_message_does_not_cancel_a_task_of_another_owner(
    harness: Harness,
) -> None:
    first = await begin(harness)
    await harness.service.execute(ADA, GiveTask(first.task_id, BOB.id), None)
    urgent = await follow(harness, first, "urgent", "interrupt")
    record = await harness.record(first)
    assert (record.owner, record.cancel_requested_by) == (BOB.key, None)
    harness.peer.release_all()
    await harness.until(first, Status.COMPLETED)
    await harness.until(urgent, Status.COMPLETED)


@pytest.mark.requirement("EXT-1", "CMD-15")
async def test_rule_on_cancels_applies_to_removed_and_interrupted_turns(
    harness: Harness,
) -> None:
    rule = Rule("no-stop", "deny", about=frozenset({"commands"}))
    harness.rules = replace(DEFAULT_POLICY, rules=(rule,))
    first = await begin(harness)
    turn = await follow(harness, first, "stays")
    with pytest.raises(Forbidden):
        await harness.service.execute(ADA, RemoveQueuedTurn(first.thread_id, turn.turn_id), None)
    assert await list_queue(harness, first) == [turn.turn_id]
    assert (await list_changes(harness, first))[-1][0] == "enqueued"
    urgent = await follow(harness, first, "urgent", "interrupt")
    assert (await harness.record(first)).cancel_requested_by is None
    assert await list_queue(harness, first) == [urgent.turn_id, turn.turn_id]
    harness.peer.release_all()
    for one in (first, urgent, turn):
        await harness.until(one, Status.COMPLETED)


async def repeat(harness: Harness, command: SubmitTurn, key: str) -> TurnAccepted:
    return cast("TurnAccepted", await harness.service.execute(ADA, command, key))


@pytest.mark.requirement("CMD-30")
async def test_repeat_with_its_key_is_answered_where_a_new_message_is_refused(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the context runs this message, or has it queued, or its agent is drained."""
    rests = await harness.send("hello")
    await harness.until(rests, Status.COMPLETED)
    harness.peer.hold()

    def ask(text: str, policy: QueuePolicy) -> SubmitTurn:
        message = {**harness.message(text), "contextId": rests.context_id}
        return SubmitTurn(
            "echo", message, "http", "none", context_id=rests.context_id, when_busy=policy
        )

    commands = (ask("works", "reject"), ask("waits", "queue"))
    monkeypatch.setattr(opening, "MOST_WAITING", 1)
    for key, command in enumerate(commands):
        taken = await repeat(harness, command, f"key-{key}")
        again = await repeat(harness, command, f"key-{key}")
        assert (again.task_id, again.turn_id) == (taken.task_id, taken.turn_id)
        assert (taken.repeated, again.repeated) == (False, True)
        other = ask("refused", cast("QueuePolicy", command.when_busy))
        for other_key in (None, "another"):
            with pytest.raises(UnsupportedOperation):
                await harness.service.execute(ADA, other, other_key)
        with pytest.raises(IdempotencyConflict):
            await repeat(harness, ask("other words", "reject"), f"key-{key}")
    fresh = SubmitTurn("echo", harness.message("fresh"), "http", "none")
    taken = await repeat(harness, fresh, "key-fresh")
    await harness.service.execute(OWNER, DrainAgent("echo"), None)
    for command, name in ((fresh, "key-fresh"), (commands[0], "key-0")):
        again = await repeat(harness, command, name)
        assert again.repeated
    assert (await repeat(harness, fresh, "key-fresh")).task_id == taken.task_id
    with pytest.raises(PeerUnavailable):
        await harness.send("refused", idem="key-late")


async def test_stored_turn_missing_in_the_queue_can_be_promoted(harness: Harness) -> None:
    first = await begin(harness)
    turns = [await follow(harness, first, f"turn {number}") for number in range(2)]
    line = f"thread:{first.thread_id}"
    await harness.store.queues.drop(line, turns[1].task_id)
    assert await list_queue(harness, first) == [turns[0].turn_id]
    command = PromoteQueuedTurn(first.thread_id, turns[1].turn_id)
    promoted = await harness.service.execute(ADA, command, None)
    wanted = [turns[1].turn_id, turns[0].turn_id]
    assert [turn.turn_id for turn in cast("TurnQueue", promoted).turns] == wanted
    harness.peer.release_all()
    for turn in turns:
        await harness.until(turn, Status.COMPLETED)
    assert harness.peer.texts == ["first", "turn 1", "turn 0"]


async def test_stored_turn_missing_in_the_queue_can_be_removed(harness: Harness) -> None:
    first = await begin(harness)
    waiting = await follow(harness, first, "never")
    await harness.store.queues.drop(f"thread:{first.thread_id}", waiting.task_id)
    command = RemoveQueuedTurn(first.thread_id, waiting.turn_id)
    await harness.service.execute(ADA, command, None)
    assert (await harness.record(waiting)).status is Status.CANCELLED
    assert await list_queue(harness, first) == []
    with pytest.raises(NotFound):
        await harness.service.execute(ADA, command, None)
    harness.peer.release_all()
    await harness.until(first, Status.COMPLETED)
    assert harness.peer.texts == ["first"]

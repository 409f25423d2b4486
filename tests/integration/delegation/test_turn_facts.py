"""Facts at the start and end of a turn: the thread's status, and a snapshot that covers the whole turn."""

from __future__ import annotations

import pytest

from passerelle.core.commands import TurnAccepted
from passerelle.core.errors import PasserelleError
from passerelle.core.events import Event
from passerelle.core.payloads.conversation import ThreadStarted, ThreadUpdated
from passerelle.core.payloads.runtime import SnapshotUpdated
from passerelle.core.task.status import Status
from tests.support.harness import Harness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def list_thread(events: list[Event]) -> list[tuple[str, str | None]]:
    """The status events of a thread, and the events of its turns."""
    found: list[tuple[str, str | None]] = []
    for event in events:
        match event.fact.payload:
            case ThreadStarted(status=status) | ThreadUpdated(status=str(status)):
                found.append((event.type, status))
            case _:
                if event.type.startswith("turn."):
                    found.append((event.type, None))
    return found


FIRST = [
    ("thread.started", "running"),
    ("turn.submitted", None),
    ("turn.started", None),
    ("turn.completed", None),
    ("thread.updated", "idle"),
]
BEGUN = [("turn.submitted", None), ("turn.started", None), ("thread.updated", "running")]


def find_snapshots(events: list[Event], turn: TurnAccepted) -> list[Event]:
    return [
        event
        for event in events
        if isinstance(event.fact.payload, SnapshotUpdated)
        and event.fact.scope.turn_id == turn.turn_id
    ]


@pytest.mark.requirement("EVC-2", "EVC-18", "EVC-3")
async def test_thread_records_when_it_is_running_and_idle(harness: Harness) -> None:
    first, _ = await harness.talk("one")
    second = await harness.send("two", context_id=first.context_id)
    await harness.await_answer(second)
    await harness.until(second, Status.COMPLETED)
    events = await harness.events(first)
    ended = [("turn.completed", None), ("thread.updated", "idle")]
    assert list_thread(events) == [*FIRST, *BEGUN, *ended]
    for turn in (first, second):
        (snapshot,) = find_snapshots(events, turn)
        own = [event for event in events if event.fact.scope.turn_id == turn.turn_id]
        assert own[-1] == snapshot, "it covers all of the turn"


@pytest.mark.requirement("EVC-2", "EVC-18", "EVC-3")
async def test_thread_is_idle_only_after_its_last_turn_has_ended(harness: Harness) -> None:
    slow = await harness.send("ask which", wait="none")
    await harness.until(slow, Status.WAITING_INPUT)
    held = await harness.send("silent", context_id=slow.context_id, wait="none")
    failing = await harness.send("refuse", context_id=slow.context_id)
    with pytest.raises(PasserelleError):
        await harness.await_answer(failing)
    events = await harness.events(held)
    after = next(i for i, event in enumerate(events) if event.type == "turn.failed")
    assert list_thread(events[after:]) == [("turn.failed", None), ("thread.updated", "running")]
    assert len(find_snapshots(events, failing)) == 1
    assert not find_snapshots(events, held), "its turn is open"
    await harness.cancel(held)
    await harness.until(held, Status.CANCELLED)
    events = await harness.events(held)
    assert list_thread(events)[-2:] == [("turn.completed", None), ("thread.updated", "idle")]
    assert len(find_snapshots(events, held)) == 1


@pytest.mark.requirement("EVC-2", "EVC-18")
async def test_status_of_a_thread_is_recorded_once_for_turns_that_end_together(
    harness: Harness,
) -> None:
    accepted = await harness.send("silent", wait="none")
    await harness.until(accepted, Status.QUEUED)
    turns = [accepted, *[await harness.send("silent", task=accepted.facade) for _ in range(3)]]
    # A message that reaches the agent after the cancel is refused: its turn fails instead of ending with the others.
    await wait_until(lambda: len(harness.peer.messages) == 4, 15, "the agent has all four messages")
    await harness.cancel(accepted)
    await harness.until(accepted, Status.CANCELLED)
    events = await harness.events(accepted)
    ends = [event for event in events if event.type == "turn.completed"]
    assert {event.fact.scope.turn_id for event in ends} == {turn.turn_id for turn in turns}
    assert list_thread(events)[-5:] == [("turn.completed", None)] * 4 + [("thread.updated", "idle")]
    assert sum(len(find_snapshots(events, turn)) for turn in turns) == 1

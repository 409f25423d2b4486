"""Queued turns state what they wait for: other turns of their context, or an approval that a policy requires (CF-2)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from passerelle.core.commands import GetThread, SubmitTurn, TurnAccepted
from passerelle.core.payloads.conversation import QueuePolicy
from passerelle.core.principal import AccessScope
from passerelle.core.session.requests import (
    GetTurnQueue,
    PromoteQueuedTurn,
    RemoveQueuedTurn,
    SetQueuePolicy,
    TurnQueue,
)
from passerelle.core.task.requests import CreateTask, GiveTask, StartTask
from passerelle.core.task.status import Status, Visibility
from passerelle.delegation.runs.agent_queues import AgentQueues
from passerelle.permission_bridge.cases import About
from passerelle.permission_bridge.conditions import read_condition
from passerelle.permission_bridge.rules import Rule, make_policy
from tests.integration.delegation.test_turn_queue import begin, follow
from tests.support.harness import ADA, BOB
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.session.requests import TurnQueueQuery
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.task.requests import TaskChanged
    from tests.support.harness import Harness

pytestmark = pytest.mark.anyio

SENDS: Final[frozenset[About]] = frozenset({"delegations"})
OTHER_ASKS: Final = make_policy(
    (
        Rule("other-asks", "ask", read_condition('peer.name == "other"'), about=SENDS),
        Rule("all-may", "allow", about=SENDS),
    )
)


async def read_queue(harness: Harness, thread_id: str) -> dict[str, Any]:
    """Reads the queue of a thread; checks that the thread model contains the same."""
    query: TurnQueueQuery = GetTurnQueue(thread_id)
    queue = cast("dict[str, Any]", await harness.service.read(ADA, query))
    thread = cast("dict[str, Any]", await harness.service.read(ADA, GetThread(thread_id)))
    for member in ("turns", "gated"):
        assert thread["queue"].get(member, []) == queue.get(member, [])
    return queue


async def send_to(
    harness: Harness, first: TurnAccepted, agent: str, text: str, policy: QueuePolicy | None = None
) -> TurnAccepted:
    """Sends a further message of a context to the given agent."""
    command = SubmitTurn(
        agent,
        {**harness.message(text), "contextId": first.context_id},
        "http",
        "none",
        context_id=first.context_id,
        when_busy=policy,
    )
    return cast("TurnAccepted", await harness.service.execute(ADA, command, None))


async def await_gate(harness: Harness, accepted: TurnAccepted) -> str:
    """Waits for the gate of a turn; returns its approval id."""
    record = await harness.until(accepted, Status.WAITING_PERMISSION)
    (action,) = record.open_actions
    return action


@pytest.mark.requirement("CF-2", "SNAP-4")
async def test_turns_of_a_busy_thread_name_the_turns_before_them(harness: Harness) -> None:
    first = await begin(harness)
    one, two = [await follow(harness, first, f"turn {number}") for number in range(2)]
    queue = await read_queue(harness, first.thread_id)
    assert {turn["status"] for turn in queue["turns"]} == {"queued"}
    assert [(turn["turnId"], turn["behind"]) for turn in queue["turns"]] == [
        (one.turn_id, [first.turn_id]),
        (two.turn_id, [one.turn_id]),
    ]
    for turn in queue["turns"]:
        assert "another message of this context is in progress" in turn["reason"]
    assert queue.get("gated", []) == []
    promoted = await harness.service.execute(
        ADA, PromoteQueuedTurn(first.thread_id, two.turn_id), None
    )
    assert [(turn.turn_id, turn.behind) for turn in cast("TurnQueue", promoted).turns] == [
        (two.turn_id, (first.turn_id,)),
        (one.turn_id, (two.turn_id,)),
    ]
    await harness.service.execute(ADA, RemoveQueuedTurn(first.thread_id, two.turn_id), None)
    (left,) = (await read_queue(harness, first.thread_id))["turns"]
    assert (left["turnId"], left["behind"]) == (one.turn_id, [first.turn_id])
    harness.peer.release_all()
    await harness.until(one, Status.COMPLETED)
    assert (await read_queue(harness, first.thread_id)).get("turns", []) == []


@pytest.mark.requirement("CF-2", "MK-6")
async def test_turn_that_is_repeated_under_its_key_is_in_the_queue(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its instance may die between the append and the queue; its due row comes only seconds later."""
    first = await begin(harness)
    command = SubmitTurn(
        "echo",
        {**harness.message("turn"), "contextId": first.context_id},
        "http",
        "none",
        context_id=first.context_id,
        when_busy="queue",
    )

    async def die(_queues: AgentQueues, _record: TaskRecord) -> None:
        """Adds nothing, as an instance that was killed."""

    with monkeypatch.context() as killed:
        killed.setattr(AgentQueues, "enter", die)
        accepted = await harness.service.execute(ADA, command, "key")
    assert isinstance(accepted, TurnAccepted)
    assert (await read_queue(harness, first.thread_id)).get("turns", []) == []
    for _ in range(2):
        repeated = await harness.service.execute(ADA, command, "key")
        assert isinstance(repeated, TurnAccepted)
        assert (repeated.turn_id, repeated.repeated) == (accepted.turn_id, True)
        queue = await read_queue(harness, first.thread_id)
        assert [turn["turnId"] for turn in queue["turns"]] == [accepted.turn_id]
    harness.peer.release_all()
    await harness.until(accepted, Status.COMPLETED)
    again = await harness.service.execute(ADA, command, "key")
    assert isinstance(again, TurnAccepted)
    assert (await read_queue(harness, first.thread_id)).get("turns", []) == []


@pytest.mark.requirement("CF-2")
async def test_turn_of_another_owner_in_the_queue_is_not_named(harness: Harness) -> None:
    first = await begin(harness)
    given, mine = [await follow(harness, first, f"turn {number}") for number in range(2)]
    await harness.service.execute(ADA, GiveTask(given.task_id, BOB.id), None)
    (left,) = (await read_queue(harness, first.thread_id))["turns"]
    assert (left["turnId"], left["position"], left.get("behind", [])) == (mine.turn_id, 2, [])
    assert given.turn_id not in str(left)
    harness.peer.release_all()
    await harness.until(mine, Status.COMPLETED)


@pytest.mark.requirement("CF-2", "SNAP-4")
@pytest.mark.parametrize("policy", ["parallel", "queue"])
async def test_gated_turns_are_queued_with_their_rule_and_approval(
    street: Harness, policy: QueuePolicy
) -> None:
    street.rules = OTHER_ASKS
    first = await street.send("open it", agent="other", wait="none")
    question = await await_gate(street, first)
    await street.service.execute(ADA, SetQueuePolicy(first.thread_id, policy), None)
    second = await send_to(street, first, "other", "close it")
    other = await await_gate(street, second)
    for restarted in (False, True):
        if restarted:
            await street.restart()
        queue = await read_queue(street, first.thread_id)
        assert queue["turns"] == []
        gated = queue["gated"]
        assert [(one["turnId"], one["actionId"], one["taskId"]) for one in gated] == [
            (first.turn_id, question, first.facade),
            (second.turn_id, other, second.facade),
        ]
        for turn, text in zip(gated, ("open it", "close it"), strict=True):
            assert (turn["status"], turn["rules"]) == ("queued", ["other-asks"])
            assert turn["reason"] == f"Send this message to other? “{text}”"
            assert (turn["agent"], turn["source"]) == ("other", ADA.id)
            assert turn["since"] <= (await street.record(second)).updated_at
    assert street.peers["other"].messages == []
    assert (await street.record(first)).status is Status.WAITING_PERMISSION, (
        "the task has the precise status"
    )
    await street.adopt(first)
    await street.adopt(second)
    await street.respond(await street.question(first), option_id="send")
    await street.until(first, Status.COMPLETED)
    (left,) = (await read_queue(street, first.thread_id))["gated"]
    assert left["actionId"] == other
    await street.respond(await street.question(second), option_id="refuse")
    await street.until(second, Status.FAILED)
    assert (await read_queue(street, first.thread_id)).get("gated", []) == []
    assert street.peers["other"].texts == ["open it"]


@pytest.mark.requirement("CF-2")
async def test_queue_lists_gated_and_running_and_queued_turns(street: Harness) -> None:
    street.rules = OTHER_ASKS
    first = await begin(street)
    gated = await send_to(street, first, "other", "open it", "parallel")
    question = await await_gate(street, gated)
    waits = await send_to(street, first, "echo", "then this", "queue")
    also = await send_to(street, first, "other", "and that", "queue")
    queue = await read_queue(street, first.thread_id)
    assert queue["activeTurns"] == [first.turn_id]
    assert [(one["turnId"], one["behind"]) for one in queue["turns"]] == [
        (waits.turn_id, [first.turn_id]),
        (also.turn_id, [waits.turn_id]),
    ]
    assert [(one["turnId"], one["actionId"]) for one in queue["gated"]] == [
        (gated.turn_id, question)
    ]
    street.peer.release_all()
    await street.until(waits, Status.COMPLETED)
    later = await await_gate(street, also)
    queue = await read_queue(street, first.thread_id)
    assert queue.get("turns", []) == []
    assert [one["actionId"] for one in queue["gated"]] == [question, later]


@pytest.mark.requirement("CF-2")
async def test_agents_request_and_gate_of_another_thread_are_not_listed_as_gates(
    street: Harness,
) -> None:
    street.rules = OTHER_ASKS
    asking = await street.send("ask which?", wait="none")
    await street.until(asking, Status.WAITING_INPUT)
    elsewhere = await street.send(
        "open it", agent="other", wait="none", session_id=asking.session_id
    )
    await await_gate(street, elsewhere)
    assert (await read_queue(street, asking.thread_id)).get("gated", []) == []
    assert len((await read_queue(street, elsewhere.thread_id))["gated"]) == 1


@pytest.mark.requirement("TR-6", "CF-2")
async def test_turn_of_a_task_hidden_from_the_reader_is_not_listed(street: Harness) -> None:
    """The reason of a gated turn quotes the message."""
    street.rules = OTHER_ASKS
    first = await begin(street)
    waits = await send_to(street, first, "echo", "buy nets", "queue")
    create = CreateTask(
        "other", "sell boats", context_id=first.context_id, visibility=Visibility.HIDDEN
    )
    created = cast("TaskChanged", await street.service.execute(ADA, create, None))
    task_id = str(created.task["taskId"])
    await street.service.execute(ADA, StartTask(task_id, "http"), None)

    async def is_gated() -> bool:
        shown = await street.service.read(ADA, GetTurnQueue(first.thread_id))
        return len(cast("dict[str, Any]", shown).get("gated", [])) == 1

    await wait_until(is_gated, 10, "an operator sees the hidden task at the gate")
    assert len((await read_queue(street, first.thread_id))["gated"]) == 1
    reader = replace(ADA, scopes=ADA.scopes - {AccessScope.OPERATE})
    queue = await street.service.read(reader, GetTurnQueue(first.thread_id))
    thread = cast("dict[str, Any]", await street.service.read(reader, GetThread(first.thread_id)))
    for shown in (cast("dict[str, Any]", queue), thread["queue"]):
        assert [turn["turnId"] for turn in shown["turns"]] == [waits.turn_id]
        assert shown.get("gated", []) == []
        assert "boats" not in str(shown)
    # A reader without access to tasks of an agent sees that a turn is queued, but not which one.
    sender = replace(ADA, operations={"echo": frozenset({"SendMessage"}), "other": None})
    later = await send_to(street, first, "other", "buy rope", "queue")
    queue = await street.service.read(sender, GetTurnQueue(first.thread_id))
    (turn,) = cast("dict[str, Any]", queue)["turns"]
    assert (turn["turnId"], turn["position"], turn.get("behind", [])) == (later.turn_id, 2, [])
    street.peer.release_all()

"""The scripted peer behaves as configured, so tests that use it can rely on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from passerelle.core.peer import Answered, Closed, Peer, RefusedByPeer, Unknown
from passerelle.core.wire.json import JsonObject
from passerelle.peers.config import PeerConfig
from tests.contract.peers.conftest import Clients
from tests.contract.peers.test_peer_suite import (
    read_all,
    result_of,
    say,
    state_of,
    task_of,
    texts_of,
)
from tests.support.scripted_behaviours import BEHAVIOURS
from tests.support.scripted_peer import CancelOutcome, ScriptedPeer
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

Connect = Callable[..., Peer]


async def test_frames_are_sent_when_they_are_released(
    scripted: ScriptedPeer, connect: Connect
) -> None:
    scripted.hold()
    reading = asyncio.create_task(read_all(connect().stream(say("chunks 2"))))
    await wait_until(lambda: scripted.messages, 10, "the message has come")
    assert scripted.tasks == {}
    scripted.release(3)
    await wait_until(
        lambda: (
            "artifacts" in scripted.tasks["scripted-task-1"].record if scripted.tasks else False
        ),
        10,
        "task, status and first chunk have left",
    )
    assert texts_of(scripted.tasks["scripted-task-1"].record) == ["chunk-1 "]
    assert not reading.done()
    scripted.release_all()
    assert (await reading)[-1] == Closed()


async def test_task_continues_when_its_caller_is_cut_off(
    scripted: ScriptedPeer, connect: Connect
) -> None:
    scripted.hold()
    reading = asyncio.create_task(read_all(connect().stream(say("chunks 2"))))
    scripted.release(2)
    await wait_until(lambda: scripted.tasks, 10, "the peer has the task")
    task = scripted.tasks["scripted-task-1"]
    await wait_until(lambda: task.state == "WORKING", 10, "it works")
    scripted.cut()
    assert isinstance((await reading)[-1], Unknown)
    scripted.release_all()
    await asyncio.wait_for(task.finished.wait(), 10)
    assert task.state == "COMPLETED"


async def test_two_peers_may_use_the_same_task_id(clients: Clients) -> None:
    async with ScriptedPeer("one") as one, ScriptedPeer("two") as two:
        for agent in (one, two):
            agent.use_task_ids("the-same")
            peer = clients.connect(PeerConfig(agent.name, agent.url))
            assert task_of(await peer.send(say("hello")))["id"] == "the-same"
        await clients.close()


async def test_history_is_kept_or_empty_as_configured(
    scripted: ScriptedPeer, connect: Connect
) -> None:
    peer = connect()
    await peer.send(say("first", contextId="c"))
    scripted.keeps_history = False
    await peer.send(say("second", contextId="c"))
    page = result_of(await peer.list({"contextId": "c"}))
    newest, oldest = cast("list[JsonObject]", page["tasks"])
    assert "history" not in newest
    assert "history" in oldest
    scripted.lists = False
    assert isinstance(await peer.list({}), RefusedByPeer)


async def test_pages_of_a_list_follow_each_other(connect: Connect) -> None:
    peer = connect()
    for _ in range(3):
        await peer.send(say("hello"))
    first = result_of(await peer.list({"pageSize": 2}))
    second = result_of(await peer.list({"pageSize": 2, "pageToken": first["nextPageToken"]}))
    ids = [
        task["id"] for page in (first, second) for task in cast("list[JsonObject]", page["tasks"])
    ]
    assert ids == ["scripted-task-3", "scripted-task-2", "scripted-task-1"]
    assert second["nextPageToken"] == ""


async def test_forgotten_task_is_not_found(scripted: ScriptedPeer, connect: Connect) -> None:
    peer = connect()
    assert isinstance((await read_all(peer.stream(say("forget"))))[-1], Unknown)
    refused = await peer.get("scripted-task-1")
    assert isinstance(refused, RefusedByPeer)
    assert refused.code == -32001


async def test_duplicates_arrive_twice_and_a_message_may_follow_a_task(connect: Connect) -> None:
    peer = connect()
    frames = (await read_all(peer.stream(say("twice"))))[:-1]
    assert frames[1] == frames[2]
    kinds = [
        next(iter(result_of(frame)))
        for frame in (await read_all(peer.stream(say("message-after-task"))))[:-1]
    ]
    assert kinds == ["task", "statusUpdate", "message", "statusUpdate"]


async def test_cancel_ends_as_configured(scripted: ScriptedPeer, connect: Connect) -> None:
    peer = connect()
    outcomes: tuple[tuple[CancelOutcome, str], ...] = (
        ("ignored", "SUBMITTED"),
        ("completed", "COMPLETED"),
    )
    for outcome, state in outcomes:
        scripted.on_cancel = outcome
        stream = peer.stream(say("silent"))
        task_id = str(task_of(await anext(stream))["id"])
        assert state_of(result_of(await peer.cancel(task_id))) == f"TASK_STATE_{state}"
        if outcome == "completed":
            assert (await read_all(stream))[-1] == Closed()
    scripted.on_cancel = "refused"
    assert isinstance(await peer.cancel("scripted-task-1"), RefusedByPeer)


async def test_task_can_be_moved_from_outside(scripted: ScriptedPeer, connect: Connect) -> None:
    peer = connect()
    asked = task_of(await peer.send(say("auth")))
    following = peer.subscribe(str(asked["id"]))
    await anext(following)
    scripted.tasks["scripted-task-1"].status("COMPLETED")
    assert (await read_all(following))[-1] == Closed()


async def test_nonblocking_send_is_answered_at_once(
    scripted: ScriptedPeer, connect: Connect
) -> None:
    params: JsonObject = {**say("silent"), "configuration": {"returnImmediately": True}}
    assert state_of(task_of(await connect().send(params))) == "TASK_STATE_SUBMITTED"


async def test_own_script_runs_for_a_word_or_for_the_next_message(
    scripted: ScriptedPeer, connect: Connect
) -> None:
    async def greet(turn: Turn) -> None:
        await turn.answer(f"greetings, {turn.argument}")

    peer = connect()
    scripted.on("greet", greet)
    assert "greetings, you" in str(await peer.send(say("greet you")))
    scripted.next(greet)
    assert "greetings, there" in str(await peer.send(say("hello there")))
    assert "task" in result_of(await peer.send(say("hello there")))


QUIET = {"mute", "silent"}


@pytest.mark.parametrize("word", sorted(BEHAVIOURS.keys() - QUIET))
async def test_every_behaviour_ends(connect: Connect, word: str) -> None:
    peer = connect()
    outcomes = await read_all(peer.stream(say(word)))
    assert not isinstance(outcomes[-1], Answered)
    await peer.send(say(word))

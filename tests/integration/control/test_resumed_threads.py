"""Resumed threads: which tasks are followed from then on, and what their caller has missed (CMD-3, CMD-34)."""

from __future__ import annotations

from typing import cast

import pytest

from passerelle.core.commands import TurnAccepted
from passerelle.core.errors import BadCursor, InvalidInput, NotFound
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from passerelle.protocol.cursor import Cursor, parse_cursor
from tests.integration.control.test_rollback import say
from tests.support.desk import Desk
from tests.support.house import BOB
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def resume(desk: Desk, first: TurnAccepted, token: str | None = None) -> JsonObject:
    given: dict[str, Json] = {} if token is None else {"resumeToken": token}
    return await desk.do("resume_thread", threadId=first.thread_id, **given)


async def read_cursor(desk: Desk, session_id: str) -> str:
    head = await desk.house.store.log.read_head(StreamRef(StreamKind.SESSION, session_id))
    assert head is not None
    return str(Cursor(head.epoch, head.sequence, head.chain))


@pytest.mark.requirement("CMD-34", "CMD-3")
@pytest.mark.parametrize("restarts", [False, True])
async def test_token_tells_how_many_events_its_caller_has_missed(
    desk: Desk, *, restarts: bool
) -> None:
    (first,) = await say(desk, "one")
    begun = await resume(desk, first)
    assert (begun["tasks"], begun.get("resumed"), begun.get("missed")) == ([], None, None)
    token = str(begun["resumeToken"])
    assert token == await read_cursor(desk, first.session_id)
    assert (await resume(desk, first, token))["missed"] == 0
    await desk.house.hear(await desk.house.send("two", context_id=first.context_id))
    if restarts:
        await desk.house.restart()
    later = await resume(desk, first, token)
    stored = await desk.house.entries(first.session_id)
    assert (later["resumed"], later["missed"]) == (
        "exact",
        len(stored) - parse_cursor(token).sequence,
    )
    assert later["resumeToken"] == await read_cursor(desk, first.session_id)
    snapshot = await desk.do("get_session", sessionId=first.session_id)
    assert (await resume(desk, first, str(snapshot["cursor"])))["missed"] == 0


@pytest.mark.requirement("CMD-34")
async def test_token_of_another_history_is_a_gap_with_its_reason(desk: Desk) -> None:
    (first,) = await say(desk, "one")
    cursor = parse_cursor(str((await resume(desk, first))["resumeToken"]))
    for wrong, why in (
        (Cursor("00000000", cursor.sequence, cursor.chain), "epoch"),
        (Cursor(cursor.epoch, cursor.sequence + 5, cursor.chain), "ahead"),
        (Cursor(cursor.epoch, cursor.sequence - 1, "00000000"), "forked"),
    ):
        answer = await resume(desk, first, str(wrong))
        assert (answer["resumed"], answer["gap"], answer.get("missed")) == ("gap", why, None)
        assert answer["resumeToken"] == str(cursor)


@pytest.mark.requirement("CMD-34")
@pytest.mark.parametrize("token", ["", "now", "1.2.3", "x" * 65])
async def test_malformed_token_is_refused(desk: Desk, token: str) -> None:
    (first,) = await say(desk, "one")
    with pytest.raises((BadCursor, InvalidInput)) as refused:
        await resume(desk, first, token)
    assert "resumeToken" in str(refused.value)
    with pytest.raises(NotFound):
        await desk.do("resume_thread", None, BOB, threadId=first.thread_id)


@pytest.mark.requirement("CMD-3")
async def test_queued_turns_continue_without_a_follower(desk: Desk) -> None:
    (first,) = await say(desk, "one")
    desk.house.peer.hold()
    busy = await desk.house.send("two", context_id=first.context_id, wait="stream")
    queued = await desk.do(
        "submit_turn",
        "k-1",
        agent="echo",
        text="three",
        contextId=first.context_id,
        whenBusy="queue",
    )

    async def is_known() -> bool:
        run = (await desk.record(busy.task_id)).run
        return run is not None and run.remote_task_id is not None

    desk.house.peer.release(1)
    await wait_until(is_known, 10, "the agent has the second message")
    await desk.house.restart()
    answer = await resume(desk, first)
    (one,) = cast("list[JsonObject]", answer["tasks"])
    assert (one["taskId"], one["outcome"], answer["waitingTurns"]) == (
        busy.facade,
        "attached",
        1,
    )
    desk.house.peer.release_all()
    await desk.until(busy.task_id, Status.COMPLETED)
    await desk.until(str(queued["taskId"]), Status.COMPLETED)
    assert desk.house.peer.texts == ["one", "two", "three"]
    assert (await resume(desk, first))["waitingTurns"] == 0

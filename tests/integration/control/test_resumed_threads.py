"""Threads that are taken up again: what is followed from there on, and what their caller has missed (CMD-3, CMD-34)."""

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
from tests.support.control_client import ControlClient
from tests.support.harness import BOB
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def resume(
    control: ControlClient, first: TurnAccepted, token: str | None = None
) -> JsonObject:
    given: dict[str, Json] = {} if token is None else {"resumeToken": token}
    return await control.do("resume_thread", threadId=first.thread_id, **given)


async def read_cursor(control: ControlClient, session_id: str) -> str:
    head = await control.harness.store.log.read_head(StreamRef(StreamKind.SESSION, session_id))
    assert head is not None
    return str(Cursor(head.epoch, head.sequence, head.chain))


@pytest.mark.requirement("CMD-34", "CMD-3")
@pytest.mark.parametrize("restarts", [False, True])
async def test_token_says_how_much_its_caller_has_missed(
    control: ControlClient, *, restarts: bool
) -> None:
    (first,) = await say(control, "one")
    begun = await resume(control, first)
    assert (begun["tasks"], begun.get("resumed"), begun.get("missed")) == ([], None, None)
    token = str(begun["resumeToken"])
    assert token == await read_cursor(control, first.session_id)
    assert (await resume(control, first, token))["missed"] == 0
    await control.harness.await_answer(
        await control.harness.send("two", context_id=first.context_id)
    )
    if restarts:
        await control.harness.restart()
    later = await resume(control, first, token)
    stored = await control.harness.entries(first.session_id)
    assert (later["resumed"], later["missed"]) == (
        "exact",
        len(stored) - parse_cursor(token).sequence,
    )
    assert later["resumeToken"] == await read_cursor(control, first.session_id)
    snapshot = await control.do("get_session", sessionId=first.session_id)
    assert (await resume(control, first, str(snapshot["cursor"])))["missed"] == 0


@pytest.mark.requirement("CMD-34")
async def test_token_that_does_not_hold_is_a_gap_with_its_reason(control: ControlClient) -> None:
    (first,) = await say(control, "one")
    cursor = parse_cursor(str((await resume(control, first))["resumeToken"]))
    for wrong, why in (
        (Cursor("00000000", cursor.sequence, cursor.chain), "epoch"),
        (Cursor(cursor.epoch, cursor.sequence + 5, cursor.chain), "ahead"),
        (Cursor(cursor.epoch, cursor.sequence - 1, "00000000"), "forked"),
    ):
        answer = await resume(control, first, str(wrong))
        assert (answer["resumed"], answer["gap"], answer.get("missed")) == ("gap", why, None)
        assert answer["resumeToken"] == str(cursor)


@pytest.mark.requirement("CMD-34")
@pytest.mark.parametrize("token", ["", "now", "1.2.3", "x" * 65])
async def test_what_is_no_token_is_refused(control: ControlClient, token: str) -> None:
    (first,) = await say(control, "one")
    with pytest.raises((BadCursor, InvalidInput)) as refused:
        await resume(control, first, token)
    assert "resumeToken" in str(refused.value)
    with pytest.raises(NotFound):
        await control.do("resume_thread", None, BOB, threadId=first.thread_id)


@pytest.mark.requirement("CMD-3")
async def test_turns_that_wait_go_on_where_nobody_looks_at_them(control: ControlClient) -> None:
    (first,) = await say(control, "one")
    control.harness.peer.hold()
    busy = await control.harness.send("two", context_id=first.context_id, wait="stream")
    queued = await control.do(
        "submit_turn",
        "k-1",
        agent="echo",
        text="three",
        contextId=first.context_id,
        whenBusy="queue",
    )

    async def is_known() -> bool:
        run = (await control.record(busy.task_id)).run
        return run is not None and run.remote_task_id is not None

    control.harness.peer.release(1)
    await wait_until(is_known, 10, "the agent has the second message")
    await control.harness.restart()
    answer = await resume(control, first)
    (one,) = cast("list[JsonObject]", answer["tasks"])
    assert (one["taskId"], one["outcome"], answer["waitingTurns"]) == (
        busy.facade,
        "attached",
        1,
    )
    control.harness.peer.release_all()
    await control.until(busy.task_id, Status.COMPLETED)
    await control.until(str(queued["taskId"]), Status.COMPLETED)
    assert control.harness.peer.texts == ["one", "two", "three"]
    assert (await resume(control, first))["waitingTurns"] == 0

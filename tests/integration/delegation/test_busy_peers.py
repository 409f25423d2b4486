"""Agents that take no more work, or say too much: what the caller learns, and what the record says."""

from __future__ import annotations

import pytest

from passerelle.core.errors import PeerUnavailable
from passerelle.core.payloads.limit import Limited, RateLimitHit
from passerelle.core.status import Status
from tests.support.house import House
from tests.support.scripted_peer import HttpAnswer
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("status", "is_limit"), [(429, True), (503, False)])
async def test_busy_agent_is_told_with_its_wait(
    house: House, status: int, *, is_limit: bool
) -> None:
    house.peer.answer_next(HttpAnswer(status, headers={"Retry-After": "7"}))
    accepted = await house.send("hello")
    with pytest.raises(PeerUnavailable) as caught:
        await house.hear(accepted)
    assert caught.value.retry_after_s == 7
    await house.until(accepted, Status.FAILED)
    facts = [event.fact.payload for event in await house.events(accepted)]
    hits = [payload for payload in facts if isinstance(payload, RateLimitHit)]
    wanted = RateLimitHit(Limited("peer", "echo"), "peer", 7_000, "429")
    assert hits == ([wanted] if is_limit else [])


async def test_agent_whose_task_is_longer_than_may_be_read_is_told_to_stop(house: House) -> None:
    endless = HttpAnswer(200, b"[" + b" " * (16 * 1024 * 1024) + b"]")

    async def story(turn: Turn) -> None:
        await turn.status("WORKING")
        house.peer.answer_next(endless, endless)
        await turn.drop()

    house.peer.next(story)
    accepted = await house.send("hello", wait="stream")
    record = await house.until(accepted, Status.FAILED)
    assert record.last_error is not None
    assert record.last_error.code == "invalid_agent_response"
    await wait_until(lambda: house.peer.count("CancelTask"), 5, "the agent is told to stop")

"""Agents that take no more work: the caller learns when to come back, and the record why."""

from __future__ import annotations

import pytest

from passerelle.core.errors import PeerUnavailable
from passerelle.core.payloads.limit import Limited, RateLimitHit
from passerelle.core.status import Status
from tests.support.house import House
from tests.support.scripted_peer import HttpAnswer

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

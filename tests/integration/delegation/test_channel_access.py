"""Who may subscribe to which streams over a channel: the same scopes, agents and operations apply as for A2A."""

from __future__ import annotations

from dataclasses import replace

import pytest

from passerelle.a2a_mapping.rpc import Method
from passerelle.channels.services import StreamName
from passerelle.core.errors import Forbidden, NotFound
from passerelle.core.principal import AccessScope, Principal
from passerelle.permission_bridge.answers.question_lists import QuestionLists, QuestionPage
from tests.support.harness import ADA, Harness

pytestmark = pytest.mark.anyio
SENDER = replace(ADA, operations={"echo": frozenset({Method.SEND_MESSAGE.value})})
ELSEWHERE = replace(ADA, agents=frozenset({"other"}))
VISITOR = replace(ADA, scopes=frozenset({AccessScope.CONNECT}))


async def test_subscriptions_are_limited_by_scopes_agents_and_operations(harness: Harness) -> None:
    accepted, _ = await harness.talk("hello")
    access = harness.parts.grants
    task, session = StreamName("task", accepted.facade), StreamName("session", accepted.session_id)

    async def follow(who: Principal, name: StreamName) -> None:
        await access.grant(who, name, full=False)

    for name in (task, session, StreamName("inbox", None)):
        await follow(ADA, name)
        with pytest.raises(Forbidden):
            await follow(VISITOR, name)
    for name in (task, session):
        await follow(replace(ADA, agents=frozenset({"echo"})), name)
        with pytest.raises(Forbidden):
            await follow(SENDER, name)
    with pytest.raises(NotFound):
        await follow(ELSEWHERE, task)
    with pytest.raises(Forbidden):
        await follow(ELSEWHERE, session)


async def test_welcome_contains_no_approvals_without_the_right_to_read_them(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find(*_: object) -> QuestionPage:
        return QuestionPage([{"actionId": "act_1"}])

    monkeypatch.setattr(QuestionLists, "find", find)
    snapshots = harness.parts.snapshots
    assert await snapshots.read_pending(ADA, 10) == (({"actionId": "act_1"},), False)
    assert await snapshots.read_pending(VISITOR, 10) == ((), False)

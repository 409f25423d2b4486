"""``retention.forget`` is applied automatically, at its time, in the shards of an instance."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import structlog
from structlog.testing import capture_logs

from passerelle.core.ids import Shard
from passerelle.delegation.duties.retention_sweep import RetentionSweep
from passerelle.store.archive.terms import ForgetTerms
from passerelle.store.archive.tombstones import LegalHold
from tests.contract.test_archive import AT_MS, Story, begin, leave
from tests.contract.test_forgetting import ADA, BOB, HOME
from tests.support.batches import make_place

if TYPE_CHECKING:
    from passerelle.store.store import Store

pytestmark = pytest.mark.anyio
DAY_MS = 86_400_000


@dataclass(slots=True)
class EndedStory(Story):
    """A session whose records name its outcome and its agent."""

    status: str = "completed"
    agent: str = "echo"

    def _write_record(self) -> tuple[bytes, ...]:
        said = f'"status":"{self.status}","assignee":"{self.agent}"'
        written = f'{{"sessionId":"{self.at.session}","owner":"{self.owner}",{said},"last":['
        return (written.encode(),)


def make_sweep(
    store: Store, terms: ForgetTerms, days: float, counted: Counter[str], *shards: Shard
) -> RetentionSweep:
    return RetentionSweep(
        store.session_forgetting,
        lambda: frozenset(shards or (HOME,)),
        lambda _shard: AT_MS + round(days * DAY_MS),
        structlog.get_logger(),
        lambda outcome, sessions: counted.update({outcome: sessions}),
        terms,
        rest_share=0,
    )


async def append_story(
    store: Store, status: str = "completed", agent: str = "echo", owner: str = ADA
) -> Story:
    return await begin(
        store, 2, EndedStory(make_place(HOME), owner=owner, status=status, agent=agent)
    )


async def exist(store: Store, *stories: Story) -> list[bool]:
    return [await store.log.read_head(story.at.stream) is not None for story in stories]


@pytest.mark.requirement("FGT-4")
async def test_sessions_are_erased_at_their_time_by_outcome_and_agent(store: Store) -> None:
    done, failed, lost = [
        await append_story(store, status) for status in ("completed", "failed", "lost")
    ]
    bank = await append_story(store, agent="bank")
    stories = (done, failed, lost, bank)
    await leave(store, *stories[1:])
    terms = ForgetTerms(
        {"completed": 2 * DAY_MS, "failed": 5 * DAY_MS}, {"bank": {"completed": 9 * DAY_MS}}
    )
    counted = Counter[str]()
    for days, left in (
        (1.9, [True, True, True, True]),
        (2.1, [False, True, True, True]),
        (4.9, [False, True, True, True]),
        (5.1, [False, False, True, True]),
        (9.1, [False, False, True, False]),
        (999, [False, False, True, False]),
    ):
        await make_sweep(store, terms, days, counted).sweep()
        assert await exist(store, *stories) == left, days
    assert counted == {"forgotten": 3}


async def test_erasure_is_logged_with_its_tombstones_and_done_in_parts(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from passerelle.delegation.duties import retention_sweep

    monkeypatch.setattr(retention_sweep, "_AT_ONCE", 2)
    stories = [await append_story(store) for _ in range(5)]
    await leave(store, *stories[:3])
    counted = Counter[str]()
    sweep = make_sweep(store, ForgetTerms({"completed": DAY_MS}), 2, counted)
    with capture_logs() as logs:
        assert await sweep.sweep() == 5
    assert await exist(store, *stories) == [False] * 5
    said = [one for one in logs if one["event"] == "retention.forgotten"]
    assert [one["sessions"] for one in said] == [2, 2, 1]
    assert counted == {"forgotten": 5}
    lost = await store.session_forgetting.tombstones.list_lost(HOME, 0)
    assert {one.id for one in lost} == {name for one in said for name in one["tombstones"]}
    assert {one.by for one in lost} == {"retention.forget"}


async def test_other_shards_held_owners_and_missing_terms_are_skipped(store: Store) -> None:
    mine, other = await append_story(store), await append_story(store, owner=BOB)
    terms, counted = ForgetTerms({"completed": DAY_MS}), Counter[str]()
    assert await make_sweep(store, terms, 2, counted, Shard(10)).sweep() == 0
    assert await make_sweep(store, ForgetTerms(), 999, counted).sweep() == 0
    assert await store.tombstones.hold(ADA, LegalHold(AT_MS, "carl", "case 12"))
    assert await make_sweep(store, terms, 2, counted).sweep() == 1
    assert await exist(store, mine, other) == [True, False]
    await store.tombstones.release(ADA)
    assert await make_sweep(store, terms, 2, counted).sweep() == 1
    assert await exist(store, mine) == [False]

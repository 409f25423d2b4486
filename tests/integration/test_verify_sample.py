"""Verification of some sessions: random ones, recent ones, and the daily sample."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from passerelle.cli.verify import read_since
from passerelle.core.batch import EntityRef, Loaded
from passerelle.core.errors import InvalidInput, StoreUnavailable
from passerelle.core.ids import Shard, shard_of
from passerelle.delegation.duties.verification_sweep import VerificationSweep
from passerelle.delegation.verification.subset import SessionSubset
from passerelle.delegation.verification.walk import verify_store
from passerelle.runtime.common.clock import SystemIds
from passerelle.store import keys
from passerelle.store.store import Store, StoreSettings
from tests.contract.test_archive import Story as ArchiveStory
from tests.contract.test_archive import begin, leave
from tests.integration.duties.story import Story, make_writes
from tests.integration.test_verify import DRIVER, SHARD, make_story, server
from tests.support.batches import make_place
from tests.support.engine import Server, ask
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
__all__ = ["server"]
NOON_MS = 1_795_780_800_000
"""2026-11-27T12:00:00Z."""


@pytest.fixture
async def store(server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Store]:
    ask(server.url, "FLUSHDB")
    async with await Store.open(StoreSettings(server.url, tmp_path / "blobs")) as opened:
        yield opened


async def damage(store: Store, server: Server, story: Story) -> bytes:
    """Edits the snapshot of a task; returns the original."""
    (loaded,) = await store.log.load([story.task])
    edited = loaded.snapshot.replace(b"say hello", b"say hallo")
    ask(server.url, "HSET", keys.entity(story.task), "s", edited.decode())
    return loaded.snapshot


async def test_sample_is_random_each_time(store: Store) -> None:
    stories = [await make_story(store) for _ in range(6)]
    drawn = set[tuple[str, ...]]()
    for _ in range(40):
        report = await verify_store(store, subset=SessionSubset(2, draw=SystemIds().draw))
        assert (report.ok, report.sessions, report.entities) == (True, 2, 10)
        found = await store.inspection.draw_sessions([SHARD], 2, SystemIds().draw)
        drawn.add(tuple(sorted(found)))
    assert len(drawn) > 5
    assert {one for pair in drawn for one in pair} == {story.session.id for story in stories}
    assert (
        await verify_store(store, subset=SessionSubset(50, draw=SystemIds().draw))
    ).sessions == 6


async def test_only_sessions_with_recent_events_are_verified(store: Store) -> None:
    await make_story(store)
    archived = await begin(store, 2, ArchiveStory(make_place(Shard(9))))
    # Its events are of a past day, and it is only in the archive.
    await leave(store, archived)
    now_ms = store.clock.read_ms(SHARD)
    recorded = list[tuple[int, int]]()

    def record_progress(done: int, of: int) -> None:
        recorded.append((done, of))

    async def count(since_ms: int) -> tuple[int, int]:
        subset = SessionSubset(since_ms=since_ms)
        report = await verify_store(store, subset=subset, on_progress=record_progress)
        return report.sessions, report.archived

    assert await count(0) == (2, 1)
    assert recorded == [(1, 2), (2, 2)]
    assert await count(now_ms - 3_600_000) == (1, 0)
    assert await count(now_ms + 3_600_000) == (0, 0)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("24h", NOON_MS - 86_400_000),
        ("24h ago", NOON_MS - 86_400_000),
        ("1h30m", NOON_MS - 5_400_000),
        ("2026-11-27T12:00:00Z", NOON_MS),
        ("2026-11-27T14:00:00+02:00", NOON_MS),
    ],
)
def test_since_is_a_time_or_a_duration(text: str, ms: int) -> None:
    assert read_since(text, NOON_MS) == ms


@pytest.mark.parametrize(
    "text", ["", "yesterday", "24", "ago", " ago", "2026-11-27T12:00:00", "-1h"]
)
def test_invalid_since_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^since: "):
        read_since(text, NOON_MS)


@dataclass
class Counts:
    """Recorded metrics."""

    recorded: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, outcome: str, sessions: int) -> None:
        self.recorded[outcome] = self.recorded.get(outcome, 0) + sessions


def make_sweep(store: Store, counts: Counts) -> VerificationSweep:
    return VerificationSweep(
        store,
        lambda: frozenset({SHARD, Shard(9)}),
        SystemIds().draw,
        structlog.get_logger(),
        counts.add,
        first_s=0,
        every_s=0.01,
        pause_s=0,
        again_s=0,
    )


async def test_daily_sample_reports_damage_in_engine_and_archive(
    store: Store, server: Server, tmp_path: Path
) -> None:
    story, archived = await make_story(store), Story(make_writes(store), SHARD, DRIVER)
    await archived.begin()
    await archived.fail()
    left = await store.archiver.archive(SHARD, [archived.session.id])
    assert left.sessions == [archived.session.id]
    await make_story(store)
    elsewhere = await begin(store, 2, ArchiveStory(make_place(Shard(11))))
    counts = Counts()
    with capture_logs() as logs:
        assert await make_sweep(store, counts).sweep() == []
    assert counts.recorded == {"whole": 3}, (
        f"{elsewhere.at.session} is in a shard of another instance"
    )
    assert logs == []

    await damage(store, server, story)
    [segment] = await store.archive.list_segments(SHARD)
    [path] = (tmp_path / "blobs").rglob(segment.name.sha256)
    content = path.read_bytes()
    for place, subject in ((20, archived.session.id), (-1, segment.name.sha256)):
        edited = bytearray(content)
        edited[place] ^= 1
        path.write_bytes(edited)
        counts = Counts()
        async with await Store.open(StoreSettings(server.url, tmp_path / "blobs")) as fresh:
            with capture_logs() as logs:
                await make_sweep(fresh, counts).sweep()
        assert counts.recorded == {"whole": 1, "damaged": 2}
        recorded = {(one["event"], one["log_level"], one["kind"], one["subject"]) for one in logs}
        assert recorded == {
            ("verify.problem", "error", "mismatch", story.task.id),
            ("verify.problem", "error", "archive", subject),
        }


async def test_found_damage_is_logged_if_the_rest_of_the_pass_fails(
    store: Store, server: Server
) -> None:
    stories = [await make_story(store) for _ in range(2)]
    for story in stories:
        await damage(store, server, story)
    counted = list[str]()

    def count(outcome: str, _sessions: int) -> None:
        counted.append(outcome)
        if len(counted) == 2:
            raise StoreUnavailable("it goes away", "no")

    sweep = make_sweep(store, Counts())
    sweep.count = count
    with capture_logs() as logs, pytest.raises(StoreUnavailable):
        await sweep.sweep()
    assert {one["subject"] for one in logs} == {story.task.id for story in stories}


async def test_transient_difference_is_not_reported(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = await make_story(store)
    original, counts = await damage(store, server, story), Counts()
    sweep = make_sweep(store, counts)
    load_rows = store.log.load
    asked = list[object]()

    async def repair_after(refs: Sequence[EntityRef]) -> list[Loaded]:
        found = await load_rows(refs)
        asked.append(refs)
        ask(server.url, "HSET", keys.entity(story.task), "s", original.decode())
        return found

    monkeypatch.setattr(store.log, "load", repair_after)
    with capture_logs() as logs:
        assert await sweep.sweep() == []
    assert len(asked) == 2, "it was damaged on the first read"
    assert (counts.recorded, logs) == ({"whole": 1}, [])


async def test_failing_pass_is_counted_and_the_next_one_runs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_story(store)
    counts = Counts()
    sweep = make_sweep(store, counts)
    draw = store.inspection.draw_sessions
    fails = [True]

    async def fail_once(*given: object) -> list[str]:
        if fails:
            fails.pop()
            raise StoreUnavailable("it is away", "no")
        return await draw(*given)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(store.inspection, "draw_sessions", fail_once)
    running = asyncio.create_task(sweep.run())
    try:
        await wait_until(lambda: counts.recorded.get("whole", 0) > 0, 5, "the next pass")
    finally:
        running.cancel()
    assert counts.recorded["failed"] == 1
    assert shard_of((await draw([SHARD], 1, SystemIds().draw))[0]) == SHARD

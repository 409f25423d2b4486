"""When sessions are archived: how long they stay as memory gets low, and how small a segment may be."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest
import structlog

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.delegation.duties import archive_sweep
from passerelle.delegation.duties.archive_sweep import ArchiveSweep
from passerelle.store.archive.archiver import Archiver, ArchiveResult
from passerelle.store.archive.ended_sessions import EndedSession, EndedSessions
from passerelle.store.archive.session_agents import SessionAgents
from passerelle.store.archive.terms import MemoryTerms
from passerelle.store.fullness import Fullness, MemoryReport, StoreMemory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000
HOME = Shard(5)


@dataclass
class Memory:
    """A store that is full to this percentage."""

    percent: int
    fullness: Fullness = Fullness.NORMAL

    @property
    def fullest(self) -> MemoryReport:
        return MemoryReport(self.percent, 100)


@dataclass
class Sessions:
    """Sessions that have ended, by their age in ms, and segments that were asked for."""

    ages_ms: list[int] = field(default_factory=list[int])
    asked: list[list[str]] = field(default_factory=list[list[str]])
    homes: tuple[Shard, ...] = (HOME,)
    stays: list[str] = field(default_factory=list[str])
    forgotten: list[str] = field(default_factory=list[str])
    looks: int = 0
    writing_s: float = 0.0
    fails: bool = False
    agents: dict[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])
    """By the age of a session; the others have none."""
    read: list[str] = field(default_factory=list[str])
    """Sessions whose agents were asked for."""

    async def find(
        self, shards: frozenset[Shard], before_ms: int
    ) -> dict[Shard, list[EndedSession]]:
        if self.fails:
            reason = "connection refused"
            raise StoreUnavailable(reason, "no")
        self.looks += 1
        ended = [
            EndedSession(f"se_{age}", NOW_MS - age, 10)
            for age in sorted(self.ages_ms, reverse=True)
            if NOW_MS - age < before_ms
        ]
        return {home: ended for home in self.homes if ended and home in shards}

    async def find_agents(
        self, sessions: dict[Shard, list[EndedSession]]
    ) -> dict[str, frozenset[str]]:
        asked = [one for part in sessions.values() for one in part]
        self.read += [one.session for one in asked]
        return {one.session: self.agents.get(NOW_MS - one.at_ms, frozenset()) for one in asked}

    def forget(self, sessions: list[str]) -> None:
        self.forgotten += sessions

    async def archive_together(
        self, parts: dict[Shard, list[str]], before_ms: int
    ) -> ArchiveResult:
        assert parts.keys() <= {*self.homes}
        assert before_ms < NOW_MS
        sessions = [one for part in parts.values() for one in part]
        self.asked.append(sessions)
        await asyncio.sleep(self.writing_s)
        gone = [one for one in sessions if one not in self.stays]
        return ArchiveResult(gone, 100 * len(gone), [one for one in sessions if one in self.stays])


@dataclass
class Agents:
    sessions: Sessions

    async def find(self, sessions: dict[Shard, list[EndedSession]]) -> dict[str, frozenset[str]]:
        return await self.sessions.find_agents(sessions)


def make(
    sessions: Sessions,
    *,
    keep_ms: int | None = 24 * HOUR_MS,
    memory: Memory | None = None,
    agents: dict[str, int | None] | None = None,
) -> tuple[ArchiveSweep, list[tuple[str, int]]]:
    counted = list[tuple[str, int]]()
    sweep = ArchiveSweep(
        cast("EndedSessions", sessions),
        cast("SessionAgents", Agents(sessions)),
        cast("Archiver", sessions),
        cast("StoreMemory", memory or Memory(10)),
        lambda: frozenset(sessions.homes),
        lambda _shard: NOW_MS,
        structlog.get_logger("passerelle"),
        lambda outcome, count: counted.append((outcome, count)),
        MemoryTerms(keep_ms, agents or {}),
    )
    return sweep, counted


@pytest.mark.parametrize(
    ("percent", "fullness", "hours"),
    [
        (79, Fullness.NORMAL, 24.0),
        (80, Fullness.LOW, 24.0),
        (85, Fullness.LOW, 12.0),
        (89, Fullness.LOW, 2.4),
        (95, Fullness.FULL, 1 / 60),
    ],
)
def test_sessions_stay_the_shorter_the_fuller_memory_is(
    percent: int, fullness: Fullness, hours: float
) -> None:
    sweep, _ = make(Sessions(), memory=Memory(percent, fullness))
    assert sweep.find_terms().keep_ms == pytest.approx(hours * HOUR_MS, abs=1)
    short, _ = make(Sessions(), keep_ms=5_000, memory=Memory(percent, fullness))
    assert short.find_terms().keep_ms == 5_000


async def test_no_session_is_archived_without_a_retention_time() -> None:
    sessions = Sessions([48 * HOUR_MS], fails=True)
    sweep, _ = make(sessions, keep_ms=None)
    assert await sweep.sweep() == 0


async def test_each_agent_has_sessions_leave_at_its_own_time() -> None:
    hours = {2: "hourly", 3: "other", 26: "weekly", 27: "hourly", 28: "never"}
    sessions = Sessions(
        [hour * HOUR_MS for hour in hours],
        agents={hour * HOUR_MS: frozenset({agent}) for hour, agent in hours.items()},
    )
    sessions.ages_ms.append(29 * HOUR_MS)
    sessions.agents[29 * HOUR_MS] = frozenset({"hourly", "weekly"})
    own: dict[str, int | None] = {"hourly": HOUR_MS, "weekly": 168 * HOUR_MS, "never": None}
    sweep, _ = make(sessions, agents=own)
    assert await sweep.sweep() == 2
    assert sessions.asked == [[f"se_{27 * HOUR_MS}", f"se_{2 * HOUR_MS}"]]
    sweep.terms = MemoryTerms(24 * HOUR_MS, {**own, "never": HOUR_MS, "weekly": HOUR_MS})
    sessions.ages_ms, sessions.read = [3 * HOUR_MS, *sessions.ages_ms[2:]], []
    assert await sweep.sweep() == 4
    assert sessions.read == [f"se_{3 * HOUR_MS}"], "the others may leave whatever they have"


async def test_agents_are_not_asked_for_where_all_have_one_time() -> None:
    sessions = Sessions([26 * HOUR_MS])
    sweep, _ = make(sessions)
    assert (await sweep.sweep(), sessions.read) == (1, [])


async def test_a_store_that_keeps_all_but_one_agent_looks_for_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive_sweep, "_SOONEST_S", 0.01)
    monkeypatch.setattr(archive_sweep, "_PRESSED_S", 0.01)
    sessions = Sessions([48 * HOUR_MS], agents={48 * HOUR_MS: frozenset({"hourly"})})
    sweep, _ = make(sessions, keep_ms=None)
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(sweep.run())
        sweep.terms = MemoryTerms(None, {"hourly": 1})
        await wait_until(lambda: bool(sessions.asked), 3, "terms that are set anew hold at once")
        looking.cancel()


async def test_a_sweep_follows_soon_on_one_that_archived_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive_sweep, "_SOONEST_S", 0.01)
    sessions = Sessions([HOUR_MS + number for number in range(16)], writing_s=0.5)
    sweep, _ = make(sessions, keep_ms=1)
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(sweep.run())
        await wait_until(lambda: sessions.looks > 2, 3, "it has looked again, and again")
        looking.cancel()


async def test_few_sessions_wait_for_others_for_an_hour() -> None:
    day = 24 * HOUR_MS
    few = Sessions([day + 1_000 + number for number in range(15)])
    sweep, _ = make(few)
    assert (await sweep.sweep(), few.asked) == (0, [])
    few.ages_ms[-1] = day + HOUR_MS + 1
    assert (await sweep.sweep(), len(few.asked)) == (15, 1)
    many = Sessions([day + 1_000 + number for number in range(64 + 15)])
    sweep, counted = make(many)
    assert await sweep.sweep() == 64
    assert [len(part) for part in many.asked] == [64]
    assert many.asked[0][0] == f"se_{day + 1_000 + 78}", "the oldest go first"
    assert counted == [("archived", 64)]


async def test_few_sessions_of_many_shards_leave_in_one_object_once_their_time_has_come() -> None:
    day = 24 * HOUR_MS
    homes = tuple(Shard(number) for number in range(30))
    sessions = Sessions([day + HOUR_MS + 1, day + HOUR_MS + 2], homes=homes)
    sweep, _ = make(sessions)
    assert await sweep.sweep() == 60
    assert [len(one) for one in sessions.asked] == [60]
    sessions.ages_ms = [day + 1, day + 2]
    assert (await sweep.sweep(), len(sessions.asked)) == (0, 1)


async def test_session_that_could_not_be_archived_is_tried_again() -> None:
    day = 24 * HOUR_MS
    ages_ms = [day + HOUR_MS + number for number in range(1, 4)]
    sessions = Sessions(ages_ms, stays=[f"se_{ages_ms[1]}"])
    sweep, _ = make(sessions)
    assert (await sweep.sweep(), sessions.forgotten) == (2, sessions.stays)


async def test_under_pressure_few_sessions_do_not_wait() -> None:
    sessions = Sessions([13 * HOUR_MS])
    sweep, _ = make(sessions, memory=Memory(85, Fullness.LOW))
    assert await sweep.sweep() == 1


async def test_nothing_is_looked_for_while_something_is_in_the_way() -> None:
    said = ["blobs is another place", "blobs is another place", None]

    async def find() -> str | None:
        return said.pop(0)

    sweep, _ = make(Sessions())
    sweep.find_obstacle = find
    assert [await sweep.may_archive() for _ in range(3)] == [False, False, True]
    assert sweep.obstacle is None

"""Sessions leave memory at the time configured for their agent; with several agents the longest applies."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import structlog

from passerelle.core.batch import Appended
from passerelle.core.ids import Shard
from passerelle.delegation.duties.archive_sweep import ArchiveSweep
from passerelle.store.archive.session_agents import SessionAgents
from passerelle.store.archive.terms import MemoryTerms
from tests.contract.test_archive import AT_MS, leave, list_keys
from tests.contract.test_forgetting import HOME
from tests.contract.test_retention_sweep import DAY_MS, EndedStory, append_story
from tests.support.batches import make_place

if TYPE_CHECKING:
    from passerelle.store.connection import RespValue
    from passerelle.store.store import Store
    from tests.contract.test_archive import Story
    from tests.support.engine import Server

pytestmark = pytest.mark.anyio
TERMS = MemoryTerms(DAY_MS, {"hourly": DAY_MS // 24, "weekly": 7 * DAY_MS, "bank": None})


def make_sweep(store: Store, days: float, terms: MemoryTerms = TERMS) -> ArchiveSweep:
    return ArchiveSweep(
        store.ended_sessions,
        SessionAgents(store.nodes),
        store.archiver,
        store.memory,
        lambda: frozenset({HOME}),
        lambda _shard: AT_MS + round(days * DAY_MS),
        structlog.get_logger(),
        lambda _outcome, _sessions: None,
        terms,
    )


async def begin_task(store: Store, session: str, agent: str, story: Story) -> None:
    """A further task in a session, for another agent."""
    further = EndedStory(replace(make_place(HOME), session=session), agent=agent)
    head, *others = further.refs
    further.stamps = {story.refs[0]: story.stamps[story.refs[0]]} | {
        ref: further.stamps[ref] for ref in others
    }
    assert head == story.refs[0]
    assert isinstance(await store.log.append(further.tell()), Appended)


@pytest.mark.requirement("ST-18")
async def test_each_agent_has_its_own_time_and_the_longest_counts(
    store: Store, server: Server
) -> None:
    stories = {
        agent: await append_story(store, agent=agent)
        for agent in ("hourly", "echo", "weekly", "bank")
    }
    stories["both"] = both = await append_story(store, agent="hourly")
    await begin_task(store, both.at.session, "weekly", both)
    for days, gone in (
        (0.04, set[str]()),
        (0.1, {"hourly"}),
        (1.1, {"hourly", "echo"}),
        (6.9, {"hourly", "echo"}),
        (7.1, {"hourly", "echo", "weekly", "both"}),
        (999, {"hourly", "echo", "weekly", "both"}),
    ):
        await make_sweep(store, days).sweep()
        left = {name for name, story in stories.items() if not list_keys(server, story)}
        assert left == gone, days
    ended = await store.ended_sessions.find([HOME], AT_MS + DAY_MS)
    kept = await SessionAgents(store.nodes).find(ended)
    assert kept == {stories["bank"].at.session: {"bank"}}


async def test_agents_are_read_once_after_each_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents, read = SessionAgents(store.nodes, most=2), Counter[str]()
    stories = [await append_story(store, agent="weekly") for _ in range(2)]
    names = [story.at.session for story in stories]
    query = store.nodes.query_in_background

    async def count(shard: Shard, *commands: bytes) -> list[RespValue]:
        entries = [one for one in commands if b"XRANGE" in one]
        read.update(name for name in names for one in entries if name.encode() in one)
        return await query(shard, *commands)

    monkeypatch.setattr(store.nodes, "query_in_background", count)

    async def find() -> dict[str, frozenset[str]]:
        soon_ms = store.nodes.node(HOME).time.now_ms() + 1_000
        return await agents.find(await store.ended_sessions.find([HOME], soon_ms))

    for _ in range(3):
        assert await find() == {name: {"weekly"} for name in names}
    assert read == dict.fromkeys(names, 1)
    later = replace(stories[0].tell("more"), at="2026-01-02T03:04:09.000Z")
    assert isinstance(await store.log.append(later), Appended)
    store.ended_sessions.forget(names)
    await find()
    assert read == {names[0]: 2, names[1]: 1}
    third = await append_story(store, agent="bank")
    for _ in range(2):
        assert len(await find()) == 3
    assert agents.known == 2, "what it remembers is bounded, and all are found"
    await leave(store, *stories, third)
    assert (await find(), agents.known) == ({}, 0)

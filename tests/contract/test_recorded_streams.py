"""Recorded streams of agents, replayed over real sockets, and the facts that they must produce (VAL-2)."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final, cast

import pytest

from passerelle.core.task.status import ENDED, WAITING
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.json import Json
from passerelle.peers.config import PeerConfig
from tests.support.engine import Server
from tests.support.harness import Harness, open_harness
from tests.support.recording import RECORDINGS, Recording, load_recordings, play
from tests.support.symbols import normalize
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

GOLDEN: Final = ".events.json"
OF_ONE_RUN: Final = frozenset(
    {"digest", "evaluationId", "policyVersion", "cardHash", "card", "createdMs", "expiresMs"}
)


@pytest.fixture
async def harness(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[Harness]:
    async with open_harness(engine_server.url, tmp_path / "blobs") as opened:
        yield opened


async def list_facts(harness: Harness, recording: Recording) -> Json:
    """The facts of the recording, from the call of the agent to the end of the turn."""
    async with play(recording) as url:
        harness.registry.replace([PeerConfig("recorded", url)])
        accepted = await harness.send(recording.asked, agent="recorded", wait="stream")

        async def has_answered() -> bool:
            return (await harness.record(accepted)).status in ENDED | WAITING

        await wait_until(has_answered, 10, f"{recording.name} was played")
        events = await harness.events(accepted)
        await harness.parts.dispatch.drain()
    types = [event.type for event in events]
    begin, end = types.index("task.attempt.started"), types.index("snapshot.updated")
    reported: list[Json] = [
        {"type": event.type, "payload": to_wire(event.fact.payload)}
        for event in events[begin + 1 : end + 1]
    ]
    return normalize(reported, OF_ONE_RUN)


@pytest.mark.requirement("VAL-2", "EVC-6")
@pytest.mark.parametrize("recording", load_recordings(), ids=lambda recording: recording.name)
async def test_recorded_stream_produces_its_golden_facts(
    harness: Harness, recording: Recording
) -> None:
    golden = json.loads((RECORDINGS / f"{recording.name}{GOLDEN}").read_text("utf-8"))
    assert await list_facts(harness, recording) == golden


@pytest.mark.requirement("VAL-2")
@pytest.mark.parametrize("story", ["chunks", "question", "message"])
def test_one_story_produces_the_same_facts_in_both_versions(story: str) -> None:
    """Except for the names that the versions have for one state."""
    one, other = (
        json.loads((RECORDINGS / f"{version}-{story}{GOLDEN}").read_text("utf-8"))
        for version in ("1.0", "0.3")
    )
    types = [event["type"] for event in cast("list[dict[str, str]]", one)]
    assert types == [event["type"] for event in cast("list[dict[str, str]]", other)]
    assert "model.completed" in types


def test_there_are_recordings_of_each_version() -> None:
    assert {one.binding for one in load_recordings()} == {"1.0", "0.3"}

"""Chunks of artifacts, in any order and grouping: each recorded version is what the agent had sent by that time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping.members import objects_at
from passerelle.core.events import Event
from passerelle.core.machine import write_snapshot
from passerelle.core.payloads.run import ArtifactChanged
from passerelle.core.wire.json import Json, JsonObject
from tests.unit.delegation.pump import artifact, make_running, status


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of an artifact, as an agent sends it."""

    name: str
    text: str
    append: bool
    last: bool


CHUNKS = st.lists(
    st.builds(
        Chunk,
        name=st.sampled_from(["a-1", "a-2", "a-3"]),
        text=st.text("xy\N{SNOWMAN}", min_size=1, max_size=3),
        append=st.booleans(),
        last=st.booleans(),
    ),
    max_size=20,
)


@dataclass(slots=True)
class Model:
    """What an agent has sent: the parts of each artifact, and the hashes of those that it has called whole."""

    parts: dict[str, list[Json]] = field(default_factory=dict[str, list[Json]])
    told: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def send(self, chunk: Chunk) -> None:
        kept = self.parts.get(chunk.name, []) if chunk.append else []
        self.parts[chunk.name] = [*kept, {"text": chunk.text}]
        if chunk.last:
            self._tell(chunk.name)

    def end(self) -> None:
        for name in self.parts:
            self._tell(name)

    def _tell(self, name: str) -> None:
        whole: JsonObject = {"artifactId": name, "name": "result", "parts": self.parts[name]}
        sha256 = hashlib.sha256(orjson.dumps(whole)).hexdigest()
        told = self.told.setdefault(name, [])
        if not told or told[-1] != sha256:
            told.append(sha256)


def list_recorded(events: list[Event]) -> dict[str, list[ArtifactChanged]]:
    """The recorded artifacts, by the agent's id."""
    found: dict[str, list[ArtifactChanged]] = {}
    for event in events:
        changed = event.fact.payload
        if isinstance(changed, ArtifactChanged):
            found.setdefault(changed.name_at_peer, []).append(changed)
    return found


@pytest.mark.requirement("EVC-14", "A2A-10")
@given(chunks=CHUNKS, cuts=st.lists(st.integers(1, 5), max_size=20), ends=st.booleans())
def test_each_version_is_recorded_once_with_the_hash_of_the_joined_chunks(
    chunks: list[Chunk], cuts: list[int], *, ends: bool
) -> None:
    pump, model = make_running(), Model()
    frames = [artifact(one.text, name=one.name, append=one.append, last=one.last) for one in chunks]
    for chunk in chunks:
        model.send(chunk)
    events: list[Event] = []
    while frames:
        size = cuts.pop() if cuts else len(frames)
        events += pump.receive(*frames[:size])
        del frames[:size]
    if ends:
        model.end()
        events += pump.receive(status("COMPLETED", at=9))
    told = list_recorded(events)
    assert {name: [one.sha256 for one in all_] for name, all_ in told.items()} == model.told
    for versions in told.values():
        numbers = [one.version for one in versions]
        assert numbers == sorted(set(numbers))
        assert len({one.artifact_id for one in versions}) == 1
        assert [one.replaces for one in versions[1:]] == [versions[0].artifact_id] * (
            len(versions) - 1
        )
    shown = objects_at(pump.context.content or {}, "artifacts")
    assert {str(one["artifactId"]): one["parts"] for one in shown} == model.parts


def test_names_of_an_agent_that_are_contents_do_not_swell_records() -> None:
    pump = make_running()
    long = "n" * 50_000
    frame = artifact("x", name=long)
    cast("JsonObject", cast("JsonObject", frame["artifactUpdate"])["artifact"])["name"] = long
    pump.receive(frame)
    again = artifact("y", name=long, append=True)
    (changed,) = list_recorded(pump.receive(again)).values()
    assert [one.version for one in changed] == [2]
    assert len(write_snapshot(pump.record)) < 4_096
    assert len(write_snapshot(pump.thread)) < 2_048
    (shown,) = objects_at(pump.context.content or {}, "artifacts")
    assert (shown["artifactId"], shown["name"]) == (long, long)

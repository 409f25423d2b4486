"""How much a run has brought, and where it ends."""

from __future__ import annotations

import pytest

from passerelle.core.errors import ArtifactTooLarge
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs.volume import (
    Growth,
    OutputLimits,
    Volume,
    measure_frame,
    measure_task,
)

LIMITS = OutputLimits(artifact_bytes=10, task_bytes=25)


def piece(name: str, *texts: str) -> JsonObject:
    return {"artifactId": name, "parts": [{"text": text} for text in texts]}


def test_pieces_add_up_and_one_that_replaces_begins_anew() -> None:
    volume = Volume()
    growth = Growth(volume, LIMITS)
    growth.take(piece("a", "1234"))
    growth.take(piece("a", "12", "34"), appends=True)
    assert (growth.total, volume.total) == (8, 0)
    growth.settle()
    assert (growth.total, volume.total, volume.sizes) == (8, 8, {"a": 8})
    growth.take(piece("a", "1"))
    growth.settle()
    assert volume.total == 1


@pytest.mark.parametrize("before", [0, 4, 10])
def test_an_artifact_of_exactly_the_limit_is_taken_and_one_byte_more_is_not(before: int) -> None:
    growth = Growth(Volume(), LIMITS)
    growth.take(piece("a", "x" * before))
    growth.take(piece("a", "x" * (10 - before)), appends=True)
    with pytest.raises(ArtifactTooLarge, match="artifact_bytes"):
        growth.take(piece("a", "x"), appends=True)
    # What was refused is not counted, so the rest can be stored.
    assert growth.total == 10


def test_all_artifacts_together_have_a_limit() -> None:
    growth = Growth(Volume(), LIMITS)
    growth.take(piece("a", "x" * 10))
    growth.take(piece("b", "x" * 10))
    with pytest.raises(ArtifactTooLarge, match="task_bytes"):
        growth.take(piece("c", "x" * 6))
    growth.take(piece("c", "x" * 5))


def test_every_kind_of_content_counts_in_bytes() -> None:
    artifact: JsonObject = {
        "artifactId": "a",
        "parts": [{"text": "äöü"}, {"raw": "AAAA"}, {"data": {"k": 1}}, {"url": "http://x"}, 7],
    }
    assert measure_task({"artifacts": [artifact]}).total == 6 + 4 + 7 + 8
    assert measure_frame({"artifactUpdate": {"artifact": artifact}}) == 25
    assert measure_frame({"task": {"artifacts": [artifact, artifact]}}) == 50
    assert measure_frame({"statusUpdate": {}}) == 0
    assert measure_task(None) == Volume()

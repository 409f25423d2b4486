"""How much output a run has produced, and its limit."""

from __future__ import annotations

import itertools

import pytest

from passerelle.core.errors import ArtifactTooLarge
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs.volume import (
    ContentSize,
    Growth,
    OutputLimits,
    Volume,
    measure_frame,
    measure_size,
    measure_task,
)

LIMITS = OutputLimits(artifact_bytes=10, task_bytes=25)


def piece(name: str, *texts: str) -> JsonObject:
    return {"artifactId": name, "parts": [{"text": text} for text in texts]}


def test_sizes_of_chunks_add_up_and_a_replacement_resets_them() -> None:
    volume = Volume()
    growth = Growth(volume, LIMITS)
    growth.take(piece("a", "1234"))
    growth.take(piece("a", "12", "34"), appends=True)
    assert (growth.total.content_bytes, volume.total.content_bytes) == (8, 0)
    growth.settle()
    assert growth.total == volume.total == volume.sizes["a"]
    assert volume.total.content_bytes == 8
    growth.take(piece("a", "1"))
    growth.settle()
    assert volume.total == measure_size(piece("a", "1"))


@pytest.mark.parametrize("before", [0, 4, 10])
def test_an_artifact_of_exactly_the_limit_is_taken_and_one_byte_more_is_not(before: int) -> None:
    growth = Growth(Volume(), LIMITS)
    growth.take(piece("a", "x" * before))
    growth.take(piece("a", "x" * (10 - before)), appends=True)
    with pytest.raises(ArtifactTooLarge, match="artifact_bytes"):
        growth.take(piece("a", "x"), appends=True)
    # What was refused is not counted, so the rest can be stored.
    assert growth.total.content_bytes == 10


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
    assert measure_task({"artifacts": [artifact]}).total.content_bytes == 6 + 4 + 7 + 8
    assert measure_frame({"artifactUpdate": {"artifact": artifact}}) == 25
    assert measure_frame({"task": {"artifacts": [artifact, artifact]}}) == 50
    assert measure_frame({"statusUpdate": {}}) == 0
    assert measure_task(None).total == ContentSize()


def hoard(brought: JsonObject) -> int:
    """How many such pieces a process holds within 64 kB."""
    growth = Growth(Volume(), OutputLimits(held_bytes=65_536))
    numbers = itertools.count()

    def bring_on() -> None:
        for number in numbers:
            growth.take({"artifactId": "a", **brought}, appends=number > 0)

    with pytest.raises(ArtifactTooLarge, match=r"memory\.budget_bytes"):
        bring_on()
    return next(numbers) - 1


@pytest.mark.parametrize(
    ("brought", "most"),
    [
        ({"parts": [{"text": ""}]}, 200),
        ({"parts": [{"filename": ""}] * 10}, 25),
        ({"parts": [{"text": "x" * 1_000}]}, 60),
        ({"parts": [{"text": "x" * 1_000 + "\U0001f600"}]}, 16),
        ({"parts": [{"text": "", "metadata": {"k": "x" * 1_000}}]}, 16),
        ({"parts": [], "metadata": {"k": "x" * 1_000}}, 16),
        ({"parts": [{"data": [[0]] * 250}]}, 15),
    ],
    ids=["empty", "bare", "words", "wide", "metadata of parts", "metadata", "data"],
)
def test_memory_of_members_counts_besides_text(brought: JsonObject, most: int) -> None:
    assert most / 2 < hoard(brought) <= most


@pytest.mark.parametrize("is_kept", [True, False], ids=["ever more", "the same again"])
def test_metadata_of_a_task_counts_as_it_is_held_and_not_as_it_was_sent(*, is_kept: bool) -> None:
    growth = Growth(Volume(), OutputLimits(held_bytes=65_536))
    metadata: JsonObject = {}

    def grow() -> None:
        for number in range(500):
            brought: JsonObject = {f"k-{number if is_kept else 0}": "x" * 200}
            metadata.update(brought)
            growth.take_metadata(brought, {"metadata": metadata})

    if is_kept:
        with pytest.raises(ArtifactTooLarge, match="memory"):
            grow()
        assert len(metadata) > 40
    else:
        grow()
    growth.settle()
    assert growth.total.content_bytes == 0

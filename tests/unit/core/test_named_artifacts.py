"""Which artifact of a context a name means, and which one an answer names."""

from __future__ import annotations

from typing import Final

import pytest

from passerelle.core.read_models.named_artifacts import ArtifactCandidate, list_candidates, pick
from passerelle.core.task.record import ArtifactRef, Edge, TaskRecord
from passerelle.core.wire.record import change
from tests.support.task_commands import make_story

AT: Final = "2026-01-01T00:00:0{}.000Z"


def make_task(
    number: int, *sources: int, named: tuple[str, ...] = ("boat",), ends: bool = True
) -> TaskRecord:
    """A task of the context; each of them was made when all before it were under way, unless it has sources."""
    record = make_story().state
    assert record is not None
    edges = tuple(
        Edge(f"source:task_{one}", "source_task", f"task_{one}", "satisfied", AT.format(0), "")
        for one in sources
    )
    artifacts = tuple(
        ArtifactRef(f"art_{number}{place}", f"a-{place}", "run_1", 1, "00", 1, 1, 0, name=name)
        for place, name in enumerate(named)
    )
    return change(
        record,
        task_id=f"task_{number}",
        thread_id="th_1",
        created_at=AT.format(0),
        ended_at=AT.format(number + 1) if ends else None,
        relationships=edges,
        artifacts=artifacts,
    )


def names(earlier: list[TaskRecord], name: str = "boat", *said: str) -> list[str]:
    return [one.artifact for one in list_candidates(earlier, name, said)]


def test_artifacts_of_concurrent_tasks_are_all_candidates() -> None:
    assert names([make_task(2), make_task(1)]) == ["art_10", "art_20"]
    assert names([make_task(2)]) == ["art_20"]
    assert names([make_task(2, named=("a", "b")), make_task(1)]) == ["art_10"]
    assert names([make_task(2, named=("boat", "sail", "boat"))]) == ["art_20", "art_22"]
    assert names([make_task(1)], "ship") == []


def test_artifact_that_a_later_task_continued_is_not_chosen() -> None:
    one, two = make_task(1), make_task(2, 1)
    assert names([two, one]) == ["art_20"]
    # Over one that has no artifact of the name, and over several that went on from the same.
    between, last = make_task(2, 1, named=()), make_task(3, 2)
    assert names([last, between, one]) == ["art_30"]
    assert names([make_task(3, 1), make_task(2, 1), one]) == ["art_20", "art_30"]
    # A later one that does not refer to the earlier one.
    next_one = change(make_task(3), created_at=AT.format(9))
    assert names([next_one, one]) == ["art_30"]
    gone = change(make_task(4), rolled_back=AT.format(8))
    assert names([gone, one]) == ["art_10"]


def test_a_reference_to_a_task_selects_its_artifact() -> None:
    earlier = [make_task(3), make_task(2), make_task(1)]
    assert names(earlier, "boat", "task_2") == ["art_20"]
    assert names(earlier, "boat", "task_2", "task_3") == ["art_20", "art_30"]
    assert names(earlier, "boat", "task_9") == ["art_10", "art_20", "art_30"]
    # Also where another one has gone on from it.
    assert names([make_task(2, 1), make_task(1)], "boat", "task_1") == ["art_10"]


CANDIDATES: Final = tuple(
    ArtifactCandidate(number, task, f"art_{number}", "echo", "", 1, "", "a-1")
    for number, task in enumerate(("task_1", "task_2", "task_2"), 1)
)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("2", "art_2"),
        (" 2. ", "art_2"),
        ("#3", "art_3"),
        ("No. 1", "art_1"),
        ("number 1)", "art_1"),
        ("art_3", "art_3"),
        ("I mean art_1, please", "art_1"),
        ("the one of task_1", "art_1"),
        ("task_2", None),
        ("art_1 or art_2", None),
        ("4", None),
        ("0", None),
        ("1 or 2", None),
        ("the blue one", None),
        ("art_33", None),
        ("", None),
    ],
)
def test_an_answer_names_one_or_none(said: str, meant: str | None) -> None:
    found = pick(CANDIDATES, said)
    assert (found.artifact if found else None) == meant

"""How long a session is kept, by how its tasks ended and at which agents."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.task.status import TERMINAL
from passerelle.store.archive.ended_tasks import EndedTask, find_outcomes, list_tasks
from passerelle.store.archive.frame import SessionFrame
from passerelle.store.archive.terms import ForgetTerms

TERMS = ForgetTerms(
    {"completed": 10, "failed": 40},
    {"echo": {"completed": 5}, "bank": {}, "news": dict.fromkeys(TERMINAL, 2)},
)


def task(status: str, *agents: str) -> EndedTask:
    return EndedTask(status, frozenset(agents))


@pytest.mark.parametrize(
    ("tasks", "keep_ms"),
    [
        ([task("completed")], 10),
        ([task("completed", "other")], 10),
        ([task("failed", "other")], 40),
        ([task("cancelled")], None),
        ([task("completed", "echo")], 5),
        ([task("failed", "echo")], None),
        ([task("completed", "bank")], None),
        ([task("lost", "news")], None),
        ([task("completed", "echo"), task("failed", "news")], 5),
        ([task("completed", "echo", "news")], 5),
        ([task("completed"), task("failed"), task("completed", "news")], 40),
        ([task("completed"), task("", "news")], None),
        ([], None),
    ],
)
def test_a_session_is_kept_as_long_as_the_task_that_is_kept_longest(
    tasks: list[EndedTask], keep_ms: int | None
) -> None:
    assert TERMS.find_keep_ms(tasks) == keep_ms


def test_one_without_a_task_is_kept_as_long_as_any_could_be() -> None:
    assert ForgetTerms(dict.fromkeys(TERMINAL, 7) | {"failed": 9}).find_keep_ms([]) == 9


def test_the_shortest_retention_is_that_of_any_agent() -> None:
    assert TERMS.shortest_ms == 2
    assert ForgetTerms().shortest_ms is None
    assert ForgetTerms({}, {"echo": {}}).shortest_ms is None
    assert ForgetTerms().find_keep_ms([task("completed")]) is None


@given(
    tasks=st.lists(
        st.builds(
            task, st.sampled_from([*TERMINAL, ""]), st.sampled_from(["echo", "bank", "news", "x"])
        )
    )
)
def test_a_further_task_never_has_a_session_go_sooner(tasks: list[EndedTask]) -> None:
    kept = [TERMS.find_keep_ms(tasks[:count]) for count in range(1, len(tasks) + 1)]
    for before, after in pairwise(kept):
        assert after is None or (before is not None and before <= after)


def test_status_and_agents_are_read_off_the_records() -> None:
    def ref(kind: EntityKind, name: str) -> EntityRef:
        return EntityRef(kind, name)

    said = b'{"status":"failed","assignee":"echo","attempts":[{"worker":{"peer":"bank"}}]}'
    frame = SessionFrame(
        "se_1",
        {
            ref(EntityKind.SESSION, "se_1"): [b"s", b'{"status":"completed"}'],
            ref(EntityKind.TASK, "task_1"): [b"v", b"1", b"s", said],
            ref(EntityKind.TASK, "task_2"): [b"s", b"rubbish"],
            ref(EntityKind.TASK, "task_3"): [b"s", b'{"attempts":[{}]}'],
            ref(EntityKind.ACTION, "act_1"): [b"s", b'{"status":"completed"}'],
        },
    )
    assert [*list_tasks(frame)] == [task("failed", "echo", "bank"), task(""), task("")]
    assert find_outcomes(frame) == {"failed", ""}

"""Which facts a bundle has, where its range ends, and what the chain proves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from passerelle.core.event_chain import start_chain
from passerelle.core.events import Fact
from passerelle.core.evidence.selection import Selection, StoredFact, select
from passerelle.core.facts import Scope
from passerelle.core.payloads.approval import PermissionEvaluated
from passerelle.core.payloads.conversation import (
    SessionCreated,
    TurnCompleted,
    TurnStarted,
    TurnSubmitted,
)
from passerelle.core.payloads.history import EvidenceChanged
from passerelle.core.payloads.task import TaskDependencyUpdated, TaskProgress
from passerelle.core.wire.record import change
from tests.unit.core.evidence.streams import EPOCH, SESSION, find_head, name_scope, store

pytestmark = pytest.mark.requirement("CMD-20")
ONE = Scope(SESSION, "th_1", "turn_1", "task_1")
TWO = Scope(SESSION, "th_2", "turn_2", "task_2")
EXPORT = EvidenceChanged("evd_1", "evidence", "exported", "task", "task_1", "00", 4)
EDGE = TaskDependencyUpdated("evidence:evd_1", "evidence", "evd_1", "satisfied")


def submit(scope: Scope) -> Fact:
    return Fact(scope, TurnSubmitted("m-1", "echo", "a2a", "hello"))


STORY = store(
    [
        Fact(Scope(SESSION), SessionCreated("pr_1", "default", "ada")),
        submit(ONE),
        submit(TWO),
        Fact(replace(ONE, task_id=None), TurnStarted()),
        Fact(ONE, TaskProgress(percent=50)),
        Fact(TWO, TaskProgress(percent=10)),
        Fact(ONE, TurnCompleted("task")),
        Fact(ONE, EXPORT),
        Fact(ONE, EDGE),
    ]
)


def pick(kind: str, subject: str, facts: list[StoredFact] = STORY, **more: object) -> Selection:
    found = select(name_scope(kind, subject), facts, find_head(STORY), **more)  # type: ignore[arg-type]  # those of select
    assert found is not None
    return found


def places(selection: Selection) -> list[int]:
    return [fact.entry.sequence for fact in selection.facts]


@pytest.mark.parametrize(
    ("kind", "subject", "wanted", "between"),
    [
        ("session", SESSION, [1, 2, 3, 4, 5, 6, 7], []),
        ("thread", "th_1", [2, 4, 5, 7], [3, 6]),
        ("turn", "turn_2", [3, 6], [4, 5]),
        ("task", "task_1", [2, 4, 5, 7], [3, 6]),
    ],
)
def test_facts_of_a_scope_are_in_and_those_between_are_named(
    kind: str, subject: str, wanted: list[int], between: list[int]
) -> None:
    found = pick(kind, subject)
    assert places(found) == wanted
    assert [place for place, _ in found.omitted] == between
    assert (found.first, found.last, found.proof) == (wanted[0], wanted[-1], "whole")
    assert found.before == STORY[wanted[0] - 1].entry.previous
    assert found.after == STORY[wanted[-1]].entry.previous


def test_facts_of_an_export_do_not_end_a_range_and_are_in_a_later_one() -> None:
    short = pick("task", "task_1", STORY[:7])
    assert pick("task", "task_1") == short
    later = [
        *STORY,
        *store([*(one.event.fact for one in STORY), Fact(ONE, TaskProgress(step="x"))])[9:],
    ]
    found = select(name_scope("task", "task_1"), later, find_head(later))
    assert found is not None
    assert places(found) == [2, 4, 5, 7, 8, 9, 10]


def test_facts_of_hidden_tasks_are_listed_as_omitted() -> None:
    found = pick("session", SESSION, hidden={"task_1"})
    assert places(found) == [1, 3, 6]
    assert [place for place, _ in found.omitted] == [2, 4, 5]


def test_nothing_of_a_scope_is_no_selection() -> None:
    assert select(name_scope("task", "task_3"), STORY, find_head(STORY)) is None
    assert select(name_scope("task", "task_1"), STORY[7:], find_head(STORY)) is None


def test_an_evaluation_that_a_question_names_is_in_whatever_it_is_about() -> None:
    evaluated = PermissionEvaluated("eval_1", "ask", "default", "why", "it", "v1", "low")
    facts = store([Fact(TWO, evaluated), submit(ONE)])
    alone = select(name_scope("task", "task_1"), facts, find_head(facts))
    assert alone is not None
    assert places(alone) == [2]


@pytest.mark.parametrize("harm", ["hole", "order", "epoch", "head"])
def test_a_chain_that_does_not_hold_is_broken(harm: str) -> None:
    facts, head = [*STORY], find_head(STORY)
    match harm:
        case "hole":
            del facts[3]
        case "order":
            facts[3], facts[4] = facts[4], facts[3]
        case "epoch":
            head = replace(head, epoch="1badcafe")
        case _:
            head = replace(head, chain="00000000")
    found = select(name_scope("session", SESSION), facts, head)
    assert found is not None
    assert found.proof == "broken"
    assert start_chain(EPOCH) == STORY[0].entry.previous


def test_a_stream_that_lost_its_first_facts_is_trimmed() -> None:
    found = select(
        name_scope("session", SESSION), STORY[3:], find_head(STORY, first=4), had_more=True
    )
    assert found is not None
    assert (found.first, found.proof) == (4, "trimmed")


def test_traces_are_named_once() -> None:
    traced = change(ONE, trace_id="4bf9")
    facts = store([submit(traced), submit(TWO), submit(traced)])
    found = select(name_scope("session", SESSION), facts, find_head(facts))
    assert found is not None
    assert found.traces == ("4bf9",)

"""Index changes are derived from changes of records, so no write path can forget them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.batch import EntityKind, EntityRef, OpenChange
from passerelle.core.index_changes import (
    UNSEEN,
    IndexChanges,
    derive_index_changes,
    find_part,
    is_open,
)
from passerelle.core.machine import Record
from passerelle.core.ports.projections import IndexRow
from passerelle.core.principal import Principal
from passerelle.core.task.commands import DescribeTask, EndInError, StartRun, TaskCommand
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.times import parse_ms
from tests.support.approvals import Stream, make_answer
from tests.support.task_commands import COMMANDS, FAILURE, STARTED, make_story

TASK = EntityRef(EntityKind.TASK, "task_1")
NOTHING = IndexChanges((), (), (), feed=False)


def derive(before: Record | None, after: Record | None, ref: EntityRef = TASK) -> IndexChanges:
    return derive_index_changes({ref: before}, {ref: after})


def show(record: TaskRecord | None) -> TaskRecord:
    assert record is not None
    return replace(record, shown=True)


def test_new_task_holds_its_stream_and_its_end_lets_it_go() -> None:
    running = make_story(StartRun("run_1", STARTED))
    before = running.state
    assert derive(None, before).opened == (OpenChange("task_1", 0),)
    running.tell(EndInError(FAILURE))
    assert derive(before, running.state).opened == (OpenChange("task_1", None),)


@given(commands=st.lists(COMMANDS, max_size=12))
def test_change_of_open_things_follows_the_status_alone(commands: list[TaskCommand]) -> None:
    story = make_story()
    for command in commands:
        before = story.state
        if not story.try_to(command):
            continue
        after = story.state
        assert before is not None
        assert after is not None
        opened = derive(before, after).opened
        was, now = before.status not in ENDED, after.status not in ENDED
        assert opened == (() if was == now else (OpenChange("task_1", 0 if now else None),))


def test_task_that_callers_do_not_see_is_in_no_list() -> None:
    story = make_story(StartRun("run_1", STARTED))
    standing = derive(None, story.state)
    assert (standing.task_times, standing.index, standing.feed) == ((), (), False)


def test_shown_task_is_listed_with_the_time_of_its_status() -> None:
    story = make_story(StartRun("run_1", STARTED))
    hidden, shown = story.state, show(story.state)
    expected = (("task_1", parse_ms(shown.status_at)),)
    standing = derive(hidden, shown)
    assert (standing.task_times, standing.feed) == (expected, False)
    assert standing.index == (IndexRow(shown.owner, shown.kind, *expected[0]),)
    story.state = shown
    story.tell(EndInError(FAILURE))
    ended = show(story.state)
    assert derive(shown, ended).task_times == (("task_1", parse_ms(ended.status_at)),)


def test_progress_of_a_shown_task_is_no_news_for_projections() -> None:
    shown = show(make_story(StartRun("run_1", STARTED)).state)
    busy = replace(shown, last=shown.last + 1)
    assert derive(shown, busy) == NOTHING


def test_later_exposure_is_listed_under_its_own_id() -> None:
    again = replace(show(make_story().state), exposure=2)
    ((facade, _),) = derive(None, again).task_times
    assert facade == "task_1~2"


@pytest.mark.requirement("EVC-10")
def test_question_is_open_until_it_has_an_answer_and_is_always_news() -> None:
    stream = Stream()
    asked = stream.open()
    ref = EntityRef(EntityKind.ACTION, asked.request.action_id)
    opening = derive(None, asked, ref)
    assert (opening.opened, opening.feed) == ((OpenChange(ref.id, 0),), True)
    stream.tell(make_answer(asked))
    closing = derive(asked, stream.now, ref)
    assert (closing.opened, closing.feed) == ((OpenChange(ref.id, None),), True)
    assert is_open(asked)
    assert not is_open(stream.now)


def test_unchanged_record_derives_no_index_changes() -> None:
    record = show(make_story().state)
    assert derive(record, record) == NOTHING
    assert not is_open(None)


def test_task_that_ended_is_listed_by_its_end() -> None:
    story = make_story(StartRun("run_1", STARTED))
    running = show(story.state)
    story.state = running
    story.tell(EndInError(FAILURE))
    (row,) = derive(running, show(story.state)).index
    assert row.part == "failed"
    assert find_part(running) == "open"
    assert find_part(replace(running, status=Status.CANCELLED)) == "canceled"
    assert find_part(replace(running, status=Status.COMPLETED)) == "completed"
    assert find_part(replace(running, status=Status.FAILED, rejected=True)) == "rejected"
    assert find_part(replace(running, status=Status.TIMED_OUT)) == "failed"
    assert find_part(replace(running, status=Status.LOST)) == "open"


@pytest.mark.requirement("TEV-5")
def test_given_task_leaves_both_lists_of_its_owner_and_enters_one_of_the_next() -> None:
    story = make_story(StartRun("run_1", STARTED))
    shown = story.state = show(story.state)
    story.tell(DescribeTask({"owner": {"old": "owner", "new": "bob"}}))
    given = story.state
    assert given is not None
    bob = Principal("bob", "default")
    assert (given.owner, given.scope.principal, given.requested_by) == (bob.key, "bob", "owner")
    standing, at_ms = derive(shown, given), parse_ms(shown.status_at)
    assert standing.index == (
        IndexRow(shown.owner, UNSEEN, "task_1", at_ms, "gone"),
        IndexRow(shown.owner, shown.kind, "task_1", at_ms, "gone"),
        IndexRow(bob.key, shown.kind, "task_1", at_ms),
    )
    assert standing.task_times == (("task_1", at_ms),)
    assert standing.opened == ()

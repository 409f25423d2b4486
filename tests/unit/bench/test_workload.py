"""The tasks of the store benchmark have the sizes of the stated bounds."""

import orjson
import pytest

from bench.workload import make_event, make_snapshot, make_subjects
from passerelle.core.batch import ABSENT, Incarnation
from passerelle.core.packed_events import pack_events
from passerelle.store.append import check_batch

OPENING = b'{"sequence":10,'


[SUBJECT] = make_subjects(1)


@pytest.mark.parametrize("facade", [None, SUBJECT.task])
def test_an_event_is_560_bytes_of_json(facade: str | None) -> None:
    event = make_event(SUBJECT, facade)
    stored = OPENING + event.body
    assert len(stored) == 560
    read = orjson.loads(stored)
    assert (read["eventId"], read["taskId"]) == (event.event_id, SUBJECT.task)


def test_events_share_what_those_of_the_product_share() -> None:
    one, eight = (pack_events([make_event(SUBJECT, None)] * n, SUBJECT.session) for n in (1, 8))
    assert (len(eight) - len(one)) / 7 < 400


def test_the_frame_of_an_event_is_cut_out_by_its_place() -> None:
    event = make_event(SUBJECT, SUBJECT.task)
    data, place = event.at(10)
    assert place is not None
    offset, length = place
    assert "statusUpdate" in orjson.loads(data[offset : offset + length])


def test_a_snapshot_names_its_session_and_has_the_bytes_that_are_asked_for() -> None:
    snapshot = make_snapshot(SUBJECT.session, 900)
    assert len(snapshot) == 900
    assert orjson.loads(snapshot)["session_id"] == SUBJECT.session


def test_tasks_share_sessions_as_asked_and_spread_over_shards() -> None:
    subjects = make_subjects(130, 10)
    assert len(subjects) == 130
    assert len({subject.session for subject in subjects}) == 13
    assert len({subject.shard for subject in subjects}) == 13


def test_a_task_goes_from_its_first_batch_to_its_last() -> None:
    [subject] = make_subjects(1)
    driver = Incarnation("bench", 1)
    begun = subject.accept(0, driver, first_of_session=True)
    check_batch(begun)
    assert begun.entities[0].expected == ABSENT
    assert len(begun.events) == 8
    subject.settle(8)
    ended = subject.end(0, driver)
    check_batch(ended)
    assert (ended.entities[0].expected.version, ended.entities[0].expected.op) == (1, begun.op)
    assert [row.at_ms for row in ended.due] == [None]

"""The tasks that the store is measured with have the sizes that the bounds name."""

import orjson
import pytest

from bench.workload import SNAPSHOT, make_event, make_subjects
from passerelle.core.batch import ABSENT, Incarnation
from passerelle.core.ids import Shard
from passerelle.store.append import check_batch

OPENING = b'{"sequence":10,'


@pytest.mark.parametrize("facade", [None, "task_0001m7x0m4ayc330ke7zr6gwrg62"])
def test_a_stored_event_is_430_bytes_of_json(facade: str | None) -> None:
    event = make_event(Shard(0), facade)
    stored = OPENING + event.body
    assert len(stored) == 430
    assert orjson.loads(stored)["eventId"] == event.event_id


def test_the_frame_of_an_event_is_cut_out_by_its_place() -> None:
    event = make_event(Shard(0), "task_0001m7x0m4ayc330ke7zr6gwrg62")
    assert event.frame is not None
    offset, length = event.frame
    assert "statusUpdate" in orjson.loads(event.body[offset : offset + length])


def test_a_snapshot_is_900_bytes() -> None:
    assert len(SNAPSHOT) == 900


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

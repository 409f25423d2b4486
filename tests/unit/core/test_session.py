"""The session machine: opened once, then only described; it lists its newest threads."""

from __future__ import annotations

import pytest

from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.events import Event, Fact
from passerelle.core.facts import Scope
from passerelle.core.payloads.conversation import SessionCreated, SessionUpdated, ThreadStarted
from passerelle.core.payloads.task import TaskUpdated
from passerelle.core.session.machine import (
    BeginSession,
    RelabelSession,
    SessionCommand,
    SessionRecord,
    decide,
    evolve,
)
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.times import format_ms

OPEN = BeginSession("se_1", SessionCreated("pr_1", "default", "ada"))


class Stream:
    """A session and its events."""

    def __init__(self, *commands: SessionCommand) -> None:
        self.state: SessionRecord | None = None
        self.events: list[Event] = []
        for command in commands:
            self.apply(command)

    def apply(self, command: SessionCommand) -> None:
        for fact in decide(self.state, command):
            self.push(fact)

    def push(self, fact: Fact) -> None:
        place = len(self.events) + 1
        event = Event(f"ev_{place}", format_ms(place), "rt_1", fact, place)
        self.events.append(event)
        self.state = evolve(self.state, event)

    def start_thread(self, name: str) -> None:
        started = ThreadStarted(f"ctx-{name}", "pr_1", "default", "ada")
        self.push(Fact(Scope("se_1", name), started))

    @property
    def now(self) -> SessionRecord:
        assert self.state is not None
        return self.state


def test_session_is_opened_once() -> None:
    stream = Stream(OPEN)
    assert (stream.now.session_id, stream.now.owner) == ("se_1", "pr_1")
    with pytest.raises(InvalidInput, match="sessionId"):
        stream.apply(OPEN)
    stream.push(Fact(Scope("se_1"), SessionCreated("pr_2", "default", "bob")))
    assert stream.now.owner == "pr_1"


def test_only_a_session_that_exists_is_described() -> None:
    with pytest.raises(NotFound):
        decide(None, RelabelSession(SessionUpdated(title="boats")))
    assert evolve(None, Event("ev_1", format_ms(1), "rt", Fact(Scope("se_1"), OPEN.created), 1))


def test_description_changes_what_it_names_and_nothing_else() -> None:
    stream = Stream(OPEN, RelabelSession(SessionUpdated(title="boats", labels={"a": "1"})))
    stream.apply(RelabelSession(SessionUpdated(labels={"b": "2"})))
    assert (stream.now.title, stream.now.labels) == ("boats", {"a": "1", "b": "2"})


@pytest.mark.requirement("ID-2")
def test_session_counts_all_its_threads_and_lists_the_newest() -> None:
    stream = Stream(OPEN)
    for number in range(70):
        stream.start_thread(f"th_{number}")
    assert stream.now.thread_count == 70
    assert stream.now.threads == tuple(f"th_{number}" for number in range(6, 70))
    assert len(to_bytes(stream.now)) < 16 * 1024


@pytest.mark.requirement("TEV-5")
def test_session_lists_its_tasks_that_were_given_to_another_owner() -> None:
    stream = Stream(OPEN)

    def update(task: str, **changed: JsonObject) -> None:
        stream.push(Fact(Scope("se_1", task_id=task), TaskUpdated(changed)))

    update("task_1", title={"old": "a", "new": "b"})
    assert not stream.now.given
    update("task_1", owner={"old": "ada", "new": "bob"})
    update("task_2", owner={"old": "ada", "new": "bob"})
    update("task_1", owner={"old": "bob", "new": "eve"})
    assert list(stream.now.given) == ["task_2", "task_1"]
    update("task_1", owner={"old": "eve", "new": "ada"})
    assert list(stream.now.given) == ["task_2"]
    assert stream.now.owner == "pr_1"


def test_event_that_is_contained_changes_nothing_and_the_record_reads_back() -> None:
    stream = Stream(OPEN)
    stream.start_thread("th_1")
    for event in stream.events:
        assert evolve(stream.now, event) == stream.now
    assert from_bytes(SessionRecord, to_bytes(stream.now)) == stream.now

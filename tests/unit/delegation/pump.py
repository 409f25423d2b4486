"""A run without a driver: takes frames of an agent, and returns facts numbered as a store would.

Every batch is composed and held against a fold with real sequences, so each test of a frame is also one of I4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import orjson

from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.decision import NOTHING, Decision, Held
from passerelle.core.events import Event, Fact
from passerelle.core.facts import Scope
from passerelle.core.ids import Shard
from passerelle.core.machine import Record, evolve, find_targets, write_snapshot
from passerelle.core.payloads.conversation import SessionCreated, ThreadStarted, TurnSubmitted
from passerelle.core.payloads.task import TaskCancelRequested
from passerelle.core.session import machine as sessions
from passerelle.core.session import thread as threads
from passerelle.core.session.machine import BeginSession
from passerelle.core.session.thread import OpenThread, SubmitMessage, ThreadRecord
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import BeginTask, RequestCancel, StartRun
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from passerelle.delegation.runs.draft import DecisionDraft, RunContext
from passerelle.delegation.runs.observation import observe
from passerelle.delegation.runs.questions import open_questions
from passerelle.runtime.records.blob_overflow import BlobOverflow
from tests.support.counted_ids import START_MS, CountedIds
from tests.support.spelt_ids import compose_id
from tests.support.task_commands import CREATED, STARTED

SHARD = Shard(9)
SESSION = EntityRef(EntityKind.SESSION, compose_id("se", SHARD, START_MS, 1))
THREAD = EntityRef(EntityKind.THREAD, compose_id("th", SHARD, START_MS, 2))
TASK = EntityRef(EntityKind.TASK, compose_id("task", SHARD, START_MS, 3))
TURN = compose_id("turn", SHARD, START_MS, 4)
RUN = compose_id("run", SHARD, START_MS, 5)
REMOTE, CONTEXT = "remote-task-1", "rctx_1"
OURS: JsonObject = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}


@dataclass(slots=True)
class Pump:
    """One run. ``blobs`` are what had to be stored first, ``shown`` the frames that callers see."""

    ids: CountedIds = field(default_factory=lambda: CountedIds(made=100))
    held: dict[EntityRef, Held] = field(default_factory=dict[EntityRef, Held])
    events: list[Event] = field(default_factory=list[Event])
    blobs: list[bytes] = field(default_factory=list[bytes])
    replayed: dict[EntityRef, Record | None] = field(
        default_factory=dict[EntityRef, "Record | None"]
    )
    context: RunContext = field(init=False)
    now_ms: int = START_MS

    def __post_init__(self) -> None:
        self.context = RunContext(
            TASK, SHARD, THREAD, "echo", "ctx_1", lambda prefix: self.ids.mint(prefix, SHARD)
        )
        self.context.accepted.append(OURS)
        decision = self._begin(dict.fromkeys((SESSION, THREAD, TASK), NOTHING))
        created = SessionCreated("pr_1", "default", "ada")
        decision.add(sessions.decide(None, BeginSession(SESSION.id, created)))
        started = ThreadStarted("ctx_1", "pr_1", "default", "ada")
        decision.add(threads.decide(None, OpenThread(SESSION.id, THREAD.id, started)))
        scope = Scope(SESSION.id, THREAD.id, TURN, TASK.id)
        decision.add(tasks.decide(None, BeginTask(scope, CREATED)))
        submitted = TurnSubmitted("m-1", "echo", "a2a", "hello", message=OURS)
        submit = SubmitMessage(SESSION.id, TURN, TASK.id, submitted)
        decision.add(threads.decide(cast("ThreadRecord", decision.state(THREAD)), submit))
        decision.add(tasks.decide(self._task(decision), StartRun(RUN, STARTED)))
        self._store(decision)

    def receive(self, *results: JsonObject) -> list[Event]:
        """Takes the frames in one decision; the new events."""
        decision = self._begin(self.held)
        spill = BlobOverflow()
        step = DecisionDraft(decision, self.context, spill, open_questions)
        for result in results:
            observe(step, result)
        self.blobs += spill.blobs
        self.context.names_foreign |= step.names_foreign
        return self._store(decision) if decision.events else []

    def receive_each(self, *results: JsonObject) -> list[Event]:
        """Takes the frames in a decision each."""
        return [event for result in results for event in self.receive(result)]

    def request_cancel(self) -> None:
        """Requests the cancel of the task."""
        decision = self._begin(self.held)
        requested = TaskCancelRequested("ada", "user", "active_run")
        decision.add(tasks.decide(self._task(decision), RequestCancel(requested)))
        self._store(decision)

    def add(self, fact: Fact) -> None:
        """Stores a fact of another writer."""
        decision = self._begin(self.held)
        decision.add([fact])
        self._store(decision)

    @property
    def record(self) -> TaskRecord:
        record = self.held[TASK].record
        assert isinstance(record, TaskRecord)
        return record

    @property
    def thread(self) -> ThreadRecord:
        record = self.held[THREAD].record
        assert isinstance(record, ThreadRecord)
        return record

    @property
    def actions(self) -> list[ActionRecord]:
        return [one.record for one in self.held.values() if isinstance(one.record, ActionRecord)]

    @property
    def shown(self) -> list[JsonObject]:
        frames = [event.fact.frame for event in self.events if event.fact.facade is not None]
        return [cast("JsonObject", orjson.loads(frame)) for frame in frames if frame is not None]

    def types(self) -> list[str]:
        return [event.type for event in self.events]

    def _begin(self, held: dict[EntityRef, Held]) -> Decision:
        return Decision(
            SESSION.id, held, ids=self.ids, shard=SHARD, now_ms=self.now_ms, runtime_id="rt_1"
        )

    @staticmethod
    def _task(decision: Decision) -> TaskRecord:
        return cast("TaskRecord", decision.state(TASK))

    def _store(self, decision: Decision) -> list[Event]:
        first = len(self.events) + 1
        batch = decision.compose(f"op_{first}", 0)
        self.held = decision.settle(f"op_{first}", first)
        added = [event.at(first + place) for place, event in enumerate(decision.events)]
        self.events += added
        for event in added:
            for ref in find_targets(event):
                self.replayed[ref] = evolve(ref.kind, self.replayed.get(ref), event)
        for write in batch.entities:
            stored = b"".join(
                piece if isinstance(piece, bytes) else str(first + piece).encode()
                for piece in write.snapshot
            )
            record = self.replayed[write.ref]
            assert record is not None
            assert stored == write_snapshot(record)
            assert self.held[write.ref].record == record
        return added


def task(state: str, **members: Json) -> JsonObject:
    """A Task frame of the peer."""
    status: JsonObject = {"state": f"TASK_STATE_{state}", "timestamp": "2026-01-01T00:00:00.000Z"}
    return {"task": {"id": REMOTE, "contextId": CONTEXT, "status": status, **members}}


def status(state: str, text: str | None = None, *, at: int = 1, message_id: str = "") -> JsonObject:
    """A status update of the peer; ``at`` makes its time."""
    told: JsonObject = {
        "state": f"TASK_STATE_{state}",
        "timestamp": f"2026-01-01T00:00:{at:02}.000Z",
    }
    if text is not None:
        told["message"] = {
            "messageId": message_id or f"pm-{at}",
            "role": "ROLE_AGENT",
            "taskId": REMOTE,
            "contextId": CONTEXT,
            "parts": [{"text": text}],
        }
    return {"statusUpdate": {"taskId": REMOTE, "contextId": CONTEXT, "status": told}}


def artifact(
    text: str, *, name: str = "a-1", append: bool = False, last: bool = True
) -> JsonObject:
    """An artifact update of the peer with one text part."""
    return {
        "artifactUpdate": {
            "taskId": REMOTE,
            "contextId": CONTEXT,
            "artifact": {"artifactId": name, "name": "result", "parts": [{"text": text}]},
            "append": append,
            "lastChunk": last,
        }
    }


def message(text: str, **members: Json) -> JsonObject:
    """A bare Message of the peer."""
    return {
        "message": {
            "messageId": "pm-bare",
            "role": "ROLE_AGENT",
            "contextId": CONTEXT,
            "parts": [{"text": text}],
            **members,
        }
    }


def make_running() -> Pump:
    """A run whose peer works."""
    pump = Pump()
    pump.receive(task("SUBMITTED"))
    pump.receive(status("WORKING"))
    assert pump.record.status is Status.RUNNING
    return pump

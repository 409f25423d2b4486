"""The events of a subagent, derived from the facts of its thread (EVC-16).

The start of an attempt means that an agent is sent a message in its context, and the facts of the run are its outcome.
``subagent.spawned``, ``.status``, ``.input``, ``.completed`` and ``.failed`` are derived from them for readers of the
subagent, and not stored. Commands are stored facts: ``subagent.spawned`` for a spawned child of another task, and
``subagent.closed``.

A derived event has the sequence and the time of its fact; its id is that of the fact followed by the class, so it is
stable across reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.core.events import Event, Fact
from passerelle.core.facts import Ref, Scope
from passerelle.core.payloads.conversation import TurnSubmitted
from passerelle.core.payloads.run import ModelRequested, RunStatus
from passerelle.core.payloads.subagent import (
    SubagentClosed,
    SubagentCompleted,
    SubagentFailed,
    SubagentInput,
    SubagentSpawned,
    SubagentStatus,
)
from passerelle.core.payloads.task import (
    TaskAttemptCompleted,
    TaskAttemptFailed,
    TaskAttemptStarted,
    TaskLost,
    TaskPaused,
    TaskResumed,
    TaskWaiting,
)
from passerelle.core.subagent.name import parse_subagent
from passerelle.core.wire.record import change

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from passerelle.core.payloads.subagent import SubagentPayload
    from passerelle.core.subagent.name import SubagentName

INPUT: Final = "input"
"""The reference from a follow-up to its message."""
LifeFact: TypeAlias = "tuple[SubagentPayload, dict[str, Ref]]"
_ENDS: Final = (TaskAttemptCompleted, TaskAttemptFailed, TaskWaiting, TaskLost)
"""Facts that supersede the agent's status message before them."""


@dataclass(slots=True)
class _Life:
    """One subagent while the facts of its thread are read."""

    name: SubagentName
    number: int = 1
    """The number of the agent's current context."""
    spawned: bool = False
    native_id: str | None = None
    runs: set[str] = field(default_factory=set[str])
    sent: set[str] = field(default_factory=set[str])
    inputs: dict[str, Event] = field(default_factory=dict[str, Event])
    """Messages of the thread, by id."""

    def derive(self, event: Event, following: Event | None) -> Iterable[LifeFact]:
        """The subagent events of an event; ``following`` is the next one of the thread."""
        payload, scope = event.fact.payload, event.fact.scope
        if isinstance(payload, SubagentSpawned | SubagentClosed):
            yield from self._derive_own(payload, scope)
            return
        if isinstance(payload, TurnSubmitted):
            self.inputs[payload.message_id] = event
            return
        if isinstance(payload, TaskAttemptStarted):
            if payload.worker.peer == self.name.peer and self.number == self.name.number:
                self.runs.add(scope.run_id or "")
                yield from self._begin(payload)
            return
        if scope.run_id in self.runs:
            yield from self._follow(event, following)

    def _derive_own(
        self, payload: SubagentSpawned | SubagentClosed, scope: Scope
    ) -> Iterable[LifeFact]:
        if scope.subagent_id == str(self.name):
            self.spawned = True
            yield payload, {}
        closed = (
            parse_subagent(scope.subagent_id or "") if isinstance(payload, SubagentClosed) else None
        )
        if closed is not None and closed[:2] == self.name[:2]:
            self.number = closed.number + 1

    def _begin(self, started: TaskAttemptStarted) -> Iterable[LifeFact]:
        """An attempt: the first one opens the context, unless a command spawned it before."""
        context = started.remote_context_id
        if not self.spawned:
            yield (
                SubagentSpawned(
                    peer=self.name.peer,
                    kind="a2a_context",
                    native_protocol=started.native_protocol,
                    recoverable=True,
                    native_id=context,
                ),
                {},
            )
        elif not self.sent:
            yield SubagentStatus("running", native_id=context), {}
        else:
            yield from self._send(started.message_id)
            changed = context if context != self.native_id else None
            yield SubagentStatus("running", native_id=changed), {}
        self.spawned, self.native_id = True, context
        self.sent.add(started.message_id)

    def _send(self, message_id: str) -> Iterable[LifeFact]:
        """A message that was not sent before; a repeat is no further input."""
        if message_id in self.sent:
            return
        self.sent.add(message_id)
        turn = self.inputs.get(message_id)
        said = turn.fact.payload if turn is not None else None
        preview = said.preview if isinstance(said, TurnSubmitted) else ""
        refs = {} if turn is None else {INPUT: Ref(sequence=turn.sequence)}
        yield SubagentInput(message_id, preview), refs

    def _follow(self, event: Event, following: Event | None) -> Iterable[LifeFact]:
        match event.fact.payload:
            case ModelRequested(message_id=message_id):
                yield from self._send(message_id)
            case RunStatus() as said:
                yield from self._derive_status(said, event, following)
            case TaskWaiting(native_status=native, reason=reason):
                yield SubagentStatus("waiting", native_status=native, text=reason), {}
            case TaskPaused(reason=reason):
                yield SubagentStatus("waiting", text=reason), {}
            case TaskResumed(native_status=native, reason=reason):
                yield SubagentStatus("running", native_status=native, text=reason), {}
            case TaskLost(reason=reason):
                yield SubagentStatus("unreachable", text=reason), {}
            case TaskAttemptCompleted(native_status=native, summary=summary):
                yield SubagentCompleted(native, summary), {}
            case TaskAttemptFailed(error=error, native_status=native):
                yield SubagentFailed(error, native), {}
            case _:
                return

    def _derive_status(
        self, said: RunStatus, event: Event, following: Event | None
    ) -> Iterable[LifeFact]:
        """A status message of the agent, unless the next fact records its outcome."""
        context = said.remote_context_id
        is_said_next = (
            following is not None
            and isinstance(following.fact.payload, _ENDS)
            and following.fact.scope.run_id == event.fact.scope.run_id
        )
        if context is not None:
            self.native_id = context
        elif said.native_status is None or is_said_next:
            return
        yield SubagentStatus("running", said.native_status, context, said.text), {}


def derive_subagent_events(
    name: SubagentName, events: Sequence[Event], parent: Scope | None
) -> list[Event]:
    """The events of a subagent, from those of its thread in order.

    ``parent`` are the ids of the task that it was spawned for; None: the first turn sent to the context.
    """
    life, derived = _Life(name), list[Event]()
    for at, event in enumerate(events):
        following = events[at + 1] if at + 1 < len(events) else None
        for payload, refs in life.derive(event, following):
            scope = event.fact.scope
            if parent is None:
                parent = Scope(scope.session_id, scope.thread_id, scope.turn_id, scope.task_id)
            belongs = change(
                parent,
                run_id=scope.run_id,
                step_id=scope.step_id,
                subagent_id=str(name),
                trace_id=scope.trace_id,
                span_id=scope.span_id,
            )
            is_stored = payload is event.fact.payload
            fact = event.fact if is_stored else Fact(belongs, payload, refs)
            event_id = event.event_id if is_stored else f"{event.event_id}~{payload.type}"
            derived.append(
                Event(
                    event_id=event_id,
                    timestamp=event.timestamp,
                    runtime_id=event.runtime_id,
                    fact=fact,
                    sequence=event.sequence,
                    schema_version=event.schema_version,
                )
            )
    return derived

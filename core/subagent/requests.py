"""Requests of a caller about subagents (CMD-19, CMD-24)."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from passerelle.core.frozen import frozen
from passerelle.core.read_models.mark import FreshnessMark
from passerelle.core.read_models.subagents import JobLine, Subagent
from passerelle.core.task.requests import Id, ReasonText
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record

MOST_WAITED: Final = 64
"""Subagents in one wait."""
LONGEST_WAIT_MS: Final = 25_000
"""Maximum duration of one wait: less than the usual timeout of proxies."""
SpawnSource: TypeAlias = Literal["a2a", "channel", "http", "cli", "schedule", "job"]


@frozen
class SpawnSubagent:
    """Open a new context at an agent, with a task in it that is sent ``message``, or its objective (CMD-19).

    It is the child of ``parent_task_id``, if given. ``message`` is an A2A 1.0 Message with an id.
    """

    agent: str
    objective: str
    source: SpawnSource
    message: JsonObject | None = None
    title: str | None = None
    parent_task_id: str | None = None
    session_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None


@frozen
class SendSubagentInput:
    """Send a further message into the context of a subagent: to its open task, else as a new task."""

    subagent_id: str
    message: JsonObject
    source: SpawnSource
    traceparent: str | None = None
    tracestate: str | None = None


@record
class ResumeSubagent:
    """Continue a subagent: unsent messages are sent, paused or lost tasks resume, running ones are followed again."""

    subagent_id: Id
    reason: ReasonText | None = None


@record
class CloseSubagent:
    """Stop a subagent's tasks and close its context: the next message to its agent opens another one."""

    subagent_id: Id
    reason: ReasonText | None = None


SubagentRequest: TypeAlias = SpawnSubagent | SendSubagentInput | ResumeSubagent | CloseSubagent


@record
class SubagentChanged:
    """A subagent after a command, and the outcome.

    ``task_id`` is the task of the message. ``resumed``: it continues; ``attached``: it was running and is followed
    here; ``elsewhere``: by another instance; ``held``: it waits for another task; ``idle``: there is nothing to do.
    """

    subagent: JsonObject
    outcome: Literal[
        "spawned", "sent", "resumed", "attached", "elsewhere", "held", "idle", "closed"
    ]
    task_id: str | None = None
    turn_id: str | None = None
    repeated: bool = False


@record
class WaitSubagents:
    """Wait until ``any`` or ``all`` of some subagents are settled, at most ``timeout_ms``.

    Settled: idle, closed, unreachable, or waiting for input or an approval.
    """

    subagent_ids: Annotated[tuple[Id, ...], Field(min_length=1, max_length=MOST_WAITED)]
    mode: Literal["any", "all"] = "all"
    timeout_ms: Annotated[int, Field(ge=0, le=LONGEST_WAIT_MS)] = LONGEST_WAIT_MS


@record
class SubagentsWaited:
    """The subagents at the end of the wait. ``timed_out``: too few are ``settled``."""

    subagents: tuple[Subagent, ...]
    settled: tuple[str, ...]
    timed_out: bool = False


@record
class ListSubagents:
    """The subagents of exactly one task, thread or session of the caller."""

    task_id: Id | None = None
    thread_id: Id | None = None
    session_id: Id | None = None


@record
class GetSubagent:
    """One subagent, by its id."""

    subagent_id: Id


@record
class GetSubagentEvents:
    """The events of a subagent: ``limit`` of them after the first ``after`` (EVC-16)."""

    subagent_id: Id
    after: int = 0
    limit: int = 100


SubagentQuery: TypeAlias = ListSubagents | GetSubagent | GetSubagentEvents
"""Queries that overseers of a tenant may use as well."""


@record
class SubagentList:
    """The subagents in a scope, and the jobs related to it; ``sequence`` is that of its session."""

    session_id: str
    sequence: int
    subagents: tuple[Subagent, ...]
    jobs: tuple[JobLine, ...] = ()
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


@record
class SubagentEvents:
    """A page of events, each an envelope with the sequence of its fact."""

    subagent_id: str
    events: tuple[JsonObject, ...]
    next_page_token: str = ""
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])

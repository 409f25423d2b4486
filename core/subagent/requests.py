"""What a caller can ask of subagents (CMD-19, CMD-24)."""

from __future__ import annotations

from dataclasses import field
from typing import TypeAlias

from passerelle.core.read_models.mark import FreshnessMark
from passerelle.core.read_models.subagents import JobLine, Subagent
from passerelle.core.task.requests import Id
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record


@record
class ListSubagents:
    """The subagents of exactly one task, thread or session of the caller."""

    task_id: Id | None = None
    thread_id: Id | None = None
    session_id: Id | None = None


@record
class GetSubagent:
    """One subagent, by the id that a list gives it."""

    subagent_id: Id


@record
class GetSubagentEvents:
    """What a subagent has lived through: ``limit`` events behind the first ``after`` of them (EVC-16)."""

    subagent_id: Id
    after: int = 0
    limit: int = 100


SubagentQuery: TypeAlias = ListSubagents | GetSubagent | GetSubagentEvents


@record
class SubagentList:
    """The subagents in a scope, and the jobs that it has to do with; ``sequence`` is that of its session."""

    session_id: str
    sequence: int
    subagents: tuple[Subagent, ...]
    jobs: tuple[JobLine, ...] = ()
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


@record
class SubagentEvents:
    """A page of events, each an envelope with the sequence of the fact behind it."""

    subagent_id: str
    events: tuple[JsonObject, ...]
    next_page_token: str = ""
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])

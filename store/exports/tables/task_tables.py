"""Tasks and their attempts as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from passerelle.core.read_models.task import name_task
from passerelle.core.wire.codec import to_wire
from passerelle.store.exports.tables.column import (
    Column,
    Table,
    list_error,
    measure,
    read_optional,
    read_time,
    write_json,
)

if TYPE_CHECKING:
    from passerelle.core.task.record import Attempt, TaskRecord


class TaskRow(NamedTuple):
    """A task, and whether its session was in the archive."""

    task: TaskRecord
    is_archived: bool


class AttemptRow(NamedTuple):
    """An attempt of a task."""

    task: TaskRecord
    attempt: Attempt


TASKS: Final[Table[TaskRow]] = Table(
    "tasks",
    "One row for each task.",
    (
        Column(
            "task_id", "text", "The task; other tables name it so.", lambda row: row.task.task_id
        ),
        Column(
            "a2a_task_id",
            "text",
            "The id under which callers see it over A2A.",
            lambda row: name_task(row.task),
        ),
        Column(
            "session_id", "text", "The session that it is part of.", lambda row: row.task.session_id
        ),
        Column("thread_id", "text", "The thread.", lambda row: row.task.thread_id, optional=True),
        Column(
            "turn_id",
            "text",
            "The turn that opened it.",
            lambda row: row.task.turn_id,
            optional=True,
        ),
        Column(
            "context_id",
            "text",
            "The context that callers name.",
            lambda row: row.task.scope.context_id,
        ),
        Column("tenant", "text", "Tenant of its owner.", lambda row: row.task.scope.tenant),
        Column(
            "principal",
            "text",
            "Name of the client or person that owns it.",
            lambda row: row.task.scope.principal,
        ),
        Column("owner", "text", "The owner key (`pr_…`) of that one.", lambda row: row.task.owner),
        Column("requested_by", "text", "Who asked for it.", lambda row: row.task.requested_by),
        Column(
            "agent",
            "text",
            "The agent that has it, or had it last.",
            lambda row: row.task.peer,
            optional=True,
        ),
        Column("title", "text", "Its title.", lambda row: row.task.title),
        Column("objective", "text", "What it was asked for.", lambda row: row.task.objective),
        Column("kind", "text", "The kind that its creator gave it.", lambda row: row.task.kind),
        Column(
            "family",
            "text",
            "`delegation`, `job_item`, `local_worker` or `message`.",
            lambda row: row.task.family,
        ),
        Column(
            "visibility",
            "text",
            "`foreground`, `background`, `internal` or `hidden`.",
            lambda row: row.task.visibility.value,
        ),
        Column(
            "status",
            "text",
            "Its status, as it was recorded last: `completed`, `failed`, `cancelled`, `timed_out` once it has ended.",
            lambda row: row.task.status.value,
        ),
        Column(
            "rejected",
            "flag",
            "Whether it failed because the agent refused it.",
            lambda row: row.task.rejected,
        ),
        Column(
            "status_reason",
            "text",
            "Why it has that status.",
            lambda row: row.task.status_reason,
            optional=True,
        ),
        *list_error(lambda row: row.task.last_error),
        Column(
            "created_at", "time", "When it was created.", lambda row: read_time(row.task.created_at)
        ),
        Column(
            "started_at",
            "time",
            "When its first run began.",
            lambda row: read_time(row.task.started_at),
            optional=True,
        ),
        Column(
            "ended_at",
            "time",
            "When it ended.",
            lambda row: read_time(row.task.ended_at),
            optional=True,
        ),
        Column(
            "updated_at",
            "time",
            "When it last changed.",
            lambda row: read_time(row.task.updated_at),
        ),
        Column(
            "duration_ms",
            "count",
            "Milliseconds from the first run to the end.",
            lambda row: measure(row.task.started_at, row.task.ended_at),
            optional=True,
        ),
        Column(
            "attempts", "count", "How many attempts it had.", lambda row: len(row.task.attempts)
        ),
        Column(
            "inputs",
            "count",
            "How many messages were sent on it.",
            lambda row: len(row.task.inputs),
        ),
        Column(
            "artifacts", "count", "How many artifacts it has.", lambda row: row.task.artifact_count
        ),
        Column("priority", "count", "Its priority.", lambda row: row.task.priority),
        Column(
            "parent_task_id",
            "text",
            "The task that it is part of.",
            lambda row: row.task.parent_task_id,
            optional=True,
        ),
        Column(
            "root_task_id",
            "text",
            "The topmost of these; the task itself if it has none.",
            lambda row: row.task.root_task_id,
        ),
        Column(
            "cancelled_by",
            "text",
            "Who requested its cancellation.",
            lambda row: row.task.cancel_requested_by,
            optional=True,
        ),
        Column(
            "cancel_source",
            "text",
            "On whose behalf: `user`, `policy`, `runtime` or `peer`.",
            lambda row: row.task.cancel_source,
            optional=True,
        ),
        Column(
            "constraints",
            "json",
            "What it was limited to.",
            lambda row: write_json(row.task.constraints),
            optional=True,
        ),
        Column(
            "profile",
            "json",
            "What it asked of an agent.",
            lambda row: write_json(row.task.profile),
            optional=True,
        ),
        Column(
            "metadata",
            "json",
            "Metadata that its owner keeps with it.",
            lambda row: write_json(row.task.metadata),
            optional=True,
        ),
        Column(
            "coverage",
            "json",
            "Which conditions of its acceptance are met.",
            lambda row: write_json(to_wire(row.task.coverage)) if row.task.coverage else None,
            optional=True,
        ),
        Column(
            "first_sequence", "count", "Sequence of its first event.", lambda row: row.task.first
        ),
        Column("last_sequence", "count", "Sequence of its last event.", lambda row: row.task.last),
        Column(
            "archived", "flag", "Whether its session had left memory.", lambda row: row.is_archived
        ),
    ),
)

ATTEMPTS: Final[Table[AttemptRow]] = Table(
    "attempts",
    "One row for each attempt of a task: one delegation to one agent.",
    (
        Column("run_id", "text", "The attempt.", lambda row: row.attempt.run_id),
        Column("task_id", "text", "Its task.", lambda row: row.task.task_id),
        Column("session_id", "text", "The session of the task.", lambda row: row.task.session_id),
        Column(
            "ordinal", "count", "Which one of the task, from 1.", lambda row: row.attempt.ordinal
        ),
        Column("agent", "text", "The agent.", lambda row: row.attempt.worker.peer),
        Column(
            "worker_kind",
            "text",
            "`agent`, `process`, `hosted`, `scheduler` or `external`.",
            lambda row: row.attempt.worker.kind,
        ),
        Column(
            "endpoint",
            "text",
            "Where it was called.",
            lambda row: row.attempt.worker.endpoint,
            optional=True,
        ),
        Column(
            "card_hash",
            "text",
            "Hash of its card when the run began.",
            lambda row: row.attempt.worker.card_hash,
            optional=True,
        ),
        Column(
            "protocol",
            "text",
            "Binding and version of A2A.",
            lambda row: row.attempt.native_protocol,
        ),
        Column(
            "mechanism",
            "text",
            "How its progress was followed.",
            lambda row: row.attempt.delivery_mechanism,
        ),
        Column(
            "status",
            "text",
            "Its status, in the words of tasks.",
            lambda row: row.attempt.status.value,
        ),
        Column(
            "native_status",
            "text",
            "The agent's own name for it.",
            lambda row: row.attempt.native_status,
            optional=True,
        ),
        *list_error(lambda row: row.attempt.last_error),
        Column(
            "retry_reason",
            "text",
            "Why there is a further attempt; null for the first.",
            lambda row: row.attempt.reason,
            optional=True,
        ),
        Column(
            "asked_by",
            "text",
            "Who requested it; null if it was automatic, or came with the task.",
            lambda row: row.attempt.asked_by,
            optional=True,
        ),
        Column(
            "started_at", "time", "When it began.", lambda row: read_time(row.attempt.started_at)
        ),
        Column(
            "ended_at",
            "time",
            "When it ended.",
            lambda row: read_time(row.attempt.ended_at),
            optional=True,
        ),
        Column(
            "last_seen_at",
            "time",
            "When the agent last responded.",
            lambda row: read_time(row.attempt.last_seen_at),
        ),
        Column(
            "duration_ms",
            "count",
            "Milliseconds from its start to its end.",
            lambda row: measure(row.attempt.started_at, row.attempt.ended_at),
            optional=True,
        ),
        Column(
            "held_ms",
            "count",
            "How long the task was paused or blocked during it.",
            lambda row: row.attempt.held_ms,
        ),
        Column(
            "steps", "count", "How many steps the agent reported.", lambda row: row.attempt.steps
        ),
        Column(
            "message_id",
            "text",
            "The message that it began with.",
            lambda row: row.attempt.message_id,
        ),
        Column(
            "remote_task_id",
            "text",
            "The agent's id of its task.",
            lambda row: row.attempt.remote_task_id,
            optional=True,
        ),
        Column(
            "remote_context_id",
            "text",
            "The agent's id of the context.",
            lambda row: row.attempt.remote_context_id,
            optional=True,
        ),
        Column(
            "trace_id",
            "text",
            "Its W3C trace id.",
            read_optional(lambda row: row.attempt.trace, lambda trace: trace.trace_id),
            optional=True,
        ),
        Column(
            "summary",
            "text",
            "What the agent said at its end.",
            lambda row: row.attempt.completion_summary,
            optional=True,
        ),
    ),
)

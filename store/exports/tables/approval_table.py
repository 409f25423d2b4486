"""Approval requests and their decisions as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.times import parse_ms
from passerelle.store.exports.tables.column import (
    Column,
    Table,
    read_optional,
    read_time,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.payloads.approval import ApprovalDecision
    from passerelle.store.exports.tables.column import CellValue, ColumnKind


def _of_decision(
    name: str, kind: ColumnKind, meaning: str, show: Callable[[ApprovalDecision], CellValue]
) -> Column[ActionRecord]:
    """A column that is null until the approval is decided."""
    return Column(name, kind, meaning, read_optional(lambda row: row.decision, show), optional=True)


APPROVALS: Final[Table[ActionRecord]] = Table(
    "approvals",
    "One row for each approval request, including those that policy decided and those still open.",
    (
        Column("action_id", "text", "The request.", lambda row: row.request.action_id),
        Column(
            "session_id",
            "text",
            "The session that it is part of.",
            lambda row: row.scope.session_id,
        ),
        Column("thread_id", "text", "The thread.", lambda row: row.scope.thread_id, optional=True),
        Column("turn_id", "text", "The turn.", lambda row: row.scope.turn_id, optional=True),
        Column(
            "task_id",
            "text",
            "The task that waited for it.",
            lambda row: row.scope.task_id,
            optional=True,
        ),
        Column("run_id", "text", "The attempt.", lambda row: row.scope.run_id, optional=True),
        Column("tenant", "text", "Tenant of its owner.", lambda row: row.request.tenant),
        Column(
            "principal",
            "text",
            "Name of the client or person on whose behalf the request was made.",
            lambda row: row.request.principal,
        ),
        Column(
            "owner", "text", "The owner key (`pr_…`) of that one.", lambda row: row.request.owner
        ),
        Column(
            "agent",
            "text",
            "The agent that it is about.",
            lambda row: row.request.origin.peer,
            optional=True,
        ),
        Column(
            "direction",
            "text",
            "`inbound`, `outbound`, `local` or `control`.",
            lambda row: row.request.origin.direction,
        ),
        Column(
            "asked_by",
            "text",
            "`principal`, `peer`, `worker` or `gateway`.",
            lambda row: row.request.origin.asked_by,
        ),
        Column(
            "kind",
            "text",
            "`permission`, `input`, `auth` or `confirmation`.",
            lambda row: row.request.kind,
        ),
        Column(
            "action_type",
            "text",
            "What is to be done: `tool_call`, `command`, `delegation` …",
            lambda row: row.request.action_type,
        ),
        Column("title", "text", "Its title.", lambda row: row.request.title),
        Column(
            "risk", "text", "`low`, `medium`, `high` or `critical`.", lambda row: row.request.risk
        ),
        Column(
            "destructive",
            "flag",
            "Whether it destroys something.",
            lambda row: row.request.destructive,
        ),
        Column(
            "subject",
            "json",
            "What it is about, in full.",
            lambda row: write_json(row.request.subject),
            optional=True,
        ),
        Column("digest", "text", "What an answer is bound to.", lambda row: row.request.digest),
        Column("opened_at", "time", "When it was opened.", lambda row: row.request.created_ms),
        Column(
            "expires_at",
            "time",
            "When it expires or expired.",
            lambda row: row.request.expires_ms,
        ),
        Column(
            "state",
            "text",
            "`pending`, `allowed`, `rejected`, `answered`, `answered_by_caller`, `expired`, `cancelled`, `superseded`.",
            lambda row: row.state,
        ),
        _of_decision(
            "decided_at", "time", "When it was closed.", lambda one: read_time(one.decided_at)
        ),
        Column(
            "waited_ms",
            "count",
            "Milliseconds from its opening to its end.",
            lambda row: (
                max(0, parse_ms(row.decision.decided_at) - row.request.created_ms)
                if row.decision
                else None
            ),
            optional=True,
        ),
        _of_decision(
            "decided_by",
            "text",
            "Name of who closed it; `gateway` if no person or client did.",
            lambda one: one.decided_by,
        ),
        _of_decision(
            "decided_kind",
            "text",
            "`person`, `service`, `agent` or `gateway`.",
            lambda one: one.decided_kind,
        ),
        _of_decision(
            "cause",
            "text",
            "Why it was closed: `human`, `rule`, `grant`, `timeout` …",
            lambda one: one.cause,
        ),
        _of_decision(
            "source",
            "text",
            "`answer`, `timeout`, `policy_deny`, `policy_allow`, `auth_failure` or `system`.",
            lambda one: one.source,
        ),
        _of_decision("option_id", "text", "The option that was chosen.", lambda one: one.option_id),
        _of_decision(
            "device", "text", "The device that the answer came from.", lambda one: one.device
        ),
        _of_decision("device_name", "text", "Name of the device.", lambda one: one.device_name),
        _of_decision(
            "signed",
            "flag",
            "Whether a device has signed the answer.",
            lambda one: one.signature is not None,
        ),
        _of_decision("comment", "text", "The comment of who answered.", lambda one: one.comment),
        _of_decision(
            "content",
            "json",
            "What was answered, if more than an option was asked for.",
            lambda one: write_json(one.content),
        ),
        _of_decision(
            "grant_id",
            "text",
            "The grant that the answer created, or that answered it.",
            lambda one: one.grant_id,
        ),
        Column(
            "votes",
            "json",
            "The votes, if more than one was needed.",
            lambda row: write_json([to_wire(one) for one in row.votes]),
            optional=True,
        ),
        Column(
            "return_state",
            "text",
            "Whether the answer came back to the agent: `none`, `owed`, `returning`, `returned` or `undeliverable`.",
            lambda row: row.return_state,
        ),
        Column(
            "policy_version",
            "text",
            "The rules that it was evaluated by.",
            lambda row: row.request.policy_version,
        ),
        Column(
            "evaluation_id",
            "text",
            "The evaluation that requested it.",
            lambda row: row.request.evaluation_id,
        ),
    ),
)

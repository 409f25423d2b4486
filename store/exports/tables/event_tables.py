"""Events, and their costs, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, cast

from passerelle.core.events import FRAME, GENERATION
from passerelle.core.payloads.limit import CostEstimated, CostRecorded
from passerelle.store.exports.tables.column import Column, Table, read_time, write_json, write_money

if TYPE_CHECKING:
    from passerelle.core.ports.log import Entry
    from passerelle.core.wire.json import JsonObject
    from passerelle.store.exports.tables.column import CellValue


class EventRow(NamedTuple):
    """An event, and the members of its envelope."""

    session: str
    entry: Entry
    envelope: JsonObject


class CostRow(NamedTuple):
    """A fact about cost, and its event."""

    event: EventRow
    cost: CostEstimated | CostRecorded


def _id(name: str, member: str, meaning: str) -> Column[EventRow]:
    return Column(name, "text", meaning, lambda row: _read_text(row, member), optional=True)


def _read_text(row: EventRow, member: str) -> str | None:
    return cast("str | None", row.envelope.get(member))


def _read_payload(row: EventRow) -> CellValue:
    payload = cast("JsonObject", row.envelope["payload"])
    return write_json({name: one for name, one in payload.items() if name != FRAME})


EVENTS: Final[Table[EventRow]] = Table(
    "events",
    "One row for each event, as it is stored. [Events](events.md) has the classes and their payloads.",
    (
        Column(
            "session_id", "text", "The session whose stream contains it.", lambda row: row.session
        ),
        Column(
            "sequence",
            "count",
            "Its position in that stream, from 1, without gaps.",
            lambda row: row.entry.sequence,
        ),
        Column("event_id", "text", "The event.", lambda row: row.entry.event_id),
        Column("type", "text", "Its class, such as `task.completed`.", lambda row: row.entry.type),
        Column(
            "at", "time", "When it happened.", lambda row: read_time(_read_text(row, "timestamp"))
        ),
        Column(
            "schema_version",
            "text",
            "Version of its envelope.",
            lambda row: _read_text(row, "schemaVersion"),
        ),
        Column(
            "runtime_id",
            "text",
            "The runtime that wrote it.",
            lambda row: _read_text(row, "runtimeId"),
        ),
        _id("thread_id", "threadId", "The thread that it belongs to."),
        _id("turn_id", "turnId", "The turn."),
        _id("task_id", "taskId", "The task."),
        _id("run_id", "runId", "The attempt."),
        _id("step_id", "stepId", "The step of the attempt."),
        _id("tool_call_id", "toolCallId", "The call of a tool."),
        _id("action_id", "actionId", "The approval request."),
        _id("subagent_id", "subagentId", "The subagent."),
        _id("trace_id", "traceId", "The trace."),
        _id("span_id", "spanId", "The span in it."),
        Column(
            "a2a_task_id",
            "text",
            "The task whose callers see it over A2A.",
            lambda row: row.entry.facade,
            optional=True,
        ),
        Column(
            "generation",
            "count",
            "Its number among the events that they see, from 1.",
            lambda row: cast("int | None", row.envelope.get(GENERATION)),
            optional=True,
        ),
        Column(
            "refs",
            "json",
            "Content stored elsewhere, by hash or sequence.",
            lambda row: write_json(row.envelope.get("refs")),
            optional=True,
        ),
        Column(
            "payload",
            "json",
            "Its payload, without the member `a2a`.",
            _read_payload,
            optional=True,
        ),
        Column(
            "a2a",
            "json",
            "What callers receive of it over A2A.",
            lambda row: row.entry.cut_frame().decode() or None,
            optional=True,
        ),
    ),
)


COSTS: Final[Table[CostRow]] = Table(
    "costs",
    "One row for each event with the estimated or the recorded cost of a call.",
    (
        Column("session_id", "text", "The session.", lambda row: row.event.session),
        Column("sequence", "count", "Sequence of the event.", lambda row: row.event.entry.sequence),
        Column("event_id", "text", "The event.", lambda row: row.event.entry.event_id),
        Column(
            "at",
            "time",
            "When it was known.",
            lambda row: read_time(_read_text(row.event, "timestamp")),
        ),
        Column(
            "task_id",
            "text",
            "The task.",
            lambda row: _read_text(row.event, "taskId"),
            optional=True,
        ),
        Column(
            "run_id",
            "text",
            "The attempt.",
            lambda row: _read_text(row.event, "runId"),
            optional=True,
        ),
        Column(
            "turn_id",
            "text",
            "The turn.",
            lambda row: _read_text(row.event, "turnId"),
            optional=True,
        ),
        Column("agent", "text", "The agent.", lambda row: row.cost.peer),
        Column(
            "kind",
            "text",
            "`estimated`: expected before the call; `recorded`: known after it.",
            lambda row: "recorded" if isinstance(row.cost, CostRecorded) else "estimated",
        ),
        Column("amount", "money", "The amount.", lambda row: write_money(row.cost.amount_micros)),
        Column("currency", "text", "Its currency (ISO 4217).", lambda row: row.cost.currency),
        Column(
            "basis",
            "text",
            "Of an estimate: `per_call`, `per_token` or `per_second`.",
            lambda row: row.cost.basis if isinstance(row.cost, CostEstimated) else None,
            optional=True,
        ),
        Column(
            "source",
            "text",
            "Of a recorded cost: `peer_usage`, `wall_time` or `per_call`.",
            lambda row: row.cost.source if isinstance(row.cost, CostRecorded) else None,
            optional=True,
        ),
        Column(
            "duration_ms",
            "count",
            "How long the call took.",
            lambda row: row.cost.duration_ms if isinstance(row.cost, CostRecorded) else None,
            optional=True,
        ),
        Column(
            "input_tokens",
            "count",
            "Tokens in, as reported by the agent.",
            lambda row: row.cost.input_tokens if isinstance(row.cost, CostRecorded) else None,
            optional=True,
        ),
        Column(
            "output_tokens",
            "count",
            "Tokens out.",
            lambda row: row.cost.output_tokens if isinstance(row.cost, CostRecorded) else None,
            optional=True,
        ),
    ),
)

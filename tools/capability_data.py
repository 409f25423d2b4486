"""Draws ``gateway/capabilities.json``: which rows of the ledger each part of the scope rests on, and where they stand.

The items are those of ID-17, in its order. ``CHN-*`` is every row of that group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import orjson

from passerelle.core.read_models.capabilities import (
    Capability,
    CapabilityPart,
    CapabilityState,
    join_parts,
)
from passerelle.core.wire.codec import to_wire
from tests.support.ledger import LedgerFault, LedgerRow, Mark, State, collect, judge, load

SCOPE: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "identity": (
        "Identity and correlation",
        {
            "ids": "ID-1 ID-2 ID-3 ID-4 ID-5 ID-6 ID-7 ID-9 ID-11 ID-12 ID-13",
            "tool_calls": "ID-8",
            "subagents": "ID-10",
            "correlation": "ENV-8",
        },
    ),
    "events": (
        "Event classes and envelope",
        {
            "envelope": "ENV-1 ENV-2 ENV-3 ENV-4 ENV-5 ENV-6 ENV-7 ENV-9 ENV-10 ENV-12 ENV-13",
            "conversation": "EVC-1 EVC-2 EVC-3",
            "tasks": "EVC-4 EVC-5 TEV-*",
            "artifacts_and_limits": "EVC-14 EVC-17",
            "snapshots_and_faults": "EVC-18 EVC-19",
        },
    ),
    "control_plane": (
        "Control-plane actions with write boundaries",
        {
            "turns": "CMD-1 CMD-2 CMD-3",
            "tasks": "CMD-4 CMD-5 CMD-7 CMD-8 CMD-9 CMD-10 CMD-11 CMD-13",
            "reads": "CMD-12 CMD-16 CMD-17 CMD-18",
            "channels": "CMD-25",
            "write_boundaries": "CMD-27 CMD-28 CMD-29 CMD-30",
            "queue": "CMD-15",
            "subagents": "CMD-19",
            "environment": "CMD-22",
            "processes": "CMD-23",
            "jobs": "CMD-24",
        },
    ),
    "snapshots": (
        "Snapshots and read models",
        {
            "sessions": "SNAP-1 SNAP-20",
            "threads": "SNAP-2",
            "tasks": "SNAP-5 SNAP-14 SNAP-15 SNAP-16 SNAP-17 SNAP-18 SNAP-19",
            "artifacts_and_evidence": "SNAP-7 SNAP-8",
            "channels": "SNAP-13",
            "freshness": "SNAP-21 SNAP-22",
            "context": "SNAP-6",
            "queue": "SNAP-4",
            "sandbox": "SNAP-9 SNAP-10",
            "routing": "SNAP-11",
            "subagents_and_jobs": "SNAP-12",
        },
    ),
    "orchestration": (
        "Tool, context, model and policy facts",
        {
            "tool_catalog": "EVC-8 SNAP-3",
            "tool_calls": "EVC-9 PRS-1 VAL-3",
            "context": "EVC-12",
            "compaction": "EVC-13 PRS-5",
            "model": "EVC-6",
            "reasoning": "EVC-7",
            "policy": "EXT-1 PRS-3 PRS-12",
        },
    ),
    "human_in_the_loop": (
        "Human in the loop, with queue and resume",
        {
            "questions": "EVC-10 CMD-14 VAL-4 CF-5",
            "approvals": "CHN-6 CHN-7 CHN-8 CHN-14 CMD-21",
            "queue": "EVC-11 CMD-15 VAL-5",
            "resume": "CMD-3",
        },
    ),
    "evidence": (
        "Evidence, replay and observability",
        {
            "bundles": "EVC-15 CMD-20 CMD-26 VAL-10",
            "replay": "VAL-1",
            "spans": "ENV-8",
            "correlation_of_metrics": "PRS-11",
        },
    ),
    "boundaries": (
        "Permission, sandbox, hooks, process, channels and peers",
        {
            "permission": "EXT-1 CMD-21",
            "sandbox": "EXT-2 PRS-2",
            "hooks": "EXT-3 EXT-12 PRS-4",
            "processes": "EXT-4 CMD-23",
            "channel_recovery": "EXT-8 CHN-3 CHN-4 CHN-5 CHN-9 CHN-10 CHN-13 CMD-25",
            "peer_tasks": "A2A-*",
        },
    ),
    "routing_and_limits": (
        "Routing, candidates, cost, quota, rate limit and budget",
        {
            "routing": "EXT-5 PRS-10",
            "cost_and_quota": "EXT-7",
            "rate_and_budget": "EVC-17",
        },
    ),
    "tasks": (
        "Task lifecycle, attempts, graphs, subagents, jobs, large output and reconstruction",
        {
            "lifecycle": "TR-1 CF-4 CF-13 CF-14 CF-15 CF-17 CF-18 PRS-7 VAL-6",
            "statuses": "ST-*",
            "attempts": "ATT-*",
            "graphs": "GR-*",
            "subagents": "EVC-16 PRS-6",
            "jobs": "EXT-9 PRS-8",
            "large_output": "EXT-10 PO-8 ENV-11",
            "reconstruction": "VAL-7",
            "rollback": "EXT-11",
            "archive": "ST-18 TEV-17",
        },
    ),
}


def render_capabilities() -> str:
    """The text of the file.

    Raises:
        LedgerFault: a part names a row that is not there.
    """
    found = [to_wire(one) for one in list_capabilities(load(), collect())]
    return orjson.dumps(found, option=orjson.OPT_INDENT_2).decode() + "\n"


def list_capabilities(rows: Sequence[LedgerRow], marks: Sequence[Mark]) -> list[Capability]:
    """The items as the ledger has them. Raises as ``render_capabilities`` does."""
    states = judge(tuple(rows), tuple(marks)).states
    return [
        join_parts(name, title, (_judge(part, text, rows, states) for part, text in parts.items()))
        for name, (title, parts) in SCOPE.items()
    ]


def _judge(
    part: str, patterns: str, rows: Sequence[LedgerRow], states: Mapping[str, State]
) -> CapabilityPart:
    """Supported where each of its rows is closed, unavailable where none of them has a test yet."""
    chosen = [row for pattern in patterns.split() for row in _choose(pattern, rows)]
    found = {states[row.id] for row in chosen}
    state: CapabilityState = "adapted"
    if len(found) == 1 and State.BEGUN not in found:
        state = "supported" if State.CLOSED in found else "unavailable"
    reasons = tuple(dict.fromkeys(row.missing for row in chosen if row.missing))
    return CapabilityPart(part, state, tuple(row.id for row in chosen), reasons)


def _choose(pattern: str, rows: Sequence[LedgerRow]) -> Iterator[LedgerRow]:
    group = pattern.removesuffix("*")
    found = [
        row for row in rows if row.id == pattern or (group != pattern and row.id.startswith(group))
    ]
    if not found:
        raise LedgerFault(f"{pattern}: a part of the scope rests on it, and it is no row")
    yield from found

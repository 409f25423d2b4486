"""``passerelle overview``: open work and the state of a gateway, on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from passerelle.a2a_mapping.members import object_at, text_at, whole_at
from passerelle.cli.verbs.table_layout import format_age, read_now_ms
from passerelle.cli.verbs.verb import GatewayLink, add_verb, flatten, format_fields
from passerelle.core.wire.display import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import JsonObject

overview: Final = typer.Typer()

_MOST_AGENTS: Final = 10
_WIDEST: Final = 60


@add_verb(overview, "overview --data-dir ./state", "overview")
def show(link: GatewayLink) -> None:
    """Show open work, pending decisions, and the state of the gateway.

    Needs tasks:oversee for tasks and approvals, runtime:operate for the rest.
    """
    answer = link.read("/v1/overview")
    link.print_answer(answer, describe(answer, read_now_ms()))


def describe(answer: JsonObject, now_ms: int) -> Iterator[str]:
    """Formats one line per fact; times as ages."""
    tasks, runtime = object_at(answer, "tasks"), object_at(answer, "runtime")
    yield from format_fields(
        [
            *(_describe_tasks(tasks, now_ms) if tasks else ()),
            ("approvals", _name_open(object_at(answer, "approvals"), "open", now_ms)),
            ("webhooks", _name_open(object_at(answer, "deliveries"), "failing", now_ms)),
            *(_describe_runtime(runtime) if runtime else ()),
        ]
    )


def _describe_tasks(tasks: JsonObject, now_ms: int) -> Iterator[tuple[str, str]]:
    cut = "" if tasks.get("complete") else f", {tasks.get('counted')} of them counted"
    yield "tasks", f"{tasks.get('open')} open{cut}"
    yield "for a person", str(tasks.get("needPerson") or "")
    by_status, by_agent = object_at(tasks, "byStatus"), object_at(tasks, "byAgent")
    yield "by status", _wrap([f"{name} {count}" for name, count in by_status.items()])
    yield "by agent", _wrap([f"{name or 'none'} {count}" for name, count in _sort(by_agent)])
    oldest = object_at(tasks, "oldestWaiting")
    if oldest:
        age = format_age(text_at(oldest, "since"), now_ms)
        yield "waits longest", f"{text_at(oldest, 'taskId')}"
        yield "", f"{flatten(text_at(oldest, 'agent'), 24)}, {text_at(oldest, 'status')} for {age}"


def _sort(by_agent: JsonObject) -> list[tuple[str, int]]:
    """Sorts by number of tasks, the highest first."""
    counted = [(name, count) for name, count in by_agent.items() if isinstance(count, int)]
    return sorted(counted, key=lambda one: (-one[1], one[0]))[:_MOST_AGENTS]


def _name_open(part: JsonObject, member: str, now_ms: int) -> str:
    if not part:
        return ""
    count, oldest = part.get(member), text_at(part, "oldestAt")
    more = "" if part.get("complete") else " at least"
    since = f", the oldest for {format_age(oldest, now_ms)}" if oldest else ""
    return f"{count} {member}{more}{since}"


def _describe_runtime(runtime: JsonObject) -> Iterator[tuple[str, str]]:
    yield (
        "instances",
        f"{runtime.get('instances')}, this one owns {runtime.get('shardsLed')} of 64 shards",
    )
    yield "relay", f"{runtime.get('relayBehindMs')} ms behind"
    replicas = "missing" if runtime.get("replicasMissing") else runtime.get("replicated")
    share = runtime.get("memoryShare")
    full = f", {share:.0%} of its memory" if isinstance(share, float) and share else ""
    alone = f", {runtime['alone']} without a replica" if runtime.get("alone") else ""
    primaries = format_count(whole_at(runtime, "primaries") or 0, "primary", "primaries")
    yield "store", f"{primaries}, {replicas} replicated{alone}{full}"
    yield "configuration", flatten(text_at(runtime, "configFault"), _WIDEST)


def _wrap(parts: list[str]) -> str:
    """Joins as many parts as fit into a line of 80 characters."""
    line = ""
    for place, part in enumerate(parts):
        joined = f"{line}, {part}" if line else flatten(part, _WIDEST)
        if len(joined) > _WIDEST:
            return f"{line}, … {len(parts) - place} more"
        line = joined
    return line

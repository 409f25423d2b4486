"""``passerelle agents``: lists the agents that the caller may use, shows their state, and pauses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from passerelle.a2a_mapping.members import object_at, objects_at, text_at, texts_at
from passerelle.cli.verbs.table_layout import format_age, read_now_ms
from passerelle.cli.verbs.verb import GatewayLink, add_verb, flatten, format_fields, name_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import JsonObject


agents: Final = typer.Typer(rich_markup_mode=None)

AgentArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the agent.")]
ReasonOption = Annotated[
    str | None, typer.Option(help="Reason, shown to callers whose messages wait.")
]
_PATH: Final = "/v1/agents"


@add_verb(agents, "agents list --skill summarize", "list")
@add_verb(agents, "agents --skill summarize --data-dir ./state", is_default=True)
def list_all(
    link: GatewayLink,
    skill: Annotated[str | None, typer.Option(help="Only agents with this skill.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only agents with this tag.")] = None,
) -> None:
    """List the agents that you may use; list, show, pause, drain or resume.

    With their skills, as read by the gateway.
    """
    answer = link.read(_PATH, {"skill": skill, "tag": tag})
    link.print_answer(answer, _list(objects_at(answer, "agents")))


@add_verb(agents, "agents pause echo --reason 'it is being moved'", changes=True)
def pause(link: GatewayLink, name: AgentArgument, reason: ReasonOption = None) -> None:
    """Queue new messages to an agent until it is resumed; running work continues."""
    _print_change(link, link.post(name_path(_PATH, name, "pause"), {"reason": reason}))


@add_verb(agents, "agents drain echo", changes=True)
def drain(link: GatewayLink, name: AgentArgument, reason: ReasonOption = None) -> None:
    """Refuse new messages to an agent until it is resumed; running work ends."""
    _print_change(link, link.post(name_path(_PATH, name, "drain"), {"reason": reason}))


@add_verb(agents, "agents resume echo", changes=True)
def resume(link: GatewayLink, name: AgentArgument) -> None:
    """Send work to an agent again, queued messages first."""
    _print_change(link, link.post(name_path(_PATH, name, "resume")))


def _print_change(link: GatewayLink, answer: JsonObject) -> None:
    parts = [text_at(answer, "name"), text_at(answer, "state")]
    if text_at(answer, "by"):
        parts.append(f"by {text_at(answer, 'by')} at {text_at(answer, 'at')}")
    if text_at(answer, "reason"):
        parts.append(flatten(text_at(answer, "reason")))
    waiting = answer.get("waiting")
    if waiting:
        parts.append(f"{waiting} waiting")
    if answer.get("repeated"):
        parts.append("as before")
    link.print_answer(answer, ["  ".join(parts)])


@add_verb(agents, "agents show echo")
def show(link: GatewayLink, name: AgentArgument) -> None:
    """Show the state of an agent: card, breakers, limits, calls of the last hour.

    Calls and runs are those of all instances; needs tasks:oversee or runtime:operate.
    """
    answer = link.read(name_path(_PATH, name, "health"))
    link.print_answer(answer, describe_health(answer, read_now_ms()))


def describe_health(answer: JsonObject, now_ms: int) -> Iterator[str]:
    """Formats the health of an agent, one line per fact; times as ages."""
    calls, limits = object_at(answer, "calls"), object_at(answer, "limits")
    breakers = object_at(answer, "breakers")
    outcomes, instances = object_at(calls, "outcomes"), objects_at(answer, "instances")
    known = [text_at(answer, name) for name in ("protocol", "version", "signature")]
    yield from format_fields(
        [
            ("agent", flatten(text_at(answer, "name"))),
            ("card", _age(answer, "status", "cardSince", now_ms)),
            ("says", flatten(", ".join(one for one in known if one))),
            *(("breaker", f"{flatten(name, 40)} {mode}") for name, mode in breakers.items()),
            ("breaker", "open: no message is sent for now" if answer.get("rests") else ""),
            ("links", "" if answer.get("links") is None else f"{answer['links']} sockets"),
            ("runs", str(answer.get("runs"))),
            ("seen by", _name_instances(answer, instances)),
            *(("", _name_instance(one)) for one in instances if len(instances) > 1),
            ("limits", _name_limits(limits)),
            ("calls", ", ".join(f"{count} {name}" for name, count in outcomes.items()) or "none"),
            ("since", format_age(text_at(calls, "since"), now_ms)),
            ("latency", _name_times(calls)),
            ("answered", _age_of(calls, "answeredAt", now_ms)),
            ("failed", _age_of(calls, "failedAt", now_ms)),
        ]
    )


def _name_instances(answer: JsonObject, instances: list[JsonObject]) -> str:
    if answer.get("alone"):
        return "this instance; the others could not be asked"
    return "" if len(instances) <= 1 else f"{len(instances)} instances"


def _name_instance(one: JsonObject) -> str:
    """Formats the view of one instance."""
    outcomes = object_at(one, "outcomes")
    calls = sum(count for count in outcomes.values() if isinstance(count, int))
    breaker = ", breaker open" if one.get("rests") else ""
    name, status = flatten(text_at(one, "instance"), 28), text_at(one, "status")
    return f"{name} {status}{breaker}, {one.get('runs')} runs, {calls} calls"


def _age(answer: JsonObject, name: str, since: str, now_ms: int) -> str:
    at = text_at(answer, since)
    return f"{text_at(answer, name)}{f', known for {format_age(at, now_ms)}' if at else ''}"


def _age_of(calls: JsonObject, name: str, now_ms: int) -> str:
    at = text_at(calls, name)
    return f"{format_age(at, now_ms)} ago" if at else ""


def _name_limits(limits: JsonObject) -> str:
    parts: list[str] = []
    if limits.get("concurrency") is not None:
        parts.append(f"{limits.get('inUse')} of {limits['concurrency']} at once in use")
    if limits.get("rate") is not None:
        parts.append(f"{limits['rate']} in {limits['rateS']} s")
    if limits.get("usedUp"):
        parts.append("used up")
    return ", ".join(parts)


def _name_times(calls: JsonObject) -> str:
    if calls.get("p50Ms") is None:
        return ""
    most = f", p95 {calls['p95Ms']} ms" if calls.get("p95Ms") is not None else ""
    return f"p50 {calls['p50Ms']} ms{most}"


def _list(found: list[JsonObject]) -> Iterator[str]:
    """Formats one line per agent, and one per skill."""
    for agent in found:
        state = text_at(agent, "state")
        held = "" if state in {"", "active"} else f"  {state}"
        parts = f"{text_at(agent, 'name')}  {text_at(agent, 'status')}{held}"
        yield f"{parts}  {text_at(agent, 'url')}"
        for skill in objects_at(agent, "skills"):
            tags = ", ".join(texts_at(skill, "tags"))
            yield f"  {text_at(skill, 'id')}: {text_at(skill, 'name')}{f' [{tags}]' if tags else ''}"
    yield f"agents: {len(found)}"

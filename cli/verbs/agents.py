"""``passerelle agents``: the agents that one may use, as a gateway that runs knows them, and who gives them no work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from passerelle.a2a_mapping.members import objects_at, text_at, texts_at
from passerelle.cli.verbs.verb import GatewayLink, add_verb, flatten, name_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import JsonObject


agents: Final = typer.Typer(rich_markup_mode=None)

AgentArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the agent.")]
ReasonOption = Annotated[
    str | None, typer.Option(help="Why; callers whose messages wait are told.")
]
_PATH: Final = "/v1/agents"


@add_verb(agents, "agents --skill summarize --data-dir ./state", is_default=True)
def list_all(
    link: GatewayLink,
    skill: Annotated[str | None, typer.Option(help="Only agents with this skill.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only agents with this tag.")] = None,
) -> None:
    """List the agents that one may use, or pause, drain and resume one.

    With their skills, as a running gateway knows them.
    """
    answer = link.read(_PATH, {"skill": skill, "tag": tag})
    link.tell(answer, _list(objects_at(answer, "agents")))


@add_verb(agents, "agents pause echo --reason 'it is being moved'", changes=True)
def pause(link: GatewayLink, name: AgentArgument, reason: ReasonOption = None) -> None:
    """Hold what comes for an agent until it is resumed; what it works on goes on."""
    _tell_change(link, link.post(name_path(_PATH, name, "pause"), {"reason": reason}))


@add_verb(agents, "agents drain echo", changes=True)
def drain(link: GatewayLink, name: AgentArgument, reason: ReasonOption = None) -> None:
    """Refuse what comes for an agent until it is resumed; what it works on ends."""
    _tell_change(link, link.post(name_path(_PATH, name, "drain"), {"reason": reason}))


@add_verb(agents, "agents resume echo", changes=True)
def resume(link: GatewayLink, name: AgentArgument) -> None:
    """Give an agent work again; what waits goes on in order."""
    _tell_change(link, link.post(name_path(_PATH, name, "resume")))


def _tell_change(link: GatewayLink, answer: JsonObject) -> None:
    said = [text_at(answer, "name"), text_at(answer, "state")]
    if text_at(answer, "by"):
        said.append(f"by {text_at(answer, 'by')} at {text_at(answer, 'at')}")
    if text_at(answer, "reason"):
        said.append(flatten(text_at(answer, "reason")))
    waiting = answer.get("waiting")
    if waiting:
        said.append(f"{waiting} waiting")
    if answer.get("repeated"):
        said.append("as before")
    link.tell(answer, ["  ".join(said)])


def _list(found: list[JsonObject]) -> Iterator[str]:
    """One line for each agent, and one for each of its skills."""
    for agent in found:
        state = text_at(agent, "state")
        held = "" if state in {"", "active"} else f"  {state}"
        said = f"{text_at(agent, 'name')}  {text_at(agent, 'status')}{held}"
        yield f"{said}  {text_at(agent, 'url')}"
        for skill in objects_at(agent, "skills"):
            tags = ", ".join(texts_at(skill, "tags"))
            yield f"  {text_at(skill, 'id')}: {text_at(skill, 'name')}{f' [{tags}]' if tags else ''}"
    yield f"agents: {len(found)}"

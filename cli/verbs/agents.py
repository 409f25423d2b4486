"""``passerelle agents``: the agents that one may use, as a gateway that runs knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from passerelle.a2a_mapping.members import objects_at, text_at, texts_at
from passerelle.cli.verbs.verb import GatewayLink, add_verb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import JsonObject


agents: Final = typer.Typer()


@add_verb(agents, "agents --skill summarize --data-dir ./state", "agents")
def show(
    link: GatewayLink,
    skill: Annotated[str | None, typer.Option(help="Only agents with this skill.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only agents with this tag.")] = None,
) -> None:
    """List the agents that one may use.

    With their skills, as a running gateway knows them.
    """
    answer = link.read("/v1/agents", {"skill": skill, "tag": tag})
    link.tell(answer, _list(objects_at(answer, "agents")))


def _list(agents: list[JsonObject]) -> Iterator[str]:
    """One line for each agent, and one for each of its skills."""
    for agent in agents:
        yield f"{text_at(agent, 'name')}  {text_at(agent, 'status')}  {text_at(agent, 'url')}"
        for skill in objects_at(agent, "skills"):
            tags = ", ".join(texts_at(skill, "tags"))
            yield f"  {text_at(skill, 'id')}: {text_at(skill, 'name')}{f' [{tags}]' if tags else ''}"
    yield f"agents: {len(agents)}"

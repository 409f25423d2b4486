"""Verbs of ``passerelle approvals`` by which somebody hears less of an agent for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.cli.verbs.link import Link, name_path
from passerelle.cli.verbs.table import format_table
from passerelle.cli.verbs.verb import add_verb
from passerelle.core.agent_name import find_base

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import JsonObject

_PATH: Final = "/v1/mutes"
MOST_MIN: Final = 480

mutes: Final = typer.Typer()

AgentArgument = Annotated[
    str, typer.Argument(metavar="AGENT", help="Whose questions; all of its tenants are meant.")
]
MuteFlag = Annotated[
    int | None,
    typer.Option(
        "--mute",
        min=1,
        max=MOST_MIN,
        metavar="MINUTES",
        help="Have no pushes for what its agent asks for so long, unless it is grave.",
    ),
]


@add_verb(mutes, "approvals mute echo --minutes 60", changes=True)
def mute(
    link: Link,
    agent: AgentArgument,
    minutes: Annotated[int, typer.Option(min=1, max=MOST_MIN, help="For how long.")] = 60,
) -> None:
    """Have no pushes for what an agent asks, unless it is grave.

    It answers nothing: the questions stand in the inbox, and expire, as ever.
    """
    told = link.put(name_path(_PATH, find_base(agent)), {"minutes": minutes})
    link.tell(told, [f"muted  {text_at(told, 'peer')}  until {text_at(told, 'until')}"])


@add_verb(mutes, "approvals unmute echo", changes=True)
def unmute(link: Link, agent: AgentArgument) -> None:
    """Have pushes again for what an agent asks."""
    told = link.delete(name_path(_PATH, find_base(agent)))
    link.tell(told, [f"not muted  {text_at(told, 'peer')}"])


@add_verb(mutes, "approvals mutes", "mutes")
def list_mutes(link: Link) -> None:
    """List the agents that are muted now."""
    told = link.read(_PATH)
    link.tell(told, _list(objects_at(told, "mutes")))


def _list(found: list[JsonObject]) -> Iterator[str]:
    rows = [[text_at(one, "peer"), text_at(one, "until")] for one in found]
    yield from format_table(("AGENT", "UNTIL"), rows)
    yield f"mutes: {len(found)}"

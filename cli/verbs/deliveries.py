"""``passerelle deliveries``: webhooks whose deliveries fail, and a retry for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from passerelle.a2a_mapping.members import as_list, objects_at
from passerelle.cli.verbs.verb import GatewayLink, add_verb, format_table, make_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import JsonObject

_MOST: Final = 1000
_COLUMNS: Final = ("state", "reason", "tries", "since", "url", "delivery")

deliveries: Final = make_group(
    "Webhooks whose deliveries fail, and a retry for them.", "deliveries list"
)


@add_verb(deliveries, "deliveries list --json", "list")
def show(
    link: GatewayLink,
    limit: Annotated[int, typer.Option(min=1, max=_MOST, help="Highest number of rows.")] = 100,
) -> None:
    """List webhooks whose deliveries were given up (dead) or are retried (backoff)."""
    answer = link.read("/v1/deliveries", {"pageSize": limit})
    link.print_answer(answer, _list(objects_at(answer, "deliveries")))


@add_verb(deliveries, "deliveries retry --all")
def retry(
    link: GatewayLink,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="DELIVERY...", help="As the list names them.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All that were given up.")] = False,
) -> None:
    """Retry failing webhooks now, from the first unconfirmed event."""
    if bool(names) == every:
        raise typer.BadParameter("name deliveries, or give --all", param_hint="'DELIVERY'")
    done = [
        link.post("/v1/deliveries/retry", {"delivery": name}) for name in names or _name_dead(link)
    ]
    link.print_answer({"deliveries": as_list(done)}, _describe(done))


def _name_dead(link: GatewayLink) -> list[str]:
    listed = objects_at(link.read("/v1/deliveries", {"pageSize": _MOST}), "deliveries")
    return [str(one["delivery"]) for one in listed if one["state"] == "dead"]


def _list(found: list[JsonObject]) -> Iterator[str]:
    rows = [[str(one.get(name, "")) for name in _COLUMNS] for one in found]
    yield from format_table([name.upper() for name in _COLUMNS], rows)
    dead = sum(one["state"] == "dead" for one in found)
    yield f"deliveries: {len(found)} failing, {dead} of them given up"


def _describe(done: list[JsonObject]) -> Iterator[str]:
    for one in done:
        yield f"{one['outcome']}  {one['delivery']}"
    retried = sum(one["outcome"] == "retried" for one in done)
    yield f"deliveries: {retried} retried"

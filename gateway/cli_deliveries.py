"""``passerelle deliveries``: webhooks whose deliveries fail, and another try for them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from passerelle.core.json import JsonObject
    from passerelle.gateway.control_client import ControlClient

UrlFlag = Annotated[
    str | None, typer.Option(help="The gateway; else host and port of the settings.")
]
TokenFlag = Annotated[
    str | None, typer.Option(help="Variable with a token; else the owner's token here.")
]
ConfigFlag = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file.")]
DataDirFlag = Annotated[Path | None, typer.Option(help="Folder of the owner token.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

_COLUMNS: Final = (
    ("STATE", "state"),
    ("REASON", "reason"),
    ("TRIES", "tries"),
    ("SINCE", "since"),
    ("URL", "url"),
    ("DELIVERY", "delivery"),
)

deliveries: Final = typer.Typer(
    help="Webhooks whose deliveries fail, and another try for them.",
    epilog="Example: passerelle deliveries list",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@deliveries.command("list", epilog="Example: passerelle deliveries list --json")
def show(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 100,
    as_json: JsonFlag = False,
    url: UrlFlag = None,
    token_env: TokenFlag = None,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """List webhooks that were given up (dead) or wait for another try (backoff)."""
    found = _list(_open(url, token_env, config, data_dir), limit)
    if as_json:
        print(json.dumps({"deliveries": found}, indent=2))
        return
    if found:
        for line in format_table(found):
            print(line)
    dead = sum(one["state"] == "dead" for one in found)
    print(f"deliveries: {len(found)} failing, {dead} of them given up")


@deliveries.command(epilog="Example: passerelle deliveries retry --all")
def retry(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="DELIVERY...", help="As the list names them.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every one that was given up.")] = False,
    as_json: JsonFlag = False,
    url: UrlFlag = None,
    token_env: TokenFlag = None,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Try failing webhooks again now, from what they have confirmed."""
    if bool(names) == every:
        raise typer.BadParameter("name deliveries, or give --all", param_hint="'DELIVERY'")
    client = _open(url, token_env, config, data_dir)
    wanted = names or [
        str(one["delivery"]) for one in _list(client, 1000) if one["state"] == "dead"
    ]
    done = [client.post("/v1/deliveries/retry", {"delivery": name}) for name in wanted]
    if as_json:
        print(json.dumps({"deliveries": done}, indent=2))
        return
    for one in done:
        print(f"{one['outcome']}  {one['delivery']}")
    retried = sum(one["outcome"] == "retried" for one in done)
    print(f"deliveries: {retried} tried again")


def format_table(rows: Sequence[JsonObject]) -> Iterator[str]:
    """The rows under their headings, in columns as wide as they need."""
    lines = [[title for title, _ in _COLUMNS]]
    lines += [[str(row.get(name, "")) for _, name in _COLUMNS] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield _join(line, widths)


def _join(cells: Iterable[str], widths: Iterable[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()


def _list(client: ControlClient, limit: int) -> list[JsonObject]:
    answer = client.get("/v1/deliveries", {"limit": limit})
    return cast("list[JsonObject]", answer["deliveries"])


def _open(
    url: str | None, token_env: str | None, config: Path | None, data_dir: Path | None
) -> ControlClient:
    from passerelle.gateway.control_client import open_client
    from passerelle.gateway.settings_source import Sources, load_settings

    flags = {"data_dir": data_dir}
    settings, _ = load_settings(Sources(os.environ, Path.cwd(), config, flags))
    return open_client(settings, url, token_env)

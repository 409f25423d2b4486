"""Flags that select the settings of a command, and the functions that load them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from passerelle.gateway.settings.layers import Sources
    from passerelle.gateway.settings.local_gateway import LocalGateway
    from passerelle.gateway.settings.model import Settings

ConfigFlag = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="YAML file; else passerelle.yaml here, if it is there."),
]
DataDirFlag = Annotated[
    Path | None, typer.Option(help="Folder of the embedded engine and of the owner token.")
]
RedisUrlFlag = Annotated[
    str | None, typer.Option(help="A server or cluster instead of the embedded engine.")
]


def name_sources(config: Path | None, **flags: str | int | Path | None) -> Sources:
    """Returns the sources of settings: the environment, the file, and flags."""
    from passerelle.gateway.settings.layers import Sources

    return Sources(os.environ, Path.cwd(), config, flags)


def load(sources: Sources) -> Settings:
    """Loads the settings; prints notices to standard error.

    Raises:
        ConfigInvalid: they are invalid.
    """
    from passerelle.gateway.settings.source import load_settings

    settings, notices = load_settings(sources)
    _print_notices(notices)
    return settings


def load_local(sources: Sources) -> LocalGateway:
    """Loads only the address of the configured gateway; prints notices as above.

    Raises:
        ConfigInvalid: the settings for the address are invalid.
    """
    from passerelle.gateway.settings.local_gateway import read_local_gateway

    local, notices = read_local_gateway(sources)
    _print_notices(notices)
    return local


def _print_notices(notices: tuple[str, ...]) -> None:
    for notice in notices:
        print(f"passerelle: notice: {notice}", file=sys.stderr)

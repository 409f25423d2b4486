"""``passerelle support-bundle``: one file for whoever helps, without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from passerelle.cli.settings_flags import ConfigFlag, DataDirFlag, name_sources

support: Final = typer.Typer()


@support.command(epilog="Example: passerelle support-bundle support.tar.gz")
def support_bundle(
    file: Annotated[Path, typer.Argument(help="What is written; nothing is there yet.")],
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Write a file for support: settings, versions, metrics; no secrets.

    No message, task or fact is in it. Look through it before you send it: names, addresses and rules of yours are.
    """
    from passerelle.cli.support_bundle import make_bundle
    from passerelle.gateway.server import run
    from passerelle.runtime.common.clock import SystemClock

    bundle = run(make_bundle(name_sources(config, data_dir=data_dir), SystemClock()))
    bundle.write(file)
    for name, data in bundle.members.items():
        print(f"{name}  {len(data)} bytes")
    print(f"{file} is written; look through it before you send it")

"""``passerelle support-bundle``: one file for support requests, without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from passerelle.cli.settings_flags import ConfigFlag, DataDirFlag, name_sources

support: Final = typer.Typer()


@support.command(epilog="Example: passerelle support-bundle support.tar.gz")
def support_bundle(
    file: Annotated[Path, typer.Argument(help="New file to write.")],
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Write a file for support: settings, versions, metrics; no secrets.

    It contains no message, task or fact. Review it before you send it: it has names, addresses and rules of yours.
    """
    from passerelle.cli.support_bundle import make_bundle
    from passerelle.gateway.server import run
    from passerelle.runtime.common.clock import SystemClock

    bundle = run(make_bundle(name_sources(config, data_dir=data_dir), SystemClock()))
    bundle.write(file)
    for name, data in bundle.members.items():
        print(f"{name}  {len(data)} bytes")
    print(f"{file} is written; review it before you send it")

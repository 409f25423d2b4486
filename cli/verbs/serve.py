"""``passerelle init`` writes a configuration, ``passerelle serve`` runs the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from passerelle.cli.settings_flags import (
    ConfigFlag,
    DataDirFlag,
    RedisUrlFlag,
    load,
    name_sources,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from passerelle.gateway.auth.owner import OwnerToken
    from passerelle.gateway.settings.layers import Sources
    from passerelle.gateway.settings.model import Settings

serve_verbs: Final = typer.Typer()


@serve_verbs.command(epilog="Example: passerelle init --agent http://127.0.0.1:9001 --yes")
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="New file to write.")] = Path(
        "passerelle.yaml"
    ),
    agent: Annotated[str | None, typer.Option(help="Address of an A2A agent.")] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the agent [the last word of its address]."),
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on [8080].")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip questions.")] = False,
) -> None:
    """Write a first configuration, with comments."""
    from passerelle.cli.init import DEFAULT_PORT, propose_name, write_config

    try:
        if agent is None and not yes:
            agent = typer.prompt(
                "Address of an A2A agent (empty: none yet)", "", show_default=False
            )
        served = name or propose_name(agent or "")
        if name is None and agent and not yes:
            served = str(typer.prompt("Its name here", served))
        listens = port
        if listens is None:
            listens = (
                DEFAULT_PORT if yes else typer.prompt("Port to listen on", DEFAULT_PORT, type=int)
            )
    except typer.Abort:
        raise typer.BadParameter(
            "there is no input; --yes skips the questions", param_hint="--yes"
        ) from None
    write_config(file, agent or None, served, listens)
    print(f"{file} is written. Next:")
    if not agent:
        print(f"  passerelle serve --config {file} --demo-agents   # with sample agents to call")
        return
    print(f"  passerelle check {file}")
    print(f"  passerelle serve --config {file}")


@serve_verbs.command(epilog="Example: passerelle serve --config passerelle.yaml --port 8080")
def serve(
    config: ConfigFlag = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 0 for any [8080].")] = None,
    grpc_port: Annotated[
        int | None, typer.Option(help="Port for A2A over gRPC, 0 for any; absent: no gRPC.")
    ] = None,
    channel_port: Annotated[
        int | None,
        typer.Option(help="Additional port for channels, 0 for any; absent: none."),
    ] = None,
    redis_url: RedisUrlFlag = None,
    data_dir: DataDirFlag = None,
    auth: Annotated[
        Literal["keys", "open"] | None,
        typer.Option(help="keys, or open: every caller is the owner, loopback only [keys]."),
    ] = None,
    *,
    demo_agents: Annotated[
        bool,
        typer.Option("--demo-agents", help="Also run sample agents: echo, report, payments."),
    ] = False,
) -> None:
    """Run the gateway until SIGTERM or Ctrl-C."""
    from passerelle.runtime.common.collector import collect_nothing

    sources = name_sources(
        config,
        host=host,
        port=port,
        redis_url=redis_url,
        data_dir=data_dir,
        auth=auth,
        **{"grpc.port": grpc_port, "channels.port": channel_port},
    )
    with collect_nothing():
        from passerelle.gateway.server import run

        # report configuration errors before an agent starts
        if demo_agents:
            served = _serve_with_demo_agents(sources, _check_with_demo_agents(sources))
        else:
            served = _compose_service(sources, load(sources))
    run(served)


def _check_with_demo_agents(sources: Sources) -> list[str]:
    """Returns the names of the sample agents to start: those that the configuration does not define itself.

    Raises:
        ConfigInvalid: the settings, with the sample agents added, are invalid.
    """
    from passerelle.demo.stage import PEERS

    not_started = {name: f"http://{name}.invalid" for name in PEERS}
    settings = load(_add_agents(sources, not_started))
    return [agent.name for agent in settings.agents if agent.url in not_started.values()]


async def _serve_with_demo_agents(sources: Sources, names: list[str]) -> None:
    from tempfile import TemporaryDirectory

    from passerelle.demo.processes import run_peers
    from passerelle.gateway.settings.source import load_settings

    with TemporaryDirectory(prefix="passerelle-agents-") as folder:
        async with run_peers(names, Path(folder)) as peers:
            with_agents = _add_agents(sources, {name: peer.url for name, peer in peers.items()})
            await _compose_service(with_agents, load_settings(with_agents)[0])


def _add_agents(sources: Sources, urls: dict[str, str]) -> Sources:
    from dataclasses import replace

    return replace(sources, agents=tuple({"name": name, "url": url} for name, url in urls.items()))


def _compose_service(sources: Sources, settings: Settings) -> Coroutine[None, None, None]:
    from passerelle.cli.verbs.announcement import Announcement
    from passerelle.cli.verbs.owner_token import show_owner
    from passerelle.runtime.observability.logs import configure_logs

    configure_logs(settings.log_level, settings.log_format)
    # imported after the settings are validated, since it is the slowest import of any command
    from passerelle.gateway.app import run_gateway

    def print_new_owner(token: OwnerToken) -> None:
        if token.minted:
            show_owner(token.secret, token.path)

    announcement = Announcement(settings, sources)
    return run_gateway(
        settings, on_ready=announcement.show, on_owner=print_new_owner, sources=sources
    )

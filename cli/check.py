"""``passerelle check``: validates a configuration, connects to every agent, and reports each fault."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from passerelle.core.errors import (
    ConfigInvalid,
    IssuerUnavailable,
    PasserelleError,
    PeerUnavailable,
)
from passerelle.core.frozen import frozen
from passerelle.core.ports.chance import Clock
from passerelle.core.principal import EVERY_AGENT
from passerelle.core.wire.display import format_count
from passerelle.gateway.auth.jwks import HttpKeySource, read_keys
from passerelle.gateway.channel_port import require_extra
from passerelle.gateway.server_tls import load_server_tls
from passerelle.gateway.settings.agents import AgentSettings
from passerelle.gateway.settings.callers import IssuerSettings
from passerelle.gateway.settings.layers import Sources
from passerelle.gateway.settings.model import Settings
from passerelle.gateway.settings.source import read_settings
from passerelle.gateway.settings.values import load_sealer, load_signer, make_peer_configs
from passerelle.gateway.store_setup import LOSSES
from passerelle.peers.agent import AgentPeer
from passerelle.peers.interface import Security, lacks_scheme
from passerelle.peers.registry import PeerRegistry
from passerelle.peers.sessions import PeerSessions
from passerelle.runtime.common.address_screen import AddressScreen
from passerelle.runtime.common.clock import SystemIds
from passerelle.store.blobs import open_blobs
from passerelle.store.store import Store

STORE_S = 10.0
CARD_S = 10.0
"""Timeout for one agent card, whatever the configuration sets."""
_SECURITY_NAMES: Final[Mapping[Security, str]] = {"plaintext": "plain text", "tls": "TLS"}
NO_AGENTS = (
    "no agent is configured; add one:\n"
    "  agents:\n"
    "    - name: echo\n"
    "      url: http://127.0.0.1:9001"
)


@frozen
class CheckReport:
    """``faults`` make the check fail; ``lines`` are the results in order."""

    lines: tuple[str, ...]
    faults: tuple[str, ...]

    @property
    def summary(self) -> str:
        """Returns the last line."""
        return f"check: {format_count(len(self.faults), 'error') if self.faults else 'ok'}"


async def run_check(sources: Sources, clock: Clock) -> CheckReport:
    """Reads the configuration as ``serve`` would; connects to store, identity providers and every agent.

    Writes only a probe into ``blobs``, and removes it. Sends no message to an agent. If the configuration has faults,
    it connects to nothing.

    Raises:
        ConfigInvalid: the file is not valid YAML.
    """
    reading = read_settings(sources)
    named = str(reading.config) if reading.config else "no file, defaults and environment only"
    lines = [f"configuration: {named}", *(f"notice: {notice}" for notice in reading.notices)]
    if reading.settings is None or reading.faults:
        return CheckReport(tuple(lines), tuple(str(fault) for fault in reading.faults))
    try:
        load_signer(reading.settings)
        load_server_tls(reading.settings)
        require_extra(reading.settings)
    except ConfigInvalid as error:
        return CheckReport(tuple(lines), (error.message,))
    settings = reading.settings
    found = [
        *_check_data_dir(settings.data_dir),
        *_try_secret_key(settings),
        *await _reach_store(settings),
        *await _try_blobs(settings),
        *await _reach_issuers(settings),
        *await _reach_agents(settings, sources, clock),
    ]
    lines += [line for line, reached in found if reached]
    if not settings.agents:
        lines.append(f"notice: {NO_AGENTS}")
    return CheckReport(tuple(lines), tuple(line for line, reached in found if not reached))


_NO_KEY: Final = (
    "notice: no secret_key: push notifications with secrets are disabled, and each data directory has its own owner "
    "token"
)


_NO_BLOBS: Final = (
    "notice: no blobs: other gateways on this server cannot read long content and the inputs of jobs, and sessions "
    "stay in memory"
)


def _check_data_dir(folder: Path) -> list[tuple[str, bool]]:
    """Returns no line if the folder exists or can be created, as far as can be tested without creating it.

    The user who runs the check need not be the user of the gateway, so a folder without write access is a notice.
    """
    there = next(one for one in (folder, *folder.absolute().parents) if os.path.lexists(one))
    if not there.is_dir():
        return [(f"data_dir: {there} is no directory", False)]
    if not os.access(there, os.W_OK | os.X_OK):
        return [(f"notice: data_dir: this user cannot write to {there}", True)]
    return []


def _try_secret_key(settings: Settings) -> list[tuple[str, bool]]:
    if settings.secret_key is None and settings.secret_key_file is None:
        if settings.redis_url is None:
            return []
        return [(_NO_KEY, True)]
    try:
        load_sealer(settings, settings.data_dir, SystemIds().draw)
    except ConfigInvalid as error:
        return [(error.message, False)]
    return [("secret_key: can be used", True)]


async def _reach_store(settings: Settings) -> list[tuple[str, bool]]:
    """Checks a server only: the embedded engine must not start while a gateway may be using its data."""
    if settings.redis_url is None:
        return []
    try:
        async with asyncio.timeout(STORE_S):
            url, durability = settings.redis_url.get_secret_value(), settings.store.durability
            primaries = await Store.examine(url, durability)
    except ConfigInvalid as error:
        return [(error.message, False)]
    except (PasserelleError, TimeoutError, OSError) as error:
        reason = str(error) if isinstance(error, PasserelleError) else "no response"
        return [(f"redis_url: {reason}", False)]
    return [
        (f"redis_url: reached, {format_count(primaries, 'primary', 'primaries')}", True),
        (f"store.durability: {durability} can lose: {LOSSES[durability]}", True),
    ]


async def _try_blobs(settings: Settings) -> list[tuple[str, bool]]:
    """Checks only a configured location: the first start creates the default folder in the data directory."""
    if settings.blobs is None:
        return [] if settings.redis_url is None else [(_NO_BLOBS, True)]
    try:
        await open_blobs(settings.blobs).probe()
    except ConfigInvalid as error:
        return [(error.message, False)]
    return [(f"blobs: {settings.blobs} can be written and read", True)]


async def _reach_issuers(settings: Settings) -> list[tuple[str, bool]]:
    trusted, screened = PeerSessions(), PeerSessions(screen=AddressScreen())
    try:
        return list(
            await asyncio.gather(
                *(_reach_issuer(issuer, trusted, screened) for issuer in settings.issuers)
            )
        )
    finally:
        await trusted.close()
        await screened.close()


async def _reach_issuer(
    issuer: IssuerSettings, trusted: PeerSessions, screened: PeerSessions
) -> tuple[str, bool]:
    try:
        keys = read_keys(await HttpKeySource(issuer, trusted, screened).fetch())
    except IssuerUnavailable as error:
        return f"issuers.{issuer.name}: {error.message}", False
    return f"issuers.{issuer.name}: reached, {format_count(len(keys), 'key')}", bool(keys)


async def _reach_agents(
    settings: Settings, sources: Sources, clock: Clock
) -> list[tuple[str, bool]]:
    try:
        reached = await reach_agents(settings, sources, clock)
    except ConfigInvalid as error:
        return [(error.message, False)]
    return [*reached.values(), *_check_reverse_agents(settings)]


async def reach_agents(
    settings: Settings, sources: Sources, clock: Clock, within_s: float = CARD_S
) -> dict[str, tuple[str, bool]]:
    """Loads the card of each agent that is called, over new connections. Returns a line and the success by agent.

    Raises:
        ConfigInvalid: the section of an agent is invalid.
    """
    registry = PeerRegistry((), clock)
    called = [agent for agent in settings.agents if not agent.dials_in]
    try:
        registry.replace(make_peer_configs(called, sources.environ))
        reached = await asyncio.gather(*(_reach(registry, agent, within_s) for agent in called))
        return {agent.name: found for agent, found in zip(called, reached, strict=True)}
    finally:
        await registry.close()


def _check_reverse_agents(settings: Settings) -> Iterator[tuple[str, bool]]:
    """Reports which credentials can connect as each reverse agent; a notice if only the owner can."""
    for agent in settings.agents:
        if not agent.dials_in:
            continue
        callers = {one.name: one.serves for one in settings.clients}
        callers |= {one.name: one.serves for one in settings.issuers}
        servers = [
            name for name, serves in callers.items() if {agent.name, EVERY_AGENT} & {*serves}
        ]
        if servers:
            yield f"agents.{agent.name}: dials in, as {', '.join(servers)}", True
        elif settings.auth == "open":
            yield f"agents.{agent.name}: dials in with any credential", True
        else:
            reason = "only the owner may serve it: no client lists it in `serves`"
            yield f"notice: agents.{agent.name}: dials in; {reason}", True


async def _reach(registry: PeerRegistry, agent: AgentSettings, within_s: float) -> tuple[str, bool]:
    try:
        card = await asyncio.wait_for(registry.find(agent.name).describe(), within_s)
    except TimeoutError:
        return f"agents.{agent.name}: {agent.url} returned no card within {within_s:g} s", False
    except PeerUnavailable as error:
        url, reason = error.details.get("url", agent.url), error.details.get("reason")
        return f"agents.{agent.name}: its card at {url} cannot be read: {reason}", False
    except PasserelleError as error:
        return f"agents.{agent.name}: {error.message}", False
    if (fault := await _dial(registry.find(agent.name))) is not None:
        return f"agents.{agent.name}: {fault}", False
    streams = "streams" if card.streaming else "does not stream"
    return f"agents.{agent.name}: reached, {card.protocol} at {card.endpoint}, {streams}", True


async def _dial(peer: AgentPeer) -> str | None:
    """Connects to an agent's gRPC endpoint, whose card states neither plaintext nor TLS; returns what is wrong."""
    interface = await peer.choose()
    if interface.binding != "GRPC":
        return None
    from passerelle.peers.grpc.channels import find_security  # noqa: PLC0415  an extra

    config = peer.config
    wanted: Security = "plaintext" if interface.origin.startswith("http:") else "tls"
    found = await find_security(interface.origin, config.tls, config.connect_timeout_s)
    if found == wanted:
        return None
    if found is None:
        return f"no gRPC connection to {interface.url}, neither in plain text nor over TLS"
    address = interface.origin.partition("://")[2]
    message = f"gRPC at {interface.url} is {_SECURITY_NAMES[found]}, and {_SECURITY_NAMES[wanted]} is expected"
    if not lacks_scheme(interface):
        return f"{message}: its card says so"
    if interface.origin in config.origins:
        scheme = "http" if found == "plaintext" else "https"
        return f"{message}: put {scheme}://{address} into allowed_origins instead"
    return f"{message}: set `grpc: {found}`"

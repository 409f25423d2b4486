"""The start message of ``passerelle serve``: addresses, unavailable agents, and a command to try."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

import structlog

from passerelle.cli.check import NO_AGENTS, reach_agents
from passerelle.cli.contexts import find_context
from passerelle.core.errors import ConfigInvalid
from passerelle.core.frozen import frozen
from passerelle.gateway.settings.variables import URL_VARIABLE
from passerelle.runtime.common.clock import SystemClock
from passerelle.runtime.common.version import VERSION

if TYPE_CHECKING:
    from passerelle.gateway.app import Addresses
    from passerelle.gateway.settings.layers import Sources
    from passerelle.gateway.settings.model import Settings

CARD_WITHIN_S: Final = 5.0
"""Timeout for an agent card at the start; the gateway serves meanwhile."""


@frozen
class Announcement:
    """Prints the start message. ``settings`` were read from ``sources``."""

    settings: Settings
    sources: Sources

    async def show(self, addresses: Addresses) -> None:
        """Prints all addresses, then the agents whose cards could not be loaded."""
        _print(f"passerelle {VERSION} at {addresses.url}")
        if self.settings.public_url is not None:
            _print(f"  from outside: {self.settings.public_url}")
        if addresses.grpc is not None:
            _print(f"  gRPC at {addresses.grpc}")
        if addresses.channels is not None:
            _print(f"  channels at {addresses.channels}")
        _print(f"  metrics: {addresses.url}/metrics")
        _print(f"  OpenAPI: {addresses.url}/v1/openapi.json")
        for agent in self.settings.agents:
            _print(f"  agent {agent.name}: {addresses.url}/agents/{agent.name}")
        if not self.settings.agents:
            _print(f"{NO_AGENTS}\nor start with sample agents: passerelle serve --demo-agents")
            return
        await self._check_agents(addresses)

    async def _check_agents(self, addresses: Addresses) -> None:
        try:
            found = await reach_agents(self.settings, self.sources, SystemClock(), CARD_WITHIN_S)
        except ConfigInvalid as error:
            _print(f"  {error}")
            return
        for name, (line, reached) in found.items():
            if not reached:
                reason = line.removeprefix(f"agents.{name}: ")
                _print(f"  unavailable: agent {name}: {reason}")
                structlog.get_logger("passerelle").warning("agent.away", agent=name, why=reason)
        there = [name for name, (_, reached) in found.items() if reached]
        if there:
            _print(f"try: {compose_call(self.settings, self.sources, there[0], addresses.url)}")


def compose_call(settings: Settings, sources: Sources, agent: str, url: str) -> str:
    """Returns the command that calls an agent from the same folder and environment, with the flags that it needs."""
    words = ["passerelle", "call", agent, "hello"]
    flags = sources.flags or {}
    if sources.config is not None:
        words += ["--config", str(sources.config)]
    if _targets_other_gateway(sources) or any(
        flags.get(name) is not None for name in ("host", "port")
    ):
        words += ["--url", url]
    if flags.get("data_dir") is not None:
        words += ["--data-dir", str(settings.data_dir)]
    return shlex.join(words)


def _targets_other_gateway(sources: Sources) -> bool:
    """Returns whether a command without flags would call another gateway."""
    try:
        context = find_context(sources.environ)
    except ConfigInvalid:
        return True
    return bool(sources.environ.get(URL_VARIABLE)) or context is not None


def _print(line: str) -> None:
    print(line, flush=True)

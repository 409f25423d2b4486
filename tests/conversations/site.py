"""Every agent, the proxy in front of them, and one gateway: the processes of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc.aio
import httpx
import yaml

from passerelle.demo.processes import GatewayProcess
from tests.conversations.axes import INTERFACES, JAVASCRIPT, PLAIN, SDK_0_3, SDK_1, Case
from tests.conversations.caller import Conversant
from tests.conversations.plain_agent import run_plain_agent
from tests.conversations.sdk_agent import SdkAgents, run_sdk_agents
from tests.conversations.tap import Log, Tap, make_card, run_tap
from tests.interop.scripted_clients import run_agent
from tests.support.ports import find_free_port

_FOREIGN: Final = {"javascript_talker": JAVASCRIPT, "python_0_3_talker": SDK_0_3}
_TRACE: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_BACK_S: Final = 30.0
"""A gRPC library waits a while before it reconnects."""
_TIMEOUT: Final = httpx.Timeout(60)


def name_agent(agent: str, interface: tuple[str, str], *, streams: bool) -> str:
    """The name of an agent behind the gateway."""
    binding = interface[0].lower().replace("+", "-")
    version = interface[1].replace(".", "-")
    return f"{agent.replace('_', '-')}-{binding}-{version}-{'s' if streams else 'n'}"


@dataclass(slots=True)
class Site:
    """All processes. ``http`` is the callers' client."""

    log: Log
    tap: Tap
    sdk: SdkAgents
    http: httpx.AsyncClient
    gateway: GatewayProcess
    config: Path
    grpc_port: int
    channels: dict[str, grpc.aio.Channel] = field(default_factory=dict[str, grpc.aio.Channel])

    def call_directly(self, case: Case) -> Conversant:
        """A caller of the agent itself."""
        binding, version = case.interface
        streams = case.streams == "streams"
        name = name_agent(case.agent, case.interface, streams=streams)
        channel = None
        if binding == "GRPC":
            channel = self._dial(f"127.0.0.1:{self.sdk.ports[streams]}")
        headers = {"traceparent": _TRACE, "X-Case": "one"}
        url = f"{self.tap.url}/{name}"
        return Conversant(self.http, url, binding, version, headers, "", streams, channel)

    def call_through(self, case: Case) -> Conversant:
        """A caller of the same agent behind the gateway."""
        name = name_agent(case.agent, case.interface, streams=case.streams == "streams")
        channel = self._dial(f"127.0.0.1:{self.grpc_port}") if case.binding == "GRPC" else None
        headers = {"traceparent": _TRACE, "X-Case": "one", **self.gateway.authorization}
        url = f"{self.gateway.url}/agents/{name}"
        return Conversant(self.http, url, case.binding, case.version, headers, name, True, channel)

    def _dial(self, address: str) -> grpc.aio.Channel:
        if address not in self.channels:
            self.channels[address] = grpc.aio.insecure_channel(address)
        return self.channels[address]

    async def restart(self) -> None:
        """Kills the gateway and restarts it, on the same port and data."""
        self.gateway.kill()
        await self.gateway.start()
        async with asyncio.timeout(_BACK_S):
            await asyncio.gather(*(one.channel_ready() for one in self.channels.values()))


@asynccontextmanager
async def run_site(folder: Path, cases: Sequence[Case]) -> AsyncGenerator[Site]:
    """Starts the agents that ``cases`` need, and the gateway in front of them."""
    log = Log()
    needed = {(case.agent, case.interface, case.streams == "streams") for case in cases}
    async with AsyncExitStack() as stack:
        tap = await stack.enter_async_context(run_tap(log))
        sdk = await stack.enter_async_context(run_sdk_agents(log))
        bases = {PLAIN: await stack.enter_async_context(run_plain_agent())}
        for library, agent in _FOREIGN.items():
            if any(one[0] == agent for one in needed):
                bases[agent] = await stack.enter_async_context(run_agent(library, "", quiet=True))
        agents: list[dict[str, object]] = []
        for agent, interface, streams in sorted(needed):
            assert interface in INTERFACES[agent]
            name = name_agent(agent, interface, streams=streams)
            base = (
                sdk.urls[streams] if agent == SDK_1 else f"{bases[agent]}/{'s' if streams else 'n'}"
            )
            path = {"JSONRPC": "/rpc", "HTTP+JSON": "/rest"}.get(interface[0], "")
            if agent == SDK_1 and interface[0] == "JSONRPC":
                path = "/rpc/"
            tap.add(name, base + path, interface, streams=streams)
            settings: dict[str, object] = {"name": name, "url": f"{tap.url}/{name}"}
            if interface[0] == "GRPC":
                address = f"127.0.0.1:{sdk.ports[streams]}"
                tap.cards[name] = make_card(name, address, interface, streams=streams)
                settings["allowed_origins"] = [f"http://{address}"]
            agents.append(settings)
        config = folder / "passerelle.yaml"
        grpc_port = find_free_port()
        dialled: dict[str, object] = {"port": grpc_port}
        if any(case.is_older_grpc for case in cases):
            dialled["default_agent"] = name_agent(SDK_1, ("GRPC", "0.3"), streams=True)
        settled = {"agents": agents, "grpc": dialled}
        config.write_text(yaml.safe_dump(settled), encoding="utf-8")
        gateway = GatewayProcess(folder, config, environ={"PASSERELLE_LOG_FORMAT": "json"})
        await gateway.start()
        stack.push_async_callback(gateway.stop)
        http = await stack.enter_async_context(
            httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False, limits=httpx.Limits())
        )
        site = Site(log, tap, sdk, http, gateway, config, grpc_port)
        try:
            yield site
        finally:
            await asyncio.gather(*(one.close() for one in site.channels.values()))

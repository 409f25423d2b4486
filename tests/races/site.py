"""Two gateways over one store as processes, the agent, and the racers' devices."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
import yaml

from passerelle.client.channel import ChannelClient
from passerelle.client.items import LinkStatus, Offline
from passerelle.demo.processes import GatewayProcess
from passerelle.store.engine_binary import find_engine
from tests.races.agent import NAME, Cashier
from tests.races.plan import GATEWAYS, RACERS
from tests.support.engine import redis_on_path, run_server
from tests.support.ports import find_free_port

PERSON: Final = "ada"
HOST: Final = "desk"
_TIMEOUT: Final = aiohttp.ClientTimeout(total=60)
_SECRET: Final = "psr_races_"
_SCOPES: Final = (
    "a2a:call",
    "tasks:read",
    "tasks:write",
    "channels:connect",
    "approvals:read",
    "approvals:decide",
)


@dataclass(slots=True)
class Site:
    """All processes. ``channels`` are open for each owner and device number, at the gateway of its racer."""

    store_url: str
    cashier: Cashier
    http: aiohttp.ClientSession
    gateways: list[GatewayProcess] = field(default_factory=list[GatewayProcess])
    channels: dict[tuple[str, int, int], ChannelClient] = field(
        default_factory=dict[tuple[str, int, int], ChannelClient]
    )
    cuts: Counter[tuple[str, int, int]] = field(default_factory=Counter[tuple[str, int, int]])
    """Number of disconnects of each channel."""

    def url(self, gateway: int) -> str:
        """The URL of a gateway."""
        return self.gateways[gateway].url


def headers_of(owner: str, device: int | None = None) -> dict[str, str]:
    """The HTTP headers that identify a person and a device."""
    shown = {"Authorization": f"Bearer {_SECRET}{owner}"}
    return shown if device is None else {**shown, "Passerelle-Device": name_device(device)}


def name_device(device: int) -> str:
    """The name of a racer's device."""
    return f"dev_{device:02}"


@asynccontextmanager
async def run_site(folder: Path) -> AsyncGenerator[Site]:
    """Starts everything, and stops it at the end."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(run_server(redis_on_path() or find_engine(None)))
        cashier = Cashier()
        await stack.enter_async_context(cashier.peer)
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT)
        )
        site = Site(server.url, cashier, http)
        for number in range(GATEWAYS):
            home = folder / f"gateway-{number}"
            home.mkdir()
            (home / "passerelle.yaml").write_text(_write_config(site, folder), encoding="utf-8")
            site.gateways.append(
                GatewayProcess(home, home / "passerelle.yaml", port=find_free_port())
            )
            stack.push_async_callback(site.gateways[-1].stop)
        await asyncio.gather(*(gateway.start() for gateway in site.gateways))
        for owner in (PERSON, HOST):
            for device in range(1, RACERS, 2):
                for gateway in range(GATEWAYS):
                    channel = _open_channel(site, owner, device, gateway)
                    site.channels[owner, device, gateway] = channel
                    await stack.enter_async_context(channel)
        yield site


def _open_channel(site: Site, owner: str, device: int, gateway: int) -> ChannelClient:
    url = site.url(gateway).replace("http", "ws", 1) + "/v1/channel"

    def note(status: LinkStatus) -> None:
        if isinstance(status, Offline):
            site.cuts[owner, device, gateway] += 1

    return ChannelClient(
        url,
        token=f"{_SECRET}{owner}",
        device=f"{name_device(device)}",
        tab=str(gateway),
        on_status=note,
    )


def _write_config(site: Site, folder: Path) -> str:
    clients = [
        {
            "name": name,
            "key_hash": hashlib.sha256(f"{_SECRET}{name}".encode()).hexdigest(),
            "may_call": ["*"],
            "kind": kind,
            "scopes": list(_SCOPES),
        }
        for name, kind in ((PERSON, "person"), (HOST, "service"))
    ]
    return yaml.safe_dump(
        {
            "redis_url": site.store_url,
            "secret_key": "A" * 43 + "=",
            "blobs": str(folder / "blobs"),
            "agents": [{"name": NAME, "url": site.cashier.peer.url}],
            "clients": clients,
            "log_format": "json",
        }
    )

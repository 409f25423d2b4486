"""Shared fixtures of end-to-end tests: one gateway per module, in front of one scripted peer."""

from collections.abc import AsyncGenerator, Iterator
from typing import Final

import pytest

from passerelle.demo.processes import GatewayProcess
from tests.support.fork_server import ForkServer, share_fork_server
from tests.support.loops import SHARED, Backend
from tests.support.processes import AGENT, Caller, open_caller, run_gateway
from tests.support.scripted_peer import ScriptedPeer

UNREACHABLE: Final = "unreachable"


@pytest.fixture(scope="session", autouse=True)
def fork_server() -> Iterator[ForkServer]:
    """The gateways of the run are forked from one process with all imports: two seconds of CPU less for each."""
    with share_fork_server() as shared:
        yield shared


@pytest.fixture(scope="module")
def anyio_backend() -> Backend:
    """One loop per module, since its gateway outlives its tests."""
    return SHARED


@pytest.fixture(scope="module")
async def idle_peer(anyio_backend: Backend) -> ScriptedPeer:
    """The peer of the module: it has its port, but does not listen."""
    peer = ScriptedPeer(AGENT)
    await peer.start()
    await peer.stop()
    return peer


@pytest.fixture(scope="module")
async def gateway(
    idle_peer: ScriptedPeer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[GatewayProcess]:
    """A ready gateway, with one reachable agent and one unreachable."""
    agents = {AGENT: idle_peer.url, UNREACHABLE: "http://127.0.0.1:1"}
    async with run_gateway(tmp_path_factory.mktemp("gateway"), agents) as process:
        yield process


@pytest.fixture
async def peer(idle_peer: ScriptedPeer) -> AsyncGenerator[ScriptedPeer]:
    """The peer, listening for the duration of one test, with empty state."""
    idle_peer.requests.clear()
    async with idle_peer:
        yield idle_peer
        idle_peer.release_all()


@pytest.fixture
async def caller(gateway: GatewayProcess, peer: ScriptedPeer) -> AsyncGenerator[Caller]:
    """The owner, calling the peer through the gateway."""
    async with open_caller(gateway) as opened:
        yield opened

"""The face over a service that fails: what the caller gets, and what is counted."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import httpx
import pytest

from passerelle.a2a_mapping.resume import ResumeRequest
from passerelle.channels.stream_ends import StreamEnd
from passerelle.channels.stream_frame import FollowedStream, Frames, StreamFrame
from passerelle.core.commands import SubmitTurn, TurnAccepted
from passerelle.core.errors import StoreUnavailable
from passerelle.core.peer import Peer
from passerelle.core.principal import Principal
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs.active_runs import ResultCallback
from passerelle.gateway.a2a.face import FaceParts, make_face
from passerelle.gateway.a2a.operations import Turn
from passerelle.gateway.auth.authenticator import OpenAuthenticator
from passerelle.runtime.common.clock import SystemClock, SystemIds
from passerelle.runtime.observability.metrics import Metrics
from tests.support.scripted_service import ScriptedService

pytestmark = pytest.mark.anyio
SUBSCRIBE: Final = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": "t"}}
GET: Final = {**SUBSCRIBE, "method": "GetTask"}


class Agents:
    """One agent whose card is never requested."""

    names = ("echo",)

    def find(self, name: str) -> Peer:
        raise KeyError(name)

    def card_url(self, name: str) -> str:
        raise KeyError(name)


class Failing(ScriptedService):
    """Gives one frame to followers, then fails while it is closed."""

    async def answer(
        self, principal: Principal, accepted: TurnAccepted, *, at_once: bool = False
    ) -> JsonObject:
        return self.view

    def begin(self, principal: Principal, command: SubmitTurn, told: ResultCallback[Turn]) -> None:
        raise AssertionError("nobody offers anything here")

    @asynccontextmanager
    async def follow(
        self,
        principal: Principal,
        target: TurnAccepted | str,
        *,
        agent: str | None = None,
        wish: ResumeRequest | None = None,
        until: StreamEnd | None = None,
        sends: bool = False,
    ) -> AsyncGenerator[FollowedStream]:
        yield FollowedStream(self._give())
        raise self.error or KeyError("inside")

    async def _give(self) -> Frames:
        yield [StreamFrame(b"{}", "c.1")]


@dataclass
class Site:
    """A face and its caller."""

    service: Failing
    metrics: Metrics
    http: httpx.AsyncClient


@pytest.fixture
async def site(anyio_backend: str) -> AsyncGenerator[Site]:
    service, metrics = Failing(), Metrics()
    face = make_face(
        FaceParts(service, OpenAuthenticator(), Agents(), metrics, SystemClock(), SystemIds())
    )
    transport = httpx.ASGITransport(face)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://here", headers={"A2A-Version": "1.0"}
    ) as http:
        yield Site(service, metrics, http)


async def test_exception_of_the_gateway_is_an_internal_error_without_details(site: Site) -> None:
    site.service.error = ZeroDivisionError("inside")
    rpc = await site.http.post("/agents/echo", json=GET)
    assert (rpc.status_code, rpc.json()["error"]["code"]) == (200, -32603)
    rest = await site.http.get("/agents/echo/tasks/t")
    assert (rest.status_code, rest.json()["error"]["status"]) == (500, "INTERNAL")
    card = await site.http.get("/agents/echo/.well-known/agent-card.json")
    assert card.status_code == 500
    assert "inside" not in rpc.text + rest.text + card.text
    assert 'passerelle_runtime_errors_total{where="a2a"} 3.0' in site.metrics.render().decode()


async def test_store_that_is_away_is_503_with_a_time_to_come_back(site: Site) -> None:
    site.service.error = StoreUnavailable("no answer", "no", retry_after_s=3)
    for response in (
        await site.http.post("/agents/echo", json=GET),
        await site.http.get("/agents/echo/tasks/t"),
    ):
        assert (response.status_code, response.headers["retry-after"]) == (503, "3")


@pytest.mark.parametrize("error", [KeyError("inside"), StoreUnavailable("away", "no")])
async def test_failure_after_a_complete_stream_does_not_change_it(
    site: Site, error: Exception
) -> None:
    site.service.error = error
    response = await site.http.post("/agents/echo", json=SUBSCRIBE)
    assert response.status_code == 200
    assert response.text.endswith('data: {"jsonrpc":"2.0","id":1,"result":{}}\n\n')

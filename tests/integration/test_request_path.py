"""Compatibility with uvicorn versions: parts that do not work are disabled, and requests are still served."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest
import structlog
import uvicorn
from uvicorn.protocols.http import flow_control, httptools_impl
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from passerelle.gateway.known_heads import KnownHeads
from passerelle.gateway.request_bounds import BoundedRequests
from passerelle.gateway.request_path import settle_protocol
from tests.support.serving import serving

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from starlette.types import Receive, Scope, Send

    LogLines = list[MutableMapping[str, Any]]

pytestmark = pytest.mark.anyio


class _Cycle(RequestResponseCycle):
    further: str


async def echo(_scope: Scope, receive: Receive, send: Send) -> None:
    body = cast("bytes", (await receive())["body"])
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def add_request_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a minor release does: the constructor sets an attribute that methods use."""
    make, receive = RequestResponseCycle.__init__, RequestResponseCycle.receive

    def init(cycle: _Cycle, *arguments: object, **named: object) -> None:
        cast("Callable[..., None]", make)(cycle, *arguments, **named)
        cycle.further = ""

    async def take(cycle: _Cycle) -> object:
        assert cycle.further == ""
        return await receive(cycle)

    monkeypatch.setattr(RequestResponseCycle, "__init__", init)
    monkeypatch.setattr(RequestResponseCycle, "receive", take)


def move_flow_control(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another class is used, and the original one takes other arguments."""

    class Flow(FlowControl):
        def __init__(self, transport: asyncio.Transport) -> None:
            former(self, transport)

    former = FlowControl.__init__

    def refuse(_flow: FlowControl, _transport: object, *, marks: object) -> None:
        raise AssertionError(marks)

    monkeypatch.setattr(FlowControl, "__init__", refuse)
    monkeypatch.setattr(httptools_impl, "FlowControl", Flow)


def rename_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of the gateway that use it cannot be imported."""
    monkeypatch.delattr(flow_control, "HIGH_WATER_LIMIT")
    for name in ("known_heads", "request_bounds"):
        monkeypatch.delitem(sys.modules, f"passerelle.gateway.{name}")


async def settle(config: uvicorn.Config) -> LogLines:
    with structlog.testing.capture_logs() as logged:
        await settle_protocol(config, {"mark": 7}, 1_000)
    return [one for one in logged if one["event"] == "server.plain"]


async def test_installed_version_supports_all_parts() -> None:
    config = uvicorn.Config(echo)
    assert await settle(config) == []
    assert issubclass(cast("type", config.http), KnownHeads)
    assert cast("Any", config.http).mark == 7


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (add_request_attribute, "known heads"),
        (move_flow_control, "known heads, limits of requests"),
        (rename_constant, "known heads, limits of requests"),
    ],
)
async def test_unsupported_parts_are_disabled_and_requests_are_served(
    change: Callable[[pytest.MonkeyPatch], None], lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    with structlog.testing.capture_logs() as logged:
        async with serving(echo) as listener, httpx.AsyncClient(base_url=listener.url) as http:
            for text in ("one", "two", "six"):
                answer = await http.post("/", content=text)
                assert (answer.status_code, answer.text) == (200, text)
    [warning] = [one for one in logged if one["event"] == "server.plain"]
    assert warning["lost"].startswith(lost)
    assert warning["uvicorn"] == uvicorn.__version__
    assert warning["reason"].startswith("KnownHeads: ")


async def test_request_limits_stay_if_only_the_head_cache_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_request_attribute(monkeypatch)
    config = uvicorn.Config(echo)
    assert len(await settle(config)) == 1
    assert issubclass(cast("type", config.http), BoundedRequests)
    assert not issubclass(cast("type", config.http), KnownHeads)


@pytest.mark.parametrize("hook", ["_refuse", "_start_timer"])
async def test_limit_without_effect_is_detected(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def do_nothing(*_arguments: object) -> None:
        return

    monkeypatch.setattr("passerelle.gateway.request_path.TRIAL_S", 0.3)
    monkeypatch.setattr(BoundedRequests, hook, do_nothing)
    config = uvicorn.Config(echo)
    [warning] = await settle(config)
    assert config.http == "auto"
    assert "TimeoutError" in warning["reason"]


async def test_socket_that_does_not_open_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def close_transport(connection: HttpToolsProtocol) -> None:
        connection.transport.close()

    monkeypatch.setattr(BoundedRequests, "handle_websocket_upgrade", close_transport)
    config = uvicorn.Config(echo)
    assert len(await settle(config)) == 1
    assert (config.http, config.ws) == ("auto", "auto")

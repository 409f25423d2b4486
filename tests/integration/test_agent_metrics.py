"""Metrics read on each scrape: card status and circuit breaker per agent."""

from __future__ import annotations

import pytest

from passerelle.core.peer import Unknown, Unreached
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.gauges import watch_agents
from passerelle.peers.config import PeerConfig
from passerelle.peers.registry import PeerRegistry
from passerelle.runtime.common.breaker import FAILURES
from passerelle.runtime.common.clock import SystemClock
from passerelle.runtime.observability.metrics import Metrics
from tests.support.scripted_peer import ScriptedPeer

pytestmark = pytest.mark.anyio


def read(metrics: Metrics, name: str) -> dict[str, float]:
    metrics.render()
    return {
        sample.labels["agent"]: sample.value
        for metric in metrics.registry.collect()
        if metric.name == name
        for sample in metric.samples
    }


async def test_card_status_is_shown_per_configured_agent() -> None:
    metrics = Metrics()
    async with ScriptedPeer("echo") as peer:
        here, gone = PeerConfig("here", peer.url), PeerConfig("gone", "http://127.0.0.1:9")
        peers = PeerRegistry([here, gone], SystemClock())
        metrics.look(watch_agents(peers))
        try:
            assert read(metrics, "passerelle_agent_card") == {"here": 0, "gone": 0}
            await peers.find("here").describe()
            assert read(metrics, "passerelle_agent_card") == {"here": 2, "gone": 0}
            assert read(metrics, "passerelle_agent_breaker") == {}
            peers.replace([gone])
            assert read(metrics, "passerelle_agent_card") == {"gone": 0}
        finally:
            await peers.close()


async def test_open_breaker_is_shown() -> None:
    metrics = Metrics()
    async with ScriptedPeer("echo") as peer:
        peers = PeerRegistry([PeerConfig("echo", peer.url)], SystemClock())
        metrics.look(watch_agents(peers))
        try:
            message: JsonObject = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
            params: JsonObject = {"message": message}
            await peers.find("echo").send(params)
            assert read(metrics, "passerelle_agent_breaker") == {"echo": 0}
            await peer.stop()
            for _ in range(FAILURES):
                assert isinstance(await peers.find("echo").send(params), Unreached | Unknown)
            assert read(metrics, "passerelle_agent_breaker") == {"echo": 2}
        finally:
            await peers.close()

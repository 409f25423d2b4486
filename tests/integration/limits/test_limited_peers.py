"""Limits of an agent, over two instances that share one store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from passerelle.core.peer import Answered, Closed, RefusedByPeer, Unreached
from passerelle.peers.config import PeerConfig
from passerelle.peers.registry import PeerRegistry
from passerelle.runtime.common.clock import SystemClock
from passerelle.runtime.limits.limit import Bounds, Rate
from passerelle.runtime.limits.limiter import Limiter
from passerelle.store.store import Store
from tests.contract.peers.test_peer_suite import read_all, say
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def instance(name: str, store: Store, config: PeerConfig) -> AsyncGenerator[PeerRegistry]:
    async with Limiter(store.limits, name, SystemClock(), round_s=0.02) as limiter:
        registry = PeerRegistry([config], SystemClock(), limiter)
        yield registry
        await registry.close()


async def test_one_slot_is_shared_by_all_instances_and_free_after_the_stream(
    store: Store,
) -> None:
    async with ScriptedPeer("narrow") as agent:
        config = PeerConfig("narrow", agent.url, bounds=Bounds(concurrency=1))
        async with instance("one", store, config) as one, instance("two", store, config) as two:
            agent.hold()
            stream = asyncio.create_task(read_all(one.find("narrow").stream(say("chunks 1"))))
            await wait_until(lambda: agent.messages, 10, "the agent has the message")
            for registry in (one, two):
                held_back = await registry.find("narrow").send(say("hello"))
                assert isinstance(held_back, Unreached)
                assert held_back.why == "limit"
                assert held_back.retry_after_s == 1
                assert isinstance(await registry.find("narrow").get("no-such-task"), RefusedByPeer)
            agent.release_all()
            assert (await stream)[-1] == Closed()
            assert agent.count("SendMessage") == 0

            async def passes() -> bool:
                return isinstance(await two.find("narrow").send(say("hello")), Answered)

            await wait_until(passes, 15, "the slot is free for the other instance")


async def test_rate_of_an_agent_is_shared_and_has_a_retry_time(store: Store) -> None:
    async with ScriptedPeer("slow") as agent:
        config = PeerConfig("slow", agent.url, bounds=Bounds(rate=Rate(3, 60_000)))
        async with instance("one", store, config) as one, instance("two", store, config) as two:
            outcomes = [
                await registry.find("slow").send(say("hello"))
                for registry in (one, two, one, two, one, two)
            ]
            held_back = [outcome for outcome in outcomes if isinstance(outcome, Unreached)]
            assert len(held_back) >= 3
            assert all((outcome.retry_after_s or 0) >= 1 for outcome in held_back)
            assert agent.count("SendMessage") == 6 - len(held_back) <= 3


async def test_reload_changes_the_limit_and_counts_running_calls(store: Store) -> None:
    async with ScriptedPeer("narrow") as agent:
        config = PeerConfig("narrow", agent.url, bounds=Bounds(concurrency=1))
        async with instance("one", store, config) as registry:
            agent.hold()
            stream = asyncio.create_task(read_all(registry.find("narrow").stream(say("chunks 1"))))
            await wait_until(lambda: agent.messages, 10, "the agent has the message")
            registry.replace([PeerConfig("narrow", agent.url, bounds=Bounds(concurrency=2))])
            agent.release_all()

            async def passes() -> bool:
                return isinstance(await registry.find("narrow").send(say("hello")), Answered)

            await wait_until(passes, 15, "the second slot is there")
            assert (await stream)[-1] == Closed()

"""The facts of a link: the real due set, the real home session, real sockets (EXT-8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest
import structlog

from passerelle.channels.limits import ChannelLimits
from passerelle.channels.links import ROW, StoredLinkFacts
from passerelle.core.batch import Incarnation
from passerelle.core.events import decode_event
from passerelle.core.ids import Shard
from passerelle.core.payloads.channel import ChannelConnected
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import Principal
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.duties.duty_loop import Duties, DutySettings, make_duties
from passerelle.delegation.duties.leases import choose_duties
from passerelle.runtime.records.places import Home, name_home
from passerelle.runtime.records.recoveries import Recoveries
from passerelle.store import keys
from passerelle.store.store import Store
from tests.integration.channels.rig import ADA, Rig, serve
from tests.integration.channels.test_connection import HELLO, raw, receive_frame, send_frames
from tests.integration.channels.test_following import lose_tail
from tests.integration.channels.test_http_streams import listen, serve_streams
from tests.integration.duties.story import make_writes
from tests.support.engine import Server, ask
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

HOME = StreamRef(StreamKind.SESSION, name_home(ADA))


@dataclass
class Instance:
    """The parts of one gateway for channels and their facts."""

    rig: Rig
    store: Store
    duties: Duties
    facts: StoredLinkFacts

    async def list_payloads(self) -> list[Any]:
        """Returns the payloads in Ada's home session."""
        entries = await self.store.log.read_page(HOME, 0, 1_000)
        events = [decode_event(entry.data) for entry in entries]
        return [event.fact.payload for event in events if not event.type.startswith("session.")]

    async def await_payloads(self, kind: str, times: int = 1) -> list[Any]:
        """Returns the payloads of a type once they stand for ``times`` occurrences in total."""

        async def look() -> list[Any] | None:
            found = [one for one in await self.list_payloads() if one.type == kind]
            return found if sum(one.times for one in found) >= times else None

        found = await wait_until(look, 10, f"{kind} is stored {times} times")
        return found or []


@asynccontextmanager
async def run_instance(
    store: Store, name: str = "one", *, lease_ms: int = 5_000, idle_s: float = 35.0
) -> AsyncGenerator[Instance]:
    writes = make_writes(store)

    def drives(shard: Shard) -> Incarnation:
        return duties.keeper.drives(shard)

    def wake(shard: Shard, within_s: float) -> None:
        duties.due.wake(shard, within_s)

    recoveries = Recoveries(writes, store.projections)
    facts = StoredLinkFacts(store.links, store.channels, Home(writes), recoveries, drives, wake)

    async def adopt(_task: object) -> None:
        return

    duties = make_duties(
        store,
        writes,
        DutySettings(
            instance=name,
            clock=asyncio.get_running_loop().time,
            on_lost=lambda _shard: None,
            adopt=adopt,
            handlers={ROW: facts.on_due},
            lease_ms=lease_ms,
            lose_link=facts.lose,
        ),
        structlog.get_logger(),
    )
    async with (
        duties,
        serve(store, ChannelLimits(recheck_s=0.2, idle_s=idle_s), link_facts=facts) as rig,
    ):
        yield Instance(rig, store, duties, facts)


async def visit(instance: Instance, hello: JsonObject = HELLO) -> JsonObject:
    """Connects, receives the welcome, and leaves."""
    async with raw(instance.rig) as socket:
        await send_frames(socket, hello)
        return await receive_frame(socket, "welcome")


@pytest.mark.requirement("EXT-8", "CHN-1", "CHN-2")
async def test_a_link_is_recorded_with_all_its_identifiers(store: Store) -> None:
    async with run_instance(store) as instance:
        welcome = await visit(instance, {**HELLO, "caps": ["rpc", "perm"], "tab": "7"})
        (recorded,) = await instance.await_payloads("channel.connected")
        assert isinstance(recorded, ChannelConnected)
        assert (recorded.channel_id, recorded.generation, recorded.transport) == (
            welcome["channel"],
            welcome["gen"],
            "ws",
        )
        assert (recorded.account_ref, recorded.peer_role) == (ADA.key, "ui")
        assert recorded.native_protocol == "passerelle.v1+json"
        assert recorded.native.device_id == "phone"
        assert recorded.capabilities == ("perm", "rpc")
        assert recorded.resume_token_ref == welcome["channel"]
        (ended,) = await instance.await_payloads("channel.disconnected")
        assert (ended.channel_id, ended.reason) == (welcome["channel"], "left")


@pytest.mark.requirement("EXT-8", "CHN-3")
async def test_a_reconnected_link_is_recorded_as_resumed_with_its_position(store: Store) -> None:
    async with run_instance(store) as instance:
        rig = instance.rig
        session = rig.make_session()
        name = f"session:{session}"
        await rig.append(session, 3)
        cursor = await rig.cursor(session)
        first = cast("int", (await visit(instance))["gen"])
        await rig.append(session, 2)
        async with raw(rig) as socket:
            await send_frames(socket, {**HELLO, "subs": [{"s": name, "c": cursor}]})
            await receive_frame(socket, "live")
            (recorded,) = await instance.await_payloads("channel.resumed")
            (stream,) = recorded.streams
            assert (stream.stream, stream.mode) == (name, "resumed")
            assert (stream.from_sequence, stream.to_sequence) == (3, 5)
            assert recorded.generation == first + 1
            await send_frames(socket, {"t": "ack", "a": {name: await rig.cursor(session)}})
            socket.socket.transport.abort()
        ended = (await instance.await_payloads("channel.disconnected", 1))[-1]
        assert ended.reason == "left"


@pytest.mark.requirement("CHN-4", "EXT-8", "EXT-11")
async def test_a_repair_is_recorded_with_its_reason(store: Store, engine_server: Server) -> None:
    async with run_instance(store) as instance:
        rig = instance.rig
        session = rig.make_session()
        await rig.append(session, 6)
        cursor = await rig.cursor(session)
        await lose_tail(rig, engine_server, session, 2)
        async with raw(rig) as socket:
            await send_frames(socket, {**HELLO, "subs": [{"s": f"session:{session}", "c": cursor}]})
            await receive_frame(socket, "snap")
            (recorded,) = await instance.await_payloads("snapshot.repaired")
        (repair,) = recorded.repairs
        assert (repair.stream, repair.reason) == (f"session:{session}", "ahead")
        assert (repair.from_sequence, repair.to_sequence) == (6, 4)


@pytest.mark.requirement("EXT-8", "I9")
async def test_many_reconnects_in_a_minute_are_two_facts_of_each_kind(
    store: Store, engine_server: Server
) -> None:
    rounds = 24
    async with run_instance(store) as instance:
        session = instance.rig.make_session()
        await instance.rig.append(session, 2)
        gone = "0000000b.1.00000000"
        hello: JsonObject = {**HELLO, "subs": [{"s": f"session:{session}", "c": gone}]}
        for _ in range(rounds):
            async with raw(instance.rig) as socket:
                await send_frames(socket, hello)
                await receive_frame(socket, "snap")
        kinds = ("channel.resumed", "channel.disconnected", "snapshot.repaired")
        for kind in kinds:
            assert len(await instance.await_payloads(kind)) == 1
        await wait_until(lambda: instance.rig.endpoint.connections == 0, 15, "all have left")
        assert expire_minute(engine_server, ADA) == len(kinds)
        instance.facts.wake(ADA.home, 0)
        for kind in kinds:
            recorded = await instance.await_payloads(kind, rounds)
            assert (len(recorded), sum(one.times for one in recorded)) == (2, rounds), kind
        listed = await instance.await_payloads("snapshot.repaired", rounds)
        assert [len(one.repairs) for one in listed] == [min(one.times, 16) for one in listed]
        assert listed[1].times > 16
        assert expire_minute(engine_server, ADA) == 0


@pytest.mark.requirement("EXT-8")
async def test_a_connection_burst_is_recorded_completely(store: Store) -> None:
    many = 40
    async with run_instance(store) as instance:
        hellos: list[JsonObject] = [{**HELLO, "device": f"phone {place}"} for place in range(many)]
        welcomes = await asyncio.gather(*(visit(instance, hello) for hello in hellos))
        channels = {str(welcome["channel"]) for welcome in welcomes}
        for kind in ("channel.connected", "channel.disconnected"):
            recorded = await instance.await_payloads(kind, many)
            assert {one.channel_id for one in recorded} == channels, kind


def expire_minute(engine: Server, who: Principal) -> int:
    """Makes all pending link rows due; returns their number."""
    due = keys.due(who.home)
    rows = cast("list[bytes]", ask(engine.url, "ZRANGE", due, 0, -1))
    owed = [row.decode() for row in rows if row.startswith(b"link:")]
    for row in owed:
        ask(engine.url, "ZADD", due, "XX", 0, row)
    return len(owed)


@pytest.mark.requirement("CHN-10")
async def test_a_silent_device_is_recorded_as_disconnected(store: Store) -> None:
    async with run_instance(store, idle_s=0.2) as instance, raw(instance.rig) as socket:
        await send_frames(socket, HELLO)
        await receive_frame(socket, "welcome")
        (ended,) = await instance.await_payloads("channel.disconnected")
        assert (ended.reason, ended.close_code) == ("heartbeat_lost", 4012)


def find_heir(instance: str, shard: Shard) -> str:
    """Returns a name for a second instance that has the duty of the shard while both live, so it takes over at once."""
    names = (f"heir{number}" for number in range(100))
    return next(name for name in names if shard in choose_duties(name, (instance, name)))


@pytest.mark.requirement("CHN-10", "I9")
async def test_the_links_of_a_dead_instance_are_recorded_by_another_one(
    store: Store, other_store: Store
) -> None:
    async with (
        run_instance(store, "one", lease_ms=600) as one,
        run_instance(other_store, find_heir("one", ADA.home), lease_ms=600) as two,
        raw(one.rig) as lost,
        raw(one.rig) as moved,
    ):
        await send_frames(lost, HELLO)
        channel = (await receive_frame(lost, "welcome"))["channel"]
        await send_frames(moved, {**HELLO, "device": "laptop"})
        await receive_frame(moved, "welcome")
        await visit(two, {**HELLO, "device": "laptop"})
        running = one.duties._running  # pyright: ignore[reportPrivateUsage]  # no product code dies
        assert running is not None
        running.cancel()

        async def look() -> bool:
            recorded = await two.await_payloads("channel.disconnected")
            return any(ended.reason == "instance_lost" for ended in recorded)

        await wait_until(look, 10, "the loss is recorded")
        recorded = await two.await_payloads("channel.disconnected")
        lost_ones = [ended for ended in recorded if ended.reason == "instance_lost"]
        assert [ended.channel_id for ended in lost_ones] == [channel]


@pytest.mark.requirement("EXT-8", "CHN-1", "CHN-2", "CHN-4")
async def test_a_server_sent_event_stream_is_recorded_like_any_other_link(
    store: Store,
) -> None:
    async with run_instance(store) as instance, serve_streams(instance.rig) as site:
        session = instance.rig.make_session()
        stream = f"session:{session}"
        await instance.rig.append(session, 6)
        cursor = await instance.rig.cursor(session)
        async with listen(site, stream, None, device="page") as events:
            await wait_until(lambda: events.seen, 10, "the state comes")
            (begun,) = await instance.await_payloads("channel.connected")
        assert (begun.transport, begun.native_protocol) == ("sse", "passerelle.v1+sse")
        assert (begun.account_ref, begun.native.device_id) == (ADA.key, "page")
        (ended,) = await instance.await_payloads("channel.disconnected")
        assert (ended.channel_id, ended.reason) == (begun.channel_id, "connection_lost")
        await instance.rig.append(session, 2)
        async with listen(site, stream, cursor, device="page") as events:
            await wait_until(lambda: len(events.seen) == 2, 10, "what was missed comes")
            (resumed,) = await instance.await_payloads("channel.resumed")
        assert (resumed.channel_id, resumed.generation) == (
            begun.channel_id,
            begun.generation + 1,
        )
        (taken,) = resumed.streams
        assert (taken.stream, taken.mode) == (stream, "resumed")
        assert (taken.from_sequence, taken.to_sequence) == (6, 8)
        async with listen(site, stream, "0000000b.1.00000000", device="page") as events:
            await wait_until(lambda: len(events.seen) == 2, 10, "gap and state")
            (repaired,) = await instance.await_payloads("snapshot.repaired")
        assert repaired.channel_id == begun.channel_id
        (repair,) = repaired.repairs
        assert (repair.stream, repair.reason) == (stream, "epoch")


async def test_the_end_of_an_event_stream_is_recorded_with_its_reason(store: Store) -> None:
    async with run_instance(store) as instance, serve_streams(instance.rig) as site:
        session = instance.rig.make_session()
        await instance.rig.append(session, 1)
        async with listen(site, f"session:{session}", None) as events:
            await wait_until(lambda: events.seen, 10, "the state comes")
            site.edge.drain()
            await site.edge.finish()
            (ended,) = await instance.await_payloads("channel.disconnected")
        assert (ended.reason, ended.close_code) == ("drained", None)

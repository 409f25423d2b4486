"""Ownership of a connection: connection limits, the newest connection of a channel, the validity of resume tokens."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from passerelle.channels.admission import Admission, admit
from passerelle.channels.limits import ChannelLimits
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import Principal
from passerelle.core.wire.json import JsonObject
from passerelle.protocol.frames import Hello
from passerelle.store.store import Store
from tests.integration.channels.rig import ADA, BOB, Rig, serve
from tests.integration.channels.test_connection import (
    HELLO,
    Raw,
    raw,
    receive_close,
    receive_frame,
    send_frames,
)
from tests.integration.channels.test_following import lose_tail
from tests.support.engine import Server, ask
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

NEVER_S = 3_600.0


async def refuse_hello(rig: Rig, hello: JsonObject) -> tuple[JsonObject, int]:
    async with raw(rig) as socket:
        await send_frames(socket, hello)
        return await receive_frame(socket, "error"), await receive_close(socket)


async def test_connections_per_device_and_per_principal_are_limited(store: Store) -> None:
    limits = ChannelLimits(device_connections=2, principal_connections=3)
    async with serve(store, limits) as rig, AsyncExitStack() as stack:

        async def open_one(device: str, tab: str, token: str = "ada-token") -> Raw:
            socket = await stack.enter_async_context(raw(rig))
            await send_frames(socket, {**HELLO, "device": device, "tab": tab, "token": token})
            await receive_frame(socket, "welcome")
            return socket

        await open_one("phone", "1")
        await open_one("phone", "2")
        error, code = await refuse_hello(rig, {**HELLO, "tab": "3"})
        assert (error["code"], code) == ("concurrency_limited", 4003)
        assert error["retry"]
        tablet = await open_one("tablet", "1")
        _, code = await refuse_hello(rig, {**HELLO, "device": "watch"})
        assert code == 4003
        await open_one("phone", "1", "bob-token")
        await tablet.socket.close()

        async def is_let_in() -> bool:
            async with raw(rig) as next_one:
                await send_frames(next_one, {**HELLO, "device": "watch"})
                return (await next_one.receive())["t"] == "welcome"

        await wait_until(is_let_in, 15, "a place is free again")


@pytest.mark.requirement("CHN-9")
async def test_a_connection_is_closed_by_a_newer_one_on_another_instance(
    store: Store, other_store: Store
) -> None:
    limits = ChannelLimits(recheck_s=NEVER_S)
    async with (
        serve(store, limits) as one,
        serve(other_store, limits) as two,
        raw(one) as older,
        raw(one) as tab,
        raw(two) as newer,
    ):
        for socket, hello in ((older, HELLO), (tab, {**HELLO, "tab": "2"}), (newer, HELLO)):
            await send_frames(socket, hello)
            await receive_frame(socket, "welcome")
        assert await receive_close(older) == 4509
        await send_frames(tab, {"t": "hb", "n": 1})
        await receive_frame(tab, "hb")


@pytest.mark.requirement("CHN-5", "CHN-9")
async def test_the_newest_subscriber_owns_the_ack(store: Store, other_store: Store) -> None:
    async with serve(store) as one, serve(other_store) as two:
        session = one.make_session()
        two.control.owners = one.control.owners
        name, stream = f"session:{session}", StreamRef(StreamKind.SESSION, session)
        await one.append(session, 3)
        subscribed: JsonObject = {**HELLO, "subs": [{"s": name, "from": "start"}]}
        async with raw(one) as older, raw(two) as newer:
            await send_frames(older, subscribed)
            await receive_frame(older, "live")
            # The notification of the newer one is lost: the generation stored with the ack decides.
            await store.channels.ignore(ADA.key)
            await send_frames(newer, subscribed)
            await receive_frame(newer, "live")
            await send_frames(older, {"t": "ack", "a": {name: await one.cursor(session)}})
            assert await receive_close(older) == 4509
        assert await store.acks.read_ack(stream, "phone") is None


@pytest.mark.requirement("CHN-1")
async def test_a_resume_token_names_one_of_the_last_two_connections_or_none(rig: Rig) -> None:
    async def say_hello(who: Principal, device: str, token: str | None) -> Admission:
        hello = Hello(1, device, "ui", resume=token)
        return await admit(rig.services, ChannelLimits(), hello, who)

    admitted = [await say_hello(ADA, "phone", None) for _ in range(3)]
    tokens = [one.welcome.resume for one in admitted]
    assert not (await say_hello(ADA, "phone", tokens[0])).continues  # three are newer by now
    assert (await say_hello(ADA, "phone", tokens[2])).continues  # cut off before it was stored
    newest = (await say_hello(ADA, "phone", None)).welcome.resume
    assert (await say_hello(ADA, "phone", newest)).continues
    # For another device, another principal or an unknown channel the answer is the same.
    for token in (newest, "ch_00" + "0" * 26 + ".1", "nonsense"):
        for who, device in ((ADA, "tablet"), (BOB, "phone")):
            assert not (await say_hello(who, device, token)).continues


@pytest.mark.requirement("I8")
async def test_a_loss_proved_by_another_instance_is_announced_at_once(
    store: Store, other_store: Store, engine_server: Server
) -> None:
    async with serve(store, audit_s=NEVER_S) as rig, raw(rig) as socket:
        session = rig.make_session()
        await rig.append(session, 6)
        await send_frames(socket, {**HELLO, "subs": [{"s": f"session:{session}", "from": "start"}]})
        await receive_frame(socket, "live")
        await lose_tail(rig, engine_server, session, 2)
        await send_frames(socket, {"t": "hb", "n": 1})
        assert (await socket.receive())["t"] == "hb"
        shard = StreamRef(StreamKind.SESSION, session).shard
        await other_store.log.bump_epoch(shard, other_store.log.shard_epoch(shard))
        assert (await receive_frame(socket, "gap"))["why"] == "ahead"


@pytest.mark.requirement("CHN-9")
async def test_the_newest_connection_owns_the_channel_after_the_store_was_flushed(
    store: Store, other_store: Store, engine_server: Server
) -> None:
    quick = ChannelLimits(recheck_s=0.05)
    async with (
        serve(store, quick) as one,
        serve(other_store, quick) as two,
        raw(one) as older,
        raw(two) as newer,
    ):
        await send_frames(older, HELLO)
        await receive_frame(older, "welcome")
        ask(engine_server.url, "FLUSHALL")
        await send_frames(newer, HELLO)
        await receive_frame(newer, "welcome")
        assert await receive_close(older) == 4509
        await send_frames(newer, {"t": "hb", "n": 1})
        await receive_frame(newer, "hb")

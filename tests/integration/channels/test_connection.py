"""Admission, refused frames, acknowledgements, and the ends of a connection."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import cast

import orjson
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.typing import Origin, Subprotocol

from passerelle.a2a_mapping.members import object_at
from passerelle.channels.limits import ChannelLimits
from passerelle.channels.ring import RingBounds
from passerelle.client.channel import CallRefused, ChannelStopped, UnknownOutcome
from passerelle.client.items import LinkStatus, Live, Lost, Offline, Stopped, Won
from passerelle.core.credentials import Credentials
from passerelle.core.errors import (
    ActionClosed,
    CredentialExpired,
    StoreUnavailable,
    Unauthenticated,
)
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.wire.json import JsonObject
from passerelle.protocol.frames import SERVER_ONLY_TYPES, SUBPROTOCOL
from passerelle.store.store import Store
from tests.integration.channels.rig import (
    ADA,
    BOB,
    OVER_BOTH,
    Application,
    BackEnd,
    KnownTokens,
    Rig,
    serve,
)
from tests.support.engine import Server, ask
from tests.support.tcp_proxy import fault_proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

HELLO: JsonObject = {
    "t": "hello", "v": 1, "token": "ada-token", "device": "phone", "role": "ui", "sdk": "t",
    "caps": ["rpc"], "subs": [],
}  # fmt: skip


_COMPRESSED = 0x40
"""The first reserved bit of a WebSocket frame: compressed."""


class Raw:
    """A bare WebSocket, for frames that the client library never sends."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self._received: list[JsonObject] = []

    async def send(self, message: str | bytes) -> None:
        await self.socket.send(message)

    async def receive(self) -> JsonObject:
        while not self._received:
            self._received += [
                orjson.loads(line) for line in str(await self.socket.recv()).split("\n")
            ]
        return self._received.pop(0)


@asynccontextmanager
async def raw(
    rig: Rig,
    *,
    subprotocols: tuple[str, ...] = (SUBPROTOCOL,),
    headers: dict[str, str] | None = None,
    origin: str | None = None,
) -> AsyncGenerator[Raw]:
    async with connect(
        rig.url,
        subprotocols=[Subprotocol(name) for name in subprotocols] or None,
        additional_headers=headers,
        origin=Origin(origin) if origin else None,
        proxy=None,
        compression=None,
    ) as socket:
        yield Raw(socket)


async def send_frames(socket: Raw, *frames: JsonObject) -> None:
    await socket.send("\n".join(orjson.dumps(frame).decode() for frame in frames))


async def receive_frame(socket: Raw, kind: str) -> JsonObject:
    """Returns the next frame of this type within 10 s; skips others."""
    async with asyncio.timeout(10):
        while (frame := await socket.receive())["t"] != kind:
            pass
    return frame


async def receive_close(socket: Raw) -> int:
    async with asyncio.timeout(10):
        try:
            while True:
                await socket.socket.recv()
        except ConnectionClosed:
            return socket.socket.close_code or 0


def read_keys(engine: Server) -> set[str]:
    return {name.decode() for name in cast("list[bytes]", ask(engine.url, "KEYS", "*"))}


async def test_welcome_names_channel_generation_limits_and_open_actions(rig: Rig) -> None:
    await rig.ask({"actionId": "act_1", "rev": 3})
    async with raw(rig) as socket:
        await send_frames(socket, HELLO)
        first = await receive_frame(socket, "welcome")
    async with raw(rig) as socket:
        await send_frames(socket, HELLO)
        second = await receive_frame(socket, "welcome")
    assert first["channel"] == second["channel"]
    assert second["gen"] == cast("int", first["gen"]) + 1
    assert first["pending"] == [{"actionId": "act_1", "rev": 3}]
    assert first["pendingMore"] is False
    assert cast("JsonObject", first["limits"])["in"] == 65_536


@pytest.mark.requirement("CHN-11")
@pytest.mark.parametrize(
    ("hello", "code"),
    [
        ({**HELLO, "token": "wrong"}, 4500),
        ({name: value for name, value in HELLO.items() if name != "token"}, 4500),
        ({**HELLO, "token": "mute-token"}, 4503),
        ({**HELLO, "role": "king"}, 4501),
        ({"t": "rpc", "id": "1", "m": "submit_turn", "idem": "k", "d": {"text": "hi"}}, 4501),
        ({"t": "ack", "a": {"inbox": "6a77b89f.1.d1b96cc6"}}, 4501),
    ],
)
async def test_unadmitted_client_is_refused_and_nothing_is_written(
    rig: Rig, engine_server: Server, hello: JsonObject, code: int
) -> None:
    before = read_keys(engine_server)
    async with raw(rig) as socket:
        call: JsonObject = {"t": "rpc", "id": "9", "m": "submit_turn", "idem": "k", "d": {}}
        await send_frames(socket, hello, call, {"t": "sub", "s": "inbox"})
        refusal = await receive_frame(socket, "error")
        assert refusal["fatal"] is True
        assert await receive_close(socket) == code
    assert read_keys(engine_server) == before
    assert rig.control.asked == []


@OVER_BOTH
async def test_a_token_may_be_sent_in_the_handshake(rig: Rig) -> None:
    bare = {name: value for name, value in HELLO.items() if name != "token"}
    async with raw(rig, headers={"Authorization": "Bearer ada-token"}) as socket:
        await send_frames(socket, bare)
        await receive_frame(socket, "welcome")
    async with raw(rig, subprotocols=(SUBPROTOCOL, "bearer.ada-token")) as socket:
        assert socket.socket.subprotocol == SUBPROTOCOL
        await send_frames(socket, bare)
        await receive_frame(socket, "welcome")


@OVER_BOTH
@pytest.mark.parametrize(
    ("subprotocols", "origin", "status"),
    [((), None, 400), (("graphql-ws",), None, 400), ((SUBPROTOCOL,), "https://evil.example", 403)],
)
async def test_an_invalid_handshake_is_answered_in_http(
    rig: Rig, subprotocols: tuple[str, ...], origin: str | None, status: int
) -> None:
    with pytest.raises(InvalidStatus) as answered:
        async with raw(rig, subprotocols=subprotocols, origin=origin):
            pytest.fail("accepted")
    assert answered.value.response.status_code == status


@OVER_BOTH
async def test_a_socket_without_a_hello_is_closed(store: Store, backend: BackEnd) -> None:
    async with serve(store, ChannelLimits(hello_s=0.1), backend=backend) as rig, raw(rig) as socket:
        assert await receive_close(socket) == 4002


@OVER_BOTH
@pytest.mark.parametrize(
    ("message", "code"),
    [("{not json", 4501), ("[1]", 4501), (b"\x00\x01", 4501), ("x" * 65_537, 4513)],
)
async def test_a_malformed_frame_closes_the_socket(
    rig: Rig, message: str | bytes, code: int
) -> None:
    async with raw(rig) as socket:
        await send_frames(socket, HELLO)
        await receive_frame(socket, "welcome")
        await socket.send(message)
        assert await receive_close(socket) == code


@OVER_BOTH
async def test_compression_is_not_negotiated_and_a_compressed_frame_is_refused(rig: Rig) -> None:
    offers = connect(rig.url, subprotocols=[Subprotocol(SUBPROTOCOL)], proxy=None)
    async with offers as socket:  # the library offers permessage-deflate by default
        assert socket.protocol.extensions == []
        packed = zlib.compress(orjson.dumps(HELLO), wbits=-15)
        frame = bytearray(Frame(Opcode.TEXT, packed).serialize(mask=True))
        frame[0] |= _COMPRESSED
        socket.transport.write(frame)
        assert await receive_close(Raw(socket)) == 1002
    assert rig.links.facts == []


@pytest.mark.requirement("CMD-29", "ID-15")
async def test_a_server_only_frame_is_refused_and_changes_nothing(rig: Rig) -> None:
    session = rig.make_session()
    await rig.append(session, 2)
    before = await rig.cursor(session)
    async with raw(rig) as socket:
        await send_frames(socket, HELLO)
        await receive_frame(socket, "welcome")
        for kind in ("ev", "welcome", "ok", "gap"):
            forged: JsonObject = {"t": kind, "s": f"session:{session}", "o": 3, "d": {}}
            await send_frames(socket, {**forged, "id": "1"})
            refusal = await receive_frame(socket, "error")
            assert (refusal["code"], refusal["of"]) == ("forbidden_frame", kind)
        await send_frames(socket, {"t": "task.completed", "taskId": "task_x"})
        assert (await receive_frame(socket, "error"))["code"] == "unknown_frame"
    assert await rig.cursor(session) == before


def dump_state(engine: Server) -> dict[bytes, object]:
    """Returns the dump of every key except those that links write for themselves."""
    names = cast("list[bytes]", ask(engine.url, "KEYS", "*"))
    kept = (name for name in names if name.split(b":")[1] not in {b"ack", b"c", b"due"})
    return {name: ask(engine.url, "DUMP", name.decode()) for name in kept}


@pytest.mark.requirement("CMD-29")
async def test_client_frames_other_than_commands_change_no_state(
    store: Store, engine_server: Server
) -> None:
    async with serve(store, ChannelLimits(refusals=100)) as rig, raw(rig) as socket:
        session = rig.make_session()
        name = f"session:{session}"
        await rig.append(session, 3)
        end = await rig.cursor(session)
        beyond = f"{end.split('.')[0]}.99.00000000"
        await send_frames(socket, {**HELLO, "subs": [{"s": name, "from": "start"}]})
        await receive_frame(socket, "live")
        before = dump_state(engine_server)
        state: JsonObject = {"status": "completed", "decision": {"optionId": "allow"}}
        forged: JsonObject = {"s": name, "o": 4, "p": 3, "h": "00000000", "c": beyond, "d": state}
        said: list[JsonObject] = [
            *({**forged, "t": kind} for kind in sorted(SERVER_ONLY_TYPES)),
            {"t": "snap", "s": name, "c": beyond, "d": state},
            {"t": "ack", "a": {name: beyond}},
            {"t": "hb", "n": 1, "a": {name: beyond}, "c": {name: beyond}},
            {"t": "sub", "s": name, "c": beyond, "d": state},
            {"t": "unsub", "s": name},
            {"t": "task.completed", "s": name, "d": state},
        ]
        for frame in said:
            await send_frames(socket, frame)
        await send_frames(socket, {"t": "hb", "n": 7})
        while (await receive_frame(socket, "hb"))["n"] != 7:
            pass
        assert dump_state(engine_server) == before
        assert rig.control.asked == []


async def test_too_many_refused_frames_close_the_socket(rig: Rig) -> None:
    async with raw(rig) as socket:
        await send_frames(socket, HELLO)
        for _ in range(9):
            await send_frames(socket, {"t": "ev"})
        assert await receive_close(socket) == 4514


async def test_a_malformed_cursor_is_refused_and_named(rig: Rig) -> None:
    async with raw(rig) as socket:
        await send_frames(socket, HELLO)
        await send_frames(socket, {"t": "sub", "s": "inbox", "c": "yesterday"})
        refusal = await receive_frame(socket, "error")
        assert (refusal["code"], refusal["of"], refusal["s"]) == ("bad_cursor", "sub", "inbox")
        await send_frames(socket, {"t": "sub", "s": "inbox", "c": "yesterday", "id": "7"})
        failure = await receive_frame(socket, "err")
        assert (failure["id"], failure["code"]) == ("7", "bad_cursor")


@pytest.mark.requirement("CHN-5")
async def test_acks_only_move_forward_and_never_beyond_what_was_sent(store: Store) -> None:
    async with serve(store, ChannelLimits(ack_interval_s=0)) as rig:
        session = rig.make_session()
        await rig.append(session, 12)
        name, stream = f"session:{session}", StreamRef(StreamKind.SESSION, session)
        page = await store.log.read_page(stream, 0)
        chains = [entry.previous for entry in page]
        end = await rig.cursor(session)
        epoch = end.split(".")[0]

        async def stored() -> str | None:
            return await store.acks.read_ack(stream, "phone")

        async with raw(rig) as socket:
            await send_frames(socket, HELLO, {"t": "sub", "s": name, "from": "start"})
            await receive_frame(socket, "live")
            for sequence, expected in ((10, 10), (5, 10), (12, 12)):
                cursor = end if sequence == 12 else f"{epoch}.{sequence}.{chains[sequence]}"
                held = end if expected == 12 else f"{epoch}.{expected}.{chains[expected]}"
                await send_frames(
                    socket, {"t": "ack", "a": {name: cursor}}, {"t": "hb", "n": sequence}
                )
                await receive_frame(socket, "hb")

                async def is_stored(held: str = held) -> bool:
                    return await stored() == held

                await wait_until(is_stored, 10, f"ack {sequence} leaves {expected}")
            for ahead in (f"{epoch}.13.00000000", f"{epoch}.12.00000000", "ffffffff.3.00000000"):
                await send_frames(socket, {"t": "ack", "a": {name: ahead}})
                refusal = await receive_frame(socket, "error")
                assert refusal["of"] == "ack"
                assert refusal["code"] in {"ack_ahead", "ack_epoch"}
            assert await stored() == end


@pytest.mark.requirement("CHN-3", "CHN-5")
async def test_a_device_without_a_cursor_resumes_after_its_ack(store: Store) -> None:
    async with serve(store, ChannelLimits(ack_interval_s=0)) as rig:
        session = rig.make_session()
        await rig.append(session, 6)
        stream = StreamRef(StreamKind.SESSION, session)
        fourth = (await store.log.read_page(stream, 4, 1))[0]
        cursor = f"{(await rig.cursor(session)).split('.')[0]}.4.{fourth.previous}"
        await store.acks.store_ack(stream, "phone", 1, cursor, 1)
        async with raw(rig) as socket:
            await send_frames(socket, {**HELLO, "subs": [{"s": f"session:{session}"}]})
            subscribed = await receive_frame(socket, "sub")
            assert (subscribed["mode"], subscribed["c"], subscribed["n"]) == ("acked", cursor, 2)
            assert (await receive_frame(socket, "ev"))["o"] == 5
        async with raw(rig) as socket:
            wish: JsonObject = {"s": f"session:{session}", "from": "ack", "snap": "first"}
            await send_frames(socket, {**HELLO, "subs": [wish]})
            assert (await receive_frame(socket, "snap"))["c"] == await rig.cursor(session)
            assert (await receive_frame(socket, "sub"))["c"] == cursor
            assert (await receive_frame(socket, "ev"))["o"] == 5


@pytest.mark.requirement("CHN-9")
async def test_the_newest_connection_of_a_device_and_tab_owns_the_channel(rig: Rig) -> None:
    async with raw(rig) as older, raw(rig) as other_tab, raw(rig) as newer:
        await send_frames(older, HELLO)
        await receive_frame(older, "welcome")
        await send_frames(other_tab, {**HELLO, "tab": "2"})
        await receive_frame(other_tab, "welcome")
        await send_frames(newer, HELLO)
        await receive_frame(newer, "welcome")
        assert await receive_close(older) == 4509
        await send_frames(other_tab, {"t": "hb", "n": 1})
        await receive_frame(other_tab, "hb")


@pytest.mark.requirement("CHN-9")
async def test_a_superseded_connection_on_another_instance_decides_nothing(
    store: Store, other_store: Store
) -> None:
    async with serve(store) as one, serve(other_store) as two:
        async with raw(one) as older, raw(two) as newer:
            await send_frames(older, HELLO)
            await receive_frame(older, "welcome")
            await store.channels.ignore(ADA.key)  # the notification of the newer one is lost
            await send_frames(newer, HELLO)
            await receive_frame(newer, "welcome")
            answer: JsonObject = {
                "t": "rpc",
                "id": "1",
                "m": "respond_action",
                "idem": "k",
                "d": {},
            }
            await send_frames(older, answer)
            assert await receive_close(older) == 4509
        assert one.control.asked == []


async def test_a_superseded_connection_is_closed_without_a_notification(
    store: Store, other_store: Store
) -> None:
    async with (
        serve(store, ChannelLimits(recheck_s=0.05)) as one,
        serve(other_store) as two,
        raw(one) as older,
        raw(two) as newer,
    ):
        await send_frames(older, HELLO)
        await receive_frame(older, "welcome")
        await store.channels.ignore(ADA.key)
        await send_frames(newer, HELLO)
        await receive_frame(newer, "welcome")
        assert await receive_close(older) == 4509


async def test_a_lost_permission_closes_the_subscription(store: Store) -> None:
    async with serve(store, ChannelLimits(recheck_s=0.05)) as rig, raw(rig) as socket:
        session = rig.make_session()
        await rig.append(session, 1)
        await send_frames(socket, {**HELLO, "subs": [{"s": f"session:{session}", "from": "start"}]})
        await receive_frame(socket, "live")
        del rig.control.owners[session]
        assert (await receive_frame(socket, "unsub"))["code"] == "forbidden"
        await rig.append(session, 1)
        await send_frames(socket, {"t": "hb", "n": 1})
        async with asyncio.timeout(10):
            assert (await socket.receive())["t"] == "hb"


@pytest.mark.parametrize(
    ("now", "code"),
    [
        (Unauthenticated("nobody knows it"), 4504),
        (CredentialExpired("the token has expired"), 4401),
        (replace(ADA, scopes=frozenset[AccessScope]()), 4503),
        (BOB, 4504),
    ],
)
async def test_a_revoked_credential_ends_the_connection(
    store: Store, monkeypatch: pytest.MonkeyPatch, now: Principal | Unauthenticated, code: int
) -> None:
    async def authenticate(_self: KnownTokens, _shown: Credentials) -> Principal:
        if isinstance(now, Unauthenticated):
            raise now
        return now

    async with serve(store, ChannelLimits(recheck_s=0.05)) as rig, raw(rig) as socket:
        await send_frames(socket, HELLO)
        await receive_frame(socket, "welcome")
        monkeypatch.setattr(KnownTokens, "authenticate", authenticate)
        assert (await receive_frame(socket, "error"))["fatal"] is True
        assert await receive_close(socket) == code


@OVER_BOTH
@pytest.mark.requirement("CHN-10")
async def test_a_silent_client_is_closed_and_the_client_leaves_a_silent_server(
    store: Store, backend: BackEnd
) -> None:
    async with serve(store, ChannelLimits(heartbeat_s=5, idle_s=0.3), backend=backend) as rig:
        async with raw(rig) as socket:
            await send_frames(socket, HELLO)
            await receive_frame(socket, "welcome")
            assert await receive_close(socket) == 4012
        seen: list[LinkStatus] = []
        async with fault_proxy(f"127.0.0.1:{rig.port}") as proxy:
            url = f"ws://127.0.0.1:{proxy.port}/v1/channel"
            async with rig.client(url=url, on_status=seen.append) as channel:
                await wait_until(lambda: channel.welcome, 10, "welcomed")
                proxy.open.clear()
                await wait_until(
                    lambda: any(isinstance(status, Offline) for status in seen), 10, "it gives up"
                )
                proxy.cut()
                proxy.open.set()


@OVER_BOTH
async def test_a_client_with_all_its_calls_open_is_not_closed_as_silent(
    store: Store, backend: BackEnd
) -> None:
    limits = ChannelLimits(calls=1, heartbeat_s=0.5, idle_s=1.5)
    async with serve(store, limits, backend=backend) as rig:
        rig.control.hold = asyncio.Event()
        async with rig.client() as channel:
            first = asyncio.create_task(channel.call("get_task", {"n": 1}))
            await wait_until(lambda: was_asked(rig, 1), 10, "the first call is open")
            second = asyncio.create_task(channel.call("get_task", {"n": 2}))
            await asyncio.sleep(3)
            assert not was_asked(rig, 2)
            connection = channel.welcome
            rig.control.hold.set()
            assert (await first)["echo"] == {"n": 1}
            assert (await second)["echo"] == {"n": 2}
            assert channel.welcome is connection


def was_asked(rig: Rig, times: int) -> bool:
    return len(rig.control.asked) >= times


@pytest.mark.requirement("CHN-13")
async def test_a_call_with_a_key_has_its_effect_once_over_cut_links(rig: Rig) -> None:
    async with fault_proxy(f"127.0.0.1:{rig.port}") as proxy:
        url = f"ws://127.0.0.1:{proxy.port}/v1/channel"
        async with rig.client(url=url) as channel:
            for number in range(20):
                rig.control.hold = asyncio.Event()
                asked = len(rig.control.asked)
                call = asyncio.create_task(
                    channel.call("submit_turn", {"text": "book it"}, idem=f"k-{number}")
                )
                await wait_until(partial(was_asked, rig, asked + 1), 10, "it is carried out")
                proxy.cut()
                await wait_until(partial(was_asked, rig, asked + 2), 10, "it is sent again")
                rig.control.hold.set()
                assert (await call)["key"] == f"k-{number}"
    assert len(rig.control.effects) == 20


async def test_an_interrupted_call_without_a_key_has_an_unknown_outcome(rig: Rig) -> None:
    async with fault_proxy(f"127.0.0.1:{rig.port}") as proxy:
        url = f"ws://127.0.0.1:{proxy.port}/v1/channel"
        async with rig.client(url=url) as channel:
            rig.control.hold = asyncio.Event()
            call = asyncio.create_task(channel.call("submit_turn", {}))
            await wait_until(lambda: rig.control.asked, 10, "it is carried out")
            proxy.cut()
            with pytest.raises(UnknownOutcome):
                await call
            rig.control.hold.set()


@pytest.mark.requirement("I7")
async def test_the_loser_of_a_decision_gets_the_winner(rig: Rig) -> None:
    action: JsonObject = {"actionId": "act_1", "rev": 3, "digest": "sha256:x"}
    async with rig.client() as channel:
        assert isinstance(await channel.answer(action, option="allow_once"), Won)
        rig.control.error = ActionClosed("already_resolved", {"optionId": "reject_once"})
        result = await channel.answer(action, option="allow_once")
        assert result == Lost({"optionId": "reject_once"})


async def test_an_internal_error_of_a_call_is_answered_and_the_connection_stays(rig: Rig) -> None:
    rig.control.error = TypeError("a secret of the inside")
    async with raw(rig) as socket:
        await send_frames(socket, HELLO)
        await receive_frame(socket, "welcome")
        await send_frames(socket, {"t": "rpc", "id": "1", "m": "get_task", "d": {}})
        failed = await receive_frame(socket, "err")
        assert (failed["id"], failed["code"]) == ("1", "internal")
        assert "secret" not in str(failed)
        rig.control.error = None
        await send_frames(socket, {"t": "rpc", "id": "2", "m": "get_task", "d": {}})
        assert (await receive_frame(socket, "ok"))["id"] == "2"


async def test_a_store_error_names_its_retry_time(rig: Rig) -> None:
    rig.control.error = StoreUnavailable("made to fail", "no", retry_after_s=3)
    async with rig.client() as channel:
        with pytest.raises(CallRefused) as refused:
            await channel.call("cancel_task", {"taskId": "task_x"}, idem="k")
    assert (refused.value.code, refused.value.retry_s) == ("store_unavailable", 3)


async def test_a_client_with_a_bad_token_stops(rig: Rig) -> None:
    async with rig.client(token="wrong") as channel:
        with pytest.raises(ChannelStopped) as stopped:
            await channel.call("get_task", {"taskId": "task_x"})
        assert stopped.value.code == 4500
        assert isinstance(channel.status, Stopped)


@OVER_BOTH
async def test_a_drained_instance_hands_its_clients_over_without_a_hole(
    store: Store, other_store: Store, backend: BackEnd
) -> None:
    async with serve(store, backend=backend) as one, serve(other_store, backend=backend) as two:
        session, app = one.make_session(), Application()
        two.control.owners[session] = one.control.owners[session]
        ids = await one.append(session, 2)
        async with fault_proxy(f"127.0.0.1:{one.port}") as proxy:
            url = f"ws://127.0.0.1:{proxy.port}/v1/channel"
            async with one.client(on_gap=app.on_gap, url=url) as channel:
                live = asyncio.Event()

                async def read() -> None:
                    async for item in channel.stream(f"session:{session}"):
                        app.take(item)
                        if isinstance(item, Live):
                            live.set()

                reading = asyncio.create_task(read())
                await live.wait()
                proxy.upstream = f"127.0.0.1:{two.port}"
                draining = asyncio.create_task(one.endpoint.drain(500, 500))
                while not draining.done():
                    ids += await one.append(session, 2)
                await draining
                assert (one.endpoint.connections, two.endpoint.connections) == (0, 1)
                ids += await two.append(session, 2)
                await wait_until(lambda: app.events == ids, 10, "everything arrives once")
                assert (app.repeats, app.gaps) == (0, [])
                reading.cancel()


@OVER_BOTH
async def test_a_draining_instance_accepts_no_new_socket(rig: Rig) -> None:
    await rig.endpoint.drain(0, 0)
    with pytest.raises(InvalidStatus) as answered:
        async with raw(rig):
            pytest.fail("accepted")
    assert answered.value.response.status_code == 503
    assert "retry-after" in answered.value.response.headers


@pytest.mark.parametrize("backend", ["asgi", "fast"])
async def test_a_full_instance_accepts_no_new_socket_until_one_has_left(
    store: Store, backend: BackEnd
) -> None:
    async with serve(store, ChannelLimits(connections=1), backend=backend) as rig:
        async with raw(rig) as first:
            await send_frames(first, HELLO)
            await receive_frame(first, "welcome")
            with pytest.raises(InvalidStatus) as answered:
                async with raw(rig):
                    pytest.fail("accepted")
            answer = answered.value.response
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert answer.headers["content-type"].startswith("application/problem+json")
            assert orjson.loads(answer.body or b"")["code"] == "instance_full"
            assert rig.services.counts.refused == 1
        await wait_until(lambda: rig.endpoint.connections == 0, 10, "the first has left")
        async with raw(rig) as second:
            await send_frames(second, HELLO)
            await receive_frame(second, "welcome")


async def test_too_many_frames_close_with_a_retry_time(store: Store) -> None:
    async with serve(store, ChannelLimits(frames_per_window=5)) as rig, raw(rig) as socket:
        await send_frames(socket, HELLO)
        for _ in range(6):
            await send_frames(socket, {"t": "sub", "s": "inbox", "snap": "never"})
        refusal = await receive_frame(socket, "error")
        assert (refusal["code"], refusal["retry"]) == ("rate_limited", 10)
        assert await receive_close(socket) == 4029


@OVER_BOTH
async def test_an_ended_connection_leaves_nothing_behind(rig: Rig) -> None:
    session = rig.make_session()
    await rig.append(session, 1)
    for _ in range(5):
        async with raw(rig) as socket:
            await send_frames(
                socket, {**HELLO, "subs": [{"s": f"session:{session}", "from": "start"}]}
            )
            await receive_frame(socket, "live")
    await wait_until(lambda: rig.endpoint.connections == 0, 10, "no connection is left")
    await wait_until(lambda: rig.hub.streams == 0, 10, "no stream is followed")


@pytest.mark.requirement("CHN-1", "CHN-2")
async def test_the_record_of_a_channel_outlives_its_sockets(rig: Rig) -> None:
    seen, channel = list[JsonObject](), ""
    for _ in range(2):
        async with raw(rig) as socket:
            await send_frames(socket, {**HELLO, "tab": "7", "caps": ["rpc", "vol"]})
            channel = str((await receive_frame(socket, "welcome"))["channel"])
        record = await rig.store.channels.read_record(channel)
        assert record is not None
        seen.append(orjson.loads(record))
    first, second = seen
    assert first["channelId"] == second["channelId"] == channel
    assert str(first["lastSeenAt"]) <= str(second["lastSeenAt"])
    assert (first["transport"], first["peerRole"], first["deviceId"], first["tab"]) == (
        "ws", "ui", "phone", "7",
    )  # fmt: skip
    assert first["accountRef"] == ADA.key
    assert first["capabilities"] == ["rpc", "vol"]
    assert first["nativeProtocol"] == SUBPROTOCOL
    assert first["resumeTokenRef"]


@OVER_BOTH
@pytest.mark.requirement("CHN-4", "I8")
async def test_a_slow_reader_gets_a_gap_and_is_repaired_on_the_same_connection(
    store: Store, backend: BackEnd
) -> None:
    limits = ChannelLimits(replay_events=20)
    async with (
        serve(store, limits, bounds=RingBounds(events=8), backend=backend) as rig,
        raw(rig) as socket,
    ):
        session = rig.make_session()
        await rig.append(session, 1)
        name = f"session:{session}"
        await send_frames(socket, {**HELLO, "subs": [{"s": name, "from": "live"}]})
        await receive_frame(socket, "live")
        for _ in range(60):
            await rig.append(session, 15, size=16_000)
        ids = await rig.append(session, 1)
        folded, reasons = list[object](), list[object]()
        async with asyncio.timeout(20):
            while ids[-1] not in folded:
                frame = await socket.receive()
                if frame["t"] == "ev":
                    folded.append(cast("JsonObject", frame["d"])["eventId"])
                elif frame["t"] == "gap":
                    reasons.append(frame["why"])
                elif frame["t"] == "snap":
                    folded = list(cast("list[object]", cast("JsonObject", frame["d"])["events"]))
        assert set(reasons) == {"slow"}
        stored = await store.log.read_page(StreamRef(StreamKind.SESSION, session), 0, 2_000)
        assert folded == [entry.event_id for entry in stored]


async def test_a_snapshot_can_be_requested_while_the_stream_continues(rig: Rig) -> None:
    session = rig.make_session()
    name, ids = f"session:{session}", await rig.append(session, 2)
    async with raw(rig) as socket:
        await send_frames(socket, {**HELLO, "subs": [{"s": name, "from": "live"}]})
        await receive_frame(socket, "live")
        await send_frames(socket, {"t": "snap", "s": name, "id": "4"})
        snapshot = await receive_frame(socket, "snap")
        assert (snapshot["id"], snapshot["c"]) == ("4", await rig.cursor(session))
        assert cast("JsonObject", snapshot["d"])["events"] == ids
        await rig.append(session, 1)
        assert (await receive_frame(socket, "ev"))["o"] == 3
        await send_frames(socket, {"t": "snap", "s": "inbox"})
        assert (await receive_frame(socket, "error"))["code"] == "not_subscribed"


async def test_a_gap_without_a_wanted_snapshot_ends_the_stream(rig: Rig) -> None:
    session = rig.make_session()
    await rig.append(session, 2)
    async with raw(rig) as socket:
        beyond = "0a1b2c3d.9.00000000"
        wish: JsonObject = {"s": f"session:{session}", "c": beyond, "snap": "never"}
        await send_frames(socket, {**HELLO, "subs": [wish]})
        assert (await receive_frame(socket, "sub"))["mode"] == "gap"
        gap = await receive_frame(socket, "gap")
        assert (gap["why"], gap["have"], gap["snap"]) == ("ahead", beyond, "none")
        assert (await receive_frame(socket, "unsub"))["code"] == "limit"


@pytest.mark.requirement("I8")
@pytest.mark.parametrize("word", ["session", "task"])
async def test_replay_over_the_limit_is_answered_by_sub_before_its_gap(rig: Rig, word: str) -> None:
    """Later cursors have the epoch of the last ``sub``, and a client waits for its ``id``."""
    session = rig.make_session()
    rig.control.tasks["task_1"] = session
    await rig.append(session, 9, task="task_1")
    name = f"{word}:{'task_1' if word == 'task' else session}"
    top = await rig.cursor(session)
    async with raw(rig) as socket:
        await send_frames(socket, HELLO)
        for snap in ("gap", "never"):
            wish: JsonObject = {"s": name, "from": "start", "max": 3, "snap": snap, "id": snap}
            await send_frames(socket, {"t": "sub", **wish})
            event_ids = [await socket.receive() for _ in range(3)]
            while event_ids[0]["t"] not in {"sub", "gap"}:
                event_ids = [*event_ids[1:], await socket.receive()]
            answer, gap, last = event_ids
            assert (answer["t"], answer.get("mode"), answer.get("id")) == ("sub", "gap", snap)
            assert (answer["c"], gap["t"], gap["why"]) == (top, "gap", "limit")
            assert gap["top"] == top
            assert last["t"] == ("snap" if snap == "gap" else "unsub")
            assert last.get("code") == (None if snap == "gap" else "limit")


async def test_refused_subscription_is_answered_with_its_id(store: Store) -> None:
    """Otherwise a client that waits for the answer to its frame would wait for ever."""
    async with serve(store, ChannelLimits(subscriptions=1)) as rig, raw(rig) as socket:
        await send_frames(socket, HELLO)
        await send_frames(socket, {"t": "sub", "s": "session:se_nothing", "id": "1"})
        refused = await receive_frame(socket, "error")
        assert (refused["code"], refused["id"]) == ("not_found", "1")
        await send_frames(socket, {"t": "snap", "s": "inbox", "id": "2"})
        refused = await receive_frame(socket, "error")
        assert (refused["code"], refused["id"]) == ("not_subscribed", "2")
        await send_frames(socket, {"t": "sub", "s": "inbox", "id": "3"})
        assert (await receive_frame(socket, "sub"))["id"] == "3"
        await send_frames(socket, {"t": "sub", "s": f"session:{rig.make_session()}", "id": "4"})
        refused = await receive_frame(socket, "error")
        assert (refused["code"], refused["id"]) == ("limit", "4")
        await send_frames(socket, {"t": "sub", "s": "session:se_nothing"})
        assert "id" not in await receive_frame(socket, "error")


@OVER_BOTH
async def test_too_many_frames_in_a_message_are_refused(rig: Rig) -> None:
    async with raw(rig) as socket:
        await send_frames(socket, HELLO)
        beats: list[JsonObject] = [{"t": "hb", "n": number} for number in range(17)]
        await send_frames(socket, *beats)
        assert (await receive_frame(socket, "error"))["code"] == "too_many_frames"
        await send_frames(socket, {"t": "hb", "n": 99})
        assert (await receive_frame(socket, "hb"))["n"] == 99


async def test_client_of_an_unavailable_store_gets_a_retry_time(rig: Rig) -> None:
    await rig.ask({"actionId": "act_1"})
    rig.control.away = StoreUnavailable("made to fail", "no", retry_after_s=2)
    async with raw(rig) as socket:
        await send_frames(socket, HELLO)
        refusal = await receive_frame(socket, "error")
        assert (refusal["code"], refusal["retry"]) == ("store_unavailable", 2)
        assert await receive_close(socket) == 4004
    rig.control.away = None
    async with raw(rig) as socket:
        await send_frames(socket, {**HELLO, "subs": [{"s": "inbox", "from": "live"}]})
        await receive_frame(socket, "live")
        rig.control.away = StoreUnavailable("made to fail", "no", retry_after_s=2)
        await send_frames(socket, {"t": "sub", "s": "inbox"})
        assert await receive_close(socket) == 4004


@pytest.mark.requirement("I8")
async def test_live_after_a_snapshot_misses_no_write_in_between(rig: Rig) -> None:
    session = rig.make_session()
    await rig.append(session, 3)
    late: list[str] = []

    async def write_late() -> None:
        rig.control.after_snapshot = None
        late.extend(await rig.append(session, 2))

    rig.control.after_snapshot = write_late
    async with raw(rig) as socket:
        wish: JsonObject = {"s": f"session:{session}", "from": "live", "snap": "first"}
        await send_frames(socket, {**HELLO, "subs": [wish]})
        received = [await receive_frame(socket, "snap"), await receive_frame(socket, "sub")]
        assert received[0]["c"] == received[1]["c"]
        event_ids = [object_at(await receive_frame(socket, "ev"), "d")["eventId"] for _ in range(2)]
    assert event_ids == late

"""Credentials of an open connection: expiry, renewal, withdrawal, and single-use tickets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from passerelle.channels.limits import ChannelLimits
from passerelle.client.channel import ChannelClient
from passerelle.client.items import Connected
from passerelle.core.credentials import Credentials
from passerelle.core.errors import Unauthenticated
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.auth.tickets import Tickets
from passerelle.store import keys
from passerelle.store.store import Store
from tests.integration.channels.rig import ADA, BOB, RandomIds, Rig, WallClock, serve
from tests.integration.channels.test_connection import (
    HELLO,
    Raw,
    raw,
    receive_close,
    receive_frame,
    send_frames,
)
from tests.support.engine import Server, ask
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

PAGE = "https://app.example"


@dataclass
class Known:
    """Tokens that a test issues and withdraws; an issued one may expire."""

    principals: dict[str, Principal] = field(default_factory=dict[str, Principal])

    def give(self, token: str, who: Principal, lasts_ms: int | None = None) -> str:
        ends_ms = None if lasts_ms is None else WallClock().now_ms() + lasts_ms
        self.principals[token] = replace(who, expires_ms=ends_ms)
        return token

    async def authenticate(self, credentials: Credentials) -> Principal:
        found = self.principals.get(credentials.bearer or "")
        if found is None:
            raise Unauthenticated("the bearer token is not known")
        if found.expires_ms is not None and found.expires_ms <= WallClock().now_ms():
            raise Unauthenticated("the token has expired")
        return found


@asynccontextmanager
async def run(
    store: Store, limits: ChannelLimits | None = None
) -> AsyncGenerator[tuple[Rig, Known, Tickets]]:
    known, tickets = Known(), Tickets(store.tickets, RandomIds())
    known.give("ada-token", ADA)
    async with serve(
        store, limits, authenticator=known, redeem=tickets.redeem, origins=(PAGE,)
    ) as rig:
        yield rig, known, tickets


async def begin(socket: Raw, **members: object) -> JsonObject:
    hello: JsonObject = {**HELLO, **members}  # type: ignore[dict-item]  # a test says what it likes
    await send_frames(socket, hello)
    return await receive_frame(socket, "welcome")


@pytest.mark.requirement("CHN-11")
async def test_an_expiring_credential_is_requested_and_renewed_on_the_same_link(
    store: Store,
) -> None:
    limits = ChannelLimits(renew_s=60, grace_s=0.3)
    async with run(store, limits) as (rig, known, _), raw(rig) as socket:
        welcome = await begin(socket, token=known.give("short", ADA, 400))
        assert welcome["exp"] == 0
        assert (await receive_frame(socket, "auth"))["exp"] == 0
        await send_frames(socket, {"t": "auth", "token": known.give("next", ADA, 3_600_000)})
        assert (await receive_frame(socket, "auth"))["exp"] == 3_600
        session = rig.make_session()
        await rig.append(session, 1)
        await asyncio.sleep(
            0.8
        )  # longer than the first token and its grace; no event would show it
        await send_frames(socket, {"t": "sub", "s": f"session:{session}", "from": "start"})
        await receive_frame(socket, "live")


async def test_a_credential_without_renewal_ends_the_link_after_its_grace(store: Store) -> None:
    limits = ChannelLimits(renew_s=0.1, grace_s=0.1)
    async with run(store, limits) as (rig, known, _), raw(rig) as socket:
        await begin(socket, token=known.give("short", ADA, 200))
        await receive_frame(socket, "auth")
        error = await receive_frame(socket, "error")
        assert (error["code"], error["fatal"]) == ("token_expired", True)
        assert await receive_close(socket) == 4401


@pytest.mark.parametrize(("token", "code"), [("bob", 4500), ("nobody", 4500), ("mute", 4503)])
async def test_a_link_cannot_be_renewed_for_another_principal(
    store: Store, token: str, code: int
) -> None:
    async with run(store) as (rig, known, _), raw(rig) as socket:
        known.give("bob", BOB)
        known.give("mute", replace(ADA, scopes=frozenset({AccessScope.CALL})))
        await begin(socket)
        await send_frames(socket, {"t": "auth", "token": token})
        assert await receive_close(socket) == code


@pytest.mark.requirement("CHN-11")
async def test_a_withdrawn_credential_closes_its_links_at_once_and_no_others(store: Store) -> None:
    async with run(store) as (rig, known, _), raw(rig) as ada, raw(rig) as bob:
        await begin(ada)
        await begin(bob, token=known.give("bob", BOB))
        del known.principals["ada-token"]
        rig.endpoint.recheck()
        assert (await receive_frame(ada, "error"))["code"] == "unauthenticated"
        assert await receive_close(ada) == 4504
        await send_frames(bob, {"t": "hb", "n": 1})
        await receive_frame(bob, "hb")


async def test_the_client_renews_its_token(store: Store) -> None:
    async with run(store, ChannelLimits(renew_s=60, grace_s=0.2)) as (rig, known, _):
        given: list[str] = []

        async def get_token() -> str:
            given.append(known.give(f"t{len(given)}", ADA, 300 if not given else 3_600_000))
            return given[-1]

        async with ChannelClient(rig.url, token=get_token, device="phone") as channel:
            await wait_until(lambda: len(given) == 2, 15, "a second token is asked for")
            welcome = channel.welcome
            await asyncio.sleep(0.6)  # longer than the first token and its grace
            assert isinstance(channel.status, Connected)
            assert channel.welcome == welcome


@asynccontextmanager
async def page(rig: Rig, origin: str | None = PAGE) -> AsyncGenerator[Raw]:
    async with raw(rig, origin=origin) as socket:
        yield socket


@pytest.mark.requirement("CHN-11")
async def test_a_ticket_opens_one_link_of_its_page_and_device_once(
    store: Store, engine_server: Server
) -> None:
    async with run(store) as (rig, _, tickets):
        shown = Credentials(bearer="ada-token", origin=PAGE)

        async def try_out(ticket: str, origin: str | None = PAGE, device: str = "phone") -> str:
            async with page(rig, origin) as socket:
                hello = {key: value for key, value in HELLO.items() if key != "token"}
                await send_frames(socket, {**hello, "ticket": ticket, "device": device})
                answer = await socket.receive()
                return f"{answer['t']} {answer.get('code')} {answer.get('msg')}"

        refused = "error unauthenticated the ticket is not known"
        ticket = await tickets.issue(shown, "phone")
        (found,) = cast("list[bytes]", ask(engine_server.url, "KEYS", "*:tk:*"))
        name = found.decode()
        kept = ask(engine_server.url, "GET", name)
        assert isinstance(kept, bytes)
        assert ticket.encode() not in kept + name.encode()
        assert b"ada-token" not in kept
        assert 0 < int(str(ask(engine_server.url, "PTTL", name))) <= 30_000
        assert (await try_out(ticket)).startswith("welcome")
        assert await try_out(ticket) == refused
        for origin, device in ((None, "phone"), (PAGE, "tablet")):
            stolen = await tickets.issue(shown, "phone")
            assert await try_out(stolen, origin, device) == refused
            assert await try_out(stolen) == refused
        assert await try_out("psr_made_up") == refused
        late = await tickets.issue(shown, "phone")
        ask(engine_server.url, "FLUSHDB")
        assert await try_out(late) == refused


async def test_a_withdrawn_credential_ends_its_ticket(store: Store) -> None:
    async with run(store) as (rig, known, tickets), page(rig) as open_one, page(rig) as late:
        shown = Credentials(bearer="ada-token", origin=PAGE)
        hello = {key: value for key, value in HELLO.items() if key != "token"}
        ticket = await tickets.issue(shown, "phone")
        await send_frames(open_one, {**hello, "ticket": ticket})
        await receive_frame(open_one, "welcome")
        unused = await tickets.issue(shown, "tablet")
        del known.principals["ada-token"]
        rig.endpoint.recheck()
        assert await receive_close(open_one) == 4504
        await send_frames(late, {**hello, "ticket": unused, "device": "tablet"})
        assert await receive_close(late) == 4500


def test_names_of_tickets_are_spread_over_shards() -> None:
    assert keys.ticket(ADA.home, "x").startswith(f"{{{ADA.home.tag}}}:tk:")

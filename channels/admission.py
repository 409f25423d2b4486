"""Admission: from ``hello`` to ``welcome``. Nothing is written for an unauthenticated client (CHN-11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from passerelle.channels.link_record import LinkRecord, join_tab
from passerelle.core.errors import Forbidden
from passerelle.core.frozen import frozen
from passerelle.core.ids import derive_id
from passerelle.core.payloads.channel import PeerRole
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.wire.codec import to_bytes
from passerelle.core.wire.times import format_ms
from passerelle.protocol.frames import CAPABILITIES, SUBPROTOCOL, Hello, Role, Welcome

if TYPE_CHECKING:
    from passerelle.channels.limits import ChannelLimits
    from passerelle.channels.services import ChannelServices
    from passerelle.core.credentials import Credentials
    from passerelle.core.ids import Shard
    from passerelle.core.wire.json import JsonObject


@frozen
class Admission:
    """The identity of a connection. The highest ``generation`` owns the channel.

    ``device`` combines ``device_id`` and ``tab`` as ``join_tab`` does: the name of its acks. ``continues``: it resumed
    with the token of the previous connection, or of the one before that.
    """

    principal: Principal
    device: str
    channel: str
    generation: int
    welcome: Welcome
    continues: bool
    device_id: str
    tab: str | None

    @property
    def owner(self) -> str:
        """The key of the principal."""
        return self.principal.key

    @property
    def since(self) -> str:
        """When it was welcomed."""
        return self.welcome.now


async def show(services: ChannelServices, hello: Hello, shown: Credentials) -> Credentials:
    """All credentials of a connection: those of its ``hello`` and of the handshake (``shown``).

    Raises:
        Unauthenticated: the ticket is not valid here.
    """
    if hello.ticket is not None:
        shown = await services.redeem(hello.ticket, shown.origin, hello.device)
    return replace(shown, bearer=hello.token or shown.bearer, device=hello.device)


async def identify(services: ChannelServices, shown: Credentials) -> Principal:
    """Authenticates the credentials; nothing is written.

    Raises:
        Unauthenticated: there is no valid credential.
        Forbidden: the credential may not open channels.
    """
    principal = await services.authenticator.authenticate(shown)
    if AccessScope.CONNECT not in principal.scopes:
        raise Forbidden("the credential may not open channels", scope=AccessScope.CONNECT)
    return principal


async def admit(
    services: ChannelServices, limits: ChannelLimits, hello: Hello, principal: Principal
) -> Admission:
    """Writes the channel record, then reads the open actions if there were any at that moment.

    Raises:
        StoreUnavailable: the record could not be written.
    """
    device = join_tab(hello.device, hello.tab)
    channel = name_channel(principal, device)
    now = format_ms(services.store_clock.now_ms())
    record = to_bytes(_describe(hello, principal, channel, now))
    driver = services.links.find_driver(principal.key)
    greeted = await services.channels.record_hello(principal.key, channel, record, driver)
    pending: tuple[JsonObject, ...] = ()
    more = False
    if greeted.has_questions:
        pending, more = await services.snapshots.read_pending(principal, limits.pending)
    generation = greeted.generation
    welcome = Welcome(
        connection=services.ids.mint("cn", principal.home),
        channel=channel,
        generation=generation,
        principal=principal.key,
        capabilities=CAPABILITIES & hello.capabilities,
        heartbeat_s=limits.heartbeat_s,
        idle_s=limits.idle_s,
        limits=limits.announce(),
        resume=name_generation(channel, generation),
        now=now,
        pending=pending,
        pending_more=more,
        expires_s=_count_left_s(principal, services.clock.now_ms()),
    )
    continues = hello.resume in {name_generation(channel, generation - ago) for ago in (1, 2)}
    return Admission(
        principal, device, channel, generation, welcome, continues, hello.device, hello.tab
    )


def _count_left_s(principal: Principal, now_ms: int) -> int | None:
    if principal.expires_ms is None:
        return None
    return max(0, (principal.expires_ms - now_ms) // 1000)


def name_channel(principal: Principal, device: str) -> str:
    """The id of a device's channel; ``device`` includes its tab or its stream, as stored."""
    return _derive_channel(principal.home, principal.key, device)


@lru_cache(4096)
def _derive_channel(home: Shard, owner: str, device: str) -> str:
    return derive_id("ch", home, owner, device)


def name_generation(channel: str, generation: int) -> str:
    """The resume token. It grants nothing: tenant, principal and device are part of the channel's id.

    The previous token is valid too: a client may lose its connection between a welcome and storing the token. An
    invalid token is ignored: the connection is a new one, and still resumes by its cursors.
    """
    return f"{channel}.{generation}"


_ROLES: Final[Mapping[Role, PeerRole]] = {
    "ui": "ui",
    "device": "device",
    "peer": "peer",
    "agent": "worker",
}


def _describe(hello: Hello, principal: Principal, channel: str, now: str) -> LinkRecord:
    return LinkRecord(
        channel_id=channel,
        transport="ws",
        peer_role=_ROLES[hello.role],
        account_ref=principal.key,
        tenant=principal.tenant,
        principal=principal.id,
        capabilities=tuple(sorted(hello.capabilities)),
        last_seen_at=now,
        resume_token_ref=channel,
        native_protocol=SUBPROTOCOL,
        device_id=hello.device,
        tab=hello.tab,
        client=hello.sdk,
        paired=principal.paired,
    )

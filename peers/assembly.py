"""Builds a peer: its card, its credential, and a transport for each supported kind of interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import ConfigInvalid
from passerelle.peers.agent import AgentPeer
from passerelle.peers.cards import CardCache
from passerelle.peers.credential import ClientCredentials, Fixed, TokenSource, show_fixed
from passerelle.peers.http_client import HttpClient
from passerelle.peers.http_json import HttpJson
from passerelle.peers.http_transport import HttpTransport
from passerelle.peers.jsonrpc import JsonRpc
from passerelle.peers.legacy import LegacyHttpJson, LegacyJsonRpc
from passerelle.peers.limits import SendLimit
from passerelle.peers.reverse.cards import DialInCards
from passerelle.peers.reverse.transport import ChannelTransport
from passerelle.peers.sessions import PeerSessions
from passerelle.peers.signatures import CardJudge

if TYPE_CHECKING:
    from passerelle.core.ports.chance import Clock
    from passerelle.peers.call import BindingWire, Transport
    from passerelle.peers.config import PeerConfig
    from passerelle.peers.credential import PeerCredential
    from passerelle.peers.grpc.channels import GrpcChannels
    from passerelle.peers.interface import Choice, InterfaceKind
    from passerelle.peers.reverse.cards import DialInState
    from passerelle.runtime.limits.limit import Limit
    from passerelle.runtime.observability.spans import Spans

_WIRES: Final[Mapping[Choice, BindingWire]] = {
    "JSONRPC/1.0": JsonRpc(),
    "HTTP+JSON/1.0": HttpJson(),
    "JSONRPC/0.3": LegacyJsonRpc(),
    "HTTP+JSON/0.3": LegacyHttpJson(),
}


class Connections:
    """What all peers of a process share. Only tests pass ``sessions``."""

    def __init__(self, sessions: PeerSessions | None = None) -> None:
        self.sessions = sessions or PeerSessions()
        self.channels = _open_channels()

    async def close(self) -> None:
        """Closes all of them; later calls are ``Unreached``."""
        await self.sessions.close()
        if self.channels is not None:
            await self.channels.close()


def make_peer(
    config: PeerConfig,
    connections: Connections,
    clock: Clock,
    limit: Limit | None = None,
    count: Callable[[str, str], None] = lambda _agent, _outcome: None,
    spans: Spans | None = None,
    dial_in: DialInState | None = None,
) -> AgentPeer:
    """A peer with its transports; ``limit`` limits what is sent to it.

    ``count(agent, outcome)`` is called after each call. ``dial_in`` is for agents that dial in.

    Raises:
        ConfigInvalid: a certificate cannot be read, or an agent dials in and ``dial_in`` is None.
    """
    credential = _make_credential(config, connections.sessions, clock)
    client = HttpClient(config, connections.sessions, credential)
    if config.dials_in:
        if dial_in is None:
            raise ConfigInvalid(
                f"agents.{config.name}.transport", "agents cannot dial in to this process"
            )
        judge = CardJudge(config.trust, client.read_public, clock)
        brought = DialInCards(config, dial_in.agents, judge, clock)
        carried: Mapping[InterfaceKind, Transport] = {
            "CHANNEL/1.0": ChannelTransport(config, dial_in.links, dial_in.agents.cancel)
        }
        return AgentPeer(config, brought, carried, SendLimit(limit), clock, count, spans)
    transports: dict[InterfaceKind, Transport] = {
        kind: HttpTransport(config, client, wire) for kind, wire in _WIRES.items()
    }
    if connections.channels is not None:
        from passerelle.peers.grpc.transport import GrpcTransport  # noqa: PLC0415  an extra

        dialled = GrpcTransport(config, connections.channels, credential, connections.sessions.bind)
        transports |= {"GRPC/1.0": dialled, "GRPC/0.3": dialled}
    kinds: tuple[Choice, ...] = tuple(
        kind for kind in config.interfaces if transports.get(kind) is not None
    )
    cards = CardCache(config, client, clock, kinds)
    return AgentPeer(config, cards, transports, SendLimit(limit), clock, count, spans)


def _make_credential(config: PeerConfig, sessions: PeerSessions, clock: Clock) -> PeerCredential:
    if isinstance(config.auth, ClientCredentials):
        return TokenSource(config, config.auth, sessions, clock)
    return Fixed(show_fixed(config.auth))


def _open_channels() -> GrpcChannels | None:
    """None if the gRPC libraries, an extra, are not installed: agents are then called over other interfaces."""
    try:
        from passerelle.peers.grpc.channels import GrpcChannels  # noqa: PLC0415  an extra
    except ImportError:
        return None
    return GrpcChannels()

"""The limits of a connection, and the names under which ``welcome.limits`` tells them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """What one connection may cost. Sizes in bytes, times in seconds."""

    inbound_bytes: int = 65_536
    """One message from a client, before authentication too (CHN-11)."""
    outbound_bytes: int = 1_048_576
    """One frame to a client."""
    frames_per_message: int = 16
    subscriptions: int = 128
    calls: int = 32
    """Open calls; at this number the reader stops reading."""
    frames_per_window: int = 60
    """Client frames per ``window_s``; acks and heartbeats are not counted."""
    window_s: float = 10.0
    stream_name_bytes: int = 255
    hello_s: float = 10.0
    heartbeat_s: float = 25.0
    idle_s: float = 35.0
    """Silence after which either side gives the connection up (CHN-10)."""
    ack_interval_s: float = 1.0
    """At most one stored ack per stream in this time."""
    refusals: int = 8
    """Refused frames after which a connection is closed."""
    recheck_s: float = 30.0
    """How often generation and rights of an open connection are looked at again."""
    renew_s: float = 60.0
    """How long before the end of a credential the client is asked for another one."""
    grace_s: float = 25.0
    """How long after its end it may still come."""
    replay_events: int = 1_000
    replay_events_max: int = 10_000
    """How far a subscription may raise ``replay_events``."""
    replay_bytes: int = 1_048_576
    replays: int = 100
    """Replays and snapshots that an instance works on at once; the rest queues."""
    replay_wait_s: float = 2.0
    """Who would queue for longer is sent away with a time to come back."""
    snapshot_bytes: int = 262_144
    """A larger snapshot is fetched, not sent inline."""
    pending: int = 100
    """Open actions in one ``welcome``."""
    buffered_bytes: int = 65_536
    """Frames that may wait for the socket before events stop being read."""
    presence_interval_s: float = 1.0
    """Who is there is looked up and told at most once in this time, for each principal."""
    connections: int = 20_000
    """Sockets of one instance, greeted or not; a handshake beyond is answered with 503."""
    device_connections: int = 8
    """Open connections of one device on this instance: its tabs."""
    principal_connections: int = 64
    """Open connections of one principal on this instance."""
    stall_s: float = 30.0
    """A socket that takes nothing for so long is closed as too slow."""

    def announce(self) -> dict[str, int]:
        """The part that a client needs, as it stands in ``welcome.limits``."""
        return {
            "in": self.inbound_bytes,
            "out": self.outbound_bytes,
            "subs": self.subscriptions,
            "calls": self.calls,
            "replay": self.replay_events,
        }

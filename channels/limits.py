"""The limits of a connection, and their names in ``welcome.limits``."""

from __future__ import annotations

from passerelle.core.frozen import frozen


@frozen
class ChannelLimits:
    """Resource limits of one connection. Sizes in bytes, times in seconds."""

    inbound_bytes: int = 65_536
    """One message from a client, also before authentication (CHN-11)."""
    outbound_bytes: int = 1_048_576
    """One frame to a client."""
    frames_per_message: int = 16
    subscriptions: int = 128
    calls: int = 32
    """Open calls; at this number the reader stops reading."""
    frames_per_window: int = 60
    """Client frames per ``window_s``; acks and heartbeats are not counted."""
    window_s: float = 10.0
    hello_s: float = 10.0
    heartbeat_s: float = 25.0
    idle_s: float = 35.0
    """Silence after which either side closes the connection (CHN-10)."""
    ack_interval_s: float = 1.0
    """Interval in which at most one ack per stream is stored."""
    refusals: int = 8
    """Refused frames after which a connection is closed."""
    recheck_s: float = 30.0
    """Interval at which generation and rights of an open connection are checked again."""
    renew_s: float = 60.0
    """How long before its expiry a client is asked to renew its credential."""
    grace_s: float = 25.0
    """How long after the expiry a renewal is still accepted."""
    replay_events: int = 1_000
    replay_events_max: int = 10_000
    """Maximum to which a subscription may raise ``replay_events``."""
    replay_bytes: int = 1_048_576
    replays: int = 100
    """Concurrent replays and snapshots of an instance; further ones are queued."""
    replay_wait_s: float = 2.0
    """Maximum time in that queue; a client that would wait longer is refused with a retry time."""
    snapshot_bytes: int = 262_144
    """A larger snapshot is fetched over HTTP, not sent inline."""
    pending: int = 100
    """Open actions in one ``welcome``."""
    buffered_bytes: int = 65_536
    """Frames that may wait for the socket before events stop being read."""
    presence_interval_s: float = 1.0
    """Interval in which presence is read and sent at most once, per principal."""
    connections: int = 20_000
    """Sockets of one instance, welcomed or not; further handshakes get a 503."""
    device_connections: int = 8
    """Open connections of one device on this instance: its tabs."""
    principal_connections: int = 64
    """Open connections of one principal on this instance."""
    stall_s: float = 30.0
    """A socket that accepts no data for this long is closed as too slow."""

    def announce(self) -> dict[str, int]:
        """The limits that a client needs, as in ``welcome.limits``."""
        return {
            "in": self.inbound_bytes,
            "out": self.outbound_bytes,
            "subs": self.subscriptions,
            "calls": self.calls,
            "replay": self.replay_events,
        }

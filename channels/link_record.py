"""What identifies a device link for good, over all of its sockets (CHN-1, CHN-2)."""

from __future__ import annotations

from passerelle.core.payloads.channel import PeerRole, Transport
from passerelle.core.wire.record import record


@record
class LinkRecord:
    """A link as it is stored. ``device_id`` and ``tab`` are the names that the other end gives itself."""

    channel_id: str
    transport: Transport
    peer_role: PeerRole
    account_ref: str
    tenant: str
    principal: str
    capabilities: tuple[str, ...]
    last_seen_at: str
    resume_token_ref: str
    native_protocol: str
    device_id: str
    tab: str | None = None
    client: str = ""
    paired: bool = False
    """Whether the other end has shown the token of a paired device."""

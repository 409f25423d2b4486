"""What identifies a device link for good, over all of its sockets (CHN-1, CHN-2), and how its device is named.

A device and its tab are stored under one name, as a channel and beside an ack. ``#`` stands before a tab and ``@``
before the stream of an ack, so both are escaped within a device or a tab.
"""

from __future__ import annotations

from typing import Final

from passerelle.core.payloads.channel import PeerRole, TransportName
from passerelle.core.wire.record import record

_SPELLED: Final = (("%", "%25"), ("#", "%23"), ("@", "%40"))


def join_tab(device: str, tab: str | None) -> str:
    """A device and one of its tabs as one name, which no other device and tab have."""
    return _spell(device) if tab is None else f"{_spell(device)}#{_spell(tab)}"


def split_tab(name: str) -> tuple[str, str | None]:
    """The device and the tab of a stored name, as they call themselves."""
    device, mark, tab = name.partition("#")
    return _read(device), _read(tab) if mark else None


def _spell(name: str) -> str:
    for sign, spelled in _SPELLED:
        name = name.replace(sign, spelled)
    return name


def _read(name: str) -> str:
    for sign, spelled in reversed(_SPELLED):
        name = name.replace(spelled, sign)
    return name


@record
class LinkRecord:
    """A link as it is stored. ``device_id`` and ``tab`` are the names that the other end gives itself."""

    channel_id: str
    transport: TransportName
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

"""The lasting identity of a device link, across its sockets (CHN-1, CHN-2), and the stored name of its device.

A device and its tab are stored under one name, for a channel and for an ack. ``#`` precedes a tab and ``@`` the stream
of an ack, so both are escaped within a device or a tab.
"""

from __future__ import annotations

from typing import Final

from passerelle.core.payloads.channel import PeerRole, TransportName
from passerelle.core.wire.record import record

_SPELLED: Final = (("%", "%25"), ("#", "%23"), ("@", "%40"))


def join_tab(device: str, tab: str | None) -> str:
    """One unambiguous name for a device and its tab."""
    return _spell(device) if tab is None else f"{_spell(device)}#{_spell(tab)}"


def split_tab(name: str) -> tuple[str, str | None]:
    """The device and the tab of a stored name, unescaped."""
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
    """A link as stored. ``device_id`` and ``tab`` are names that the client chose."""

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
    """Whether the client presented the token of a paired device."""


def split_ack(name: str) -> tuple[str, str]:
    """The stored name of a device in the name of its ack, and the derived view that was acknowledged, if any."""
    device, _, view = name.partition("@")
    return device, view


def is_of_owner(ack: str) -> bool:
    """Whether the name of an ack is that of a device of the owner of its stream, not of another reader."""
    return "@" not in split_ack(ack)[1]

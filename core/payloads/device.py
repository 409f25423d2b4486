"""Facts about a device: its owner, its rights and its trust state (CHN-8).

Rights narrow what the principal may do: a watch may allow low risk, and reject anything.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from passerelle.core.payloads.approval import OptionKind, Risk
from passerelle.core.wire.record import record

DeviceState: TypeAlias = Literal["offered", "claimed", "proven", "active", "revoked"]
KeyAlgorithm: TypeAlias = Literal["Ed25519", "ES256"]
DeviceAct: TypeAlias = Literal[
    "offered", "claimed", "proven", "confirmed", "renamed", "revoked", "push_set", "push_removed"
]

_RISKS: Final[tuple[Risk, ...]] = get_args(Risk)
NEGATIVE: Final[frozenset[OptionKind]] = frozenset({"reject_once", "reject_always", "cancel"})
"""Options that stop something; every device that may decide may choose them."""


@record
class DeviceRights:
    """Narrows what the principal may do; never widens it. None means no limit."""

    options: tuple[OptionKind, ...] | None = None
    risk_up_to: Risk | None = None

    def allow(self, kind: OptionKind, risk: Risk) -> bool:
        """Whether an option of this kind may be chosen for something of this risk."""
        if kind in NEGATIVE:
            return True
        if self.options is not None and kind not in self.options:
            return False
        return self.risk_up_to is None or reaches(self.risk_up_to, risk)


EVERYTHING: Final = DeviceRights()


def reaches(bound: Risk, risk: Risk) -> bool:
    """Whether ``risk`` is not above ``bound``."""
    return _RISKS.index(risk) <= _RISKS.index(bound)


@record
class DeviceKey:
    """A public key in base64url: 32 bytes of Ed25519, or an uncompressed point of P-256 (65 bytes)."""

    key_id: str
    algorithm: KeyAlgorithm
    public: str


@record
class Device:
    """One device. Secrets are stored as hashes only: of its pairing code and of its token.

    ``scopes`` are its scopes; those that its principal loses it loses too. Times are RFC 3339, except compared ones,
    which are milliseconds.
    """

    device_id: str
    principal: str
    tenant: str
    name: str
    state: DeviceState
    scopes: tuple[str, ...]
    offered_at: str
    code_hash: str
    until_ms: int
    """When the code expires, or the wait for a confirmation."""
    rights: DeviceRights = DeviceRights()
    nonce: str | None = None
    key: DeviceKey | None = None
    token_hash: str | None = None
    confirmed_at: str | None = None
    confirmed_by: str | None = None
    revoked_at: str | None = None
    revoked_by: str | None = None
    push: str | None = None
    """The host of its push service; the subscription itself is a secret and is stored elsewhere."""

    @property
    def is_active(self) -> bool:
        """Whether it may connect."""
        return self.state == "active"

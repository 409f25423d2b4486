"""The device machine: the devices of one principal in one record, and how each becomes trusted and revoked.

A device is *offered* with a code that is shown once and valid for two minutes. A device that presents the code *claims*
the offer with a public key, which uses the code up, and gets a nonce. With that nonce signed it is *proven* to have the
key, but still may do nothing. A manager of this principal's devices compares six digits, derived from key and nonce,
and *confirms* it. Only then is it *active*. A relay in between with its own key would show other digits.

A device ends by being *revoked*, from any state; it never comes back, a new pairing makes a new one. An offer that is
not claimed or confirmed in time expires, and is dropped at the next write of the list.

All devices of a principal are one record, so one read before each decision shows which are valid, and two concurrent
pairings conflict on its version. The record is bounded: ``MOST`` valid devices, and the last ``MOST`` revoked.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from passerelle.core.errors import InvalidInput, NotFound, UnsupportedOperation
from passerelle.core.events import Fact
from passerelle.core.facts import Scope
from passerelle.core.frozen import frozen
from passerelle.core.ids import derive_id
from passerelle.core.payloads.device import Device, DeviceAct, DeviceKey, DeviceRights, DeviceState
from passerelle.core.payloads.governance import PolicyChanged
from passerelle.core.principal import Principal
from passerelle.core.wire.canonical import canonicalize
from passerelle.core.wire.record import record
from passerelle.core.wire.times import format_ms

if TYPE_CHECKING:
    from passerelle.core.events import Event

SCHEMA: Final = 1
MOST: Final = 32
CODE_MS: Final = 120_000
CONFIRM_MS: Final = 600_000
DIGITS: Final = 6


@record
class DeviceList:
    """The devices of a principal. ``session_id`` is its home session, which has all facts about them."""

    schema: int
    list_id: str
    session_id: str
    principal: str
    tenant: str
    changes: int
    updated_at: str
    last: int
    devices: tuple[Device, ...] = ()

    def find(self, device_id: str) -> Device | None:
        """The device of that id."""
        return next((one for one in self.devices if one.device_id == device_id), None)

    def find_code(self, code_hash: str) -> Device | None:
        """The device offered with a code."""
        return next((one for one in self.devices if one.code_hash == code_hash), None)

    def find_token(self, token_hash: str) -> Device | None:
        """The active device with a token."""
        held = (one for one in self.devices if one.is_active)
        return next((one for one in held if one.token_hash == token_hash), None)

    @property
    def has_keys(self) -> bool:
        """Whether an active device can sign."""
        return any(one.is_active and one.key is not None for one in self.devices)


@frozen
class Offer:
    """Offers a device, with a code of this hash."""

    device_id: str
    whose: Principal
    name: str
    scopes: tuple[str, ...]
    rights: DeviceRights
    code_hash: str


@frozen
class Claim:
    """Claims an offer with its code and a key; ``nonce`` is what the device must sign."""

    code_hash: str
    key: DeviceKey
    nonce: str


@frozen
class Prove:
    """The nonce was signed with the key; the signature is verified. The token is valid once the device is confirmed."""

    code_hash: str
    token_hash: str


@frozen
class Confirm:
    """Confirms a device after comparing the digits."""

    device_id: str
    digits: str


@frozen
class Rename:
    """Renames the device."""

    device_id: str
    name: str


@frozen
class Revoke:
    """Revokes the device."""

    device_id: str


@frozen
class SetPush:
    """Sets the Web Push host of the device, or removes it."""

    device_id: str
    host: str | None


DeviceCommand: TypeAlias = Offer | Claim | Prove | Confirm | Rename | Revoke | SetPush

TABLE: Final[dict[type[DeviceCommand], dict[DeviceState | None, DeviceState | None]]] = {
    Offer: {None: "offered"},
    Claim: {"offered": "claimed"},
    Prove: {"claimed": "proven"},
    Confirm: {"proven": "active"},
    Rename: {"active": "active"},
    Revoke: {"offered": "revoked", "claimed": "revoked", "proven": "revoked", "active": "revoked"},
    SetPush: {"active": "active"},
}
"""The transitions of each command: from state, to state. None is a device that does not exist."""

_ACTS: Final[dict[type[DeviceCommand], DeviceAct]] = {
    Offer: "offered",
    Claim: "claimed",
    Prove: "proven",
    Confirm: "confirmed",
    Rename: "renamed",
    Revoke: "revoked",
}


def decide(
    state: DeviceList | None, command: DeviceCommand, actor: str, session: str, now_ms: int
) -> list[Fact]:
    """The fact of a command by ``actor``; ``session`` is the home session of the principal.

    Raises:
        NotFound: no such device or code, or an expired one: both look the same.
        UnsupportedOperation: the state does not allow the command; a code works once.
        InvalidInput: the digits do not match, or there are too many devices.
    """
    known = _find(state, command, now_ms)
    current = known.state if known else None
    target = TABLE[type(command)].get(current)
    if target is None:
        done = _ACTS.get(type(command), "given another push address")
        raise UnsupportedOperation(f"a device that is {current} cannot be {done}", state=current)
    if isinstance(command, Offer):
        _check_room(state, now_ms)
    device = replace(_change(known, command, actor, now_ms), state=target)
    changes = state.changes if state else 0
    act = _ACTS.get(type(command)) or ("push_set" if device.push else "push_removed")
    changed = PolicyChanged(
        change="device",
        actor=actor,
        version=str(changes + 1),
        previous=str(changes) if changes else None,
        ref=device.device_id,
        device=device,
        act=act,
    )
    return [Fact(Scope(session), changed)]


FOLDED: Final[frozenset[type]] = frozenset({PolicyChanged})


def evolve(state: DeviceList | None, event: Event) -> DeviceList | None:
    """The list after an event; total."""
    payload = event.fact.payload
    if not isinstance(payload, PolicyChanged) or payload.device is None:
        return state
    known = state or _begin(payload.device, event)
    if event.sequence <= known.last:
        return known
    others = [one for one in known.devices if one.device_id != payload.device.device_id]
    return replace(
        known,
        devices=_keep((*others, payload.device)),
        changes=known.changes + 1,
        updated_at=event.timestamp,
        last=event.sequence,
    )


def name_list(principal: Principal) -> str:
    """The id of a principal's device list."""
    return derive_id("dvs", principal.home, principal.tenant, principal.id)


def derive_digits(device_id: str, key: DeviceKey, nonce: str) -> str:
    """The six digits that both sides show, derived from the key and the nonce."""
    bound = canonicalize({"deviceId": device_id, "key": key.public, "nonce": nonce})
    number = int.from_bytes(hashlib.sha256(bound).digest()[:8], "big")
    return f"{number % 10**DIGITS:0{DIGITS}d}"


def compose_proof(device_id: str, nonce: str) -> bytes:
    """The bytes that a device signs to prove that it has the key."""
    return canonicalize({"deviceId": device_id, "nonce": nonce, "purpose": "passerelle-pairing"})


def _begin(first: Device, event: Event) -> DeviceList:
    return DeviceList(
        schema=SCHEMA,
        list_id=name_list(Principal(first.principal, first.tenant)),
        session_id=event.fact.scope.session_id,
        principal=first.principal,
        tenant=first.tenant,
        changes=0,
        updated_at=event.timestamp,
        last=0,
    )


def _find(state: DeviceList | None, command: DeviceCommand, now_ms: int) -> Device | None:
    match command:
        case Offer():
            return None
        case Claim(code_hash=code) | Prove(code_hash=code):
            known = state.find_code(code) if state else None
            if known is None or known.until_ms <= now_ms or known.state == "revoked":
                raise NotFound("code", "")
        case Confirm() | Rename() | Revoke() | SetPush():
            known = state.find(command.device_id) if state else None
            gone = known is not None and not known.is_active and known.until_ms <= now_ms
            if known is None or (gone and known.state != "revoked"):
                raise NotFound("device", command.device_id)
        case _:
            assert_never(command)
    return known


def _change(known: Device | None, command: DeviceCommand, actor: str, now_ms: int) -> Device:
    now = format_ms(now_ms)
    if isinstance(command, Offer):
        return Device(
            command.device_id,
            command.whose.id,
            command.whose.tenant,
            command.name,
            "offered",
            command.scopes,
            now,
            command.code_hash,
            now_ms + CODE_MS,
            command.rights,
        )
    assert known is not None  # noqa: S101  every other command has found one
    match command:
        case Claim(key=key, nonce=nonce):
            return replace(known, key=key, nonce=nonce)
        case Prove(token_hash=token_hash):
            return replace(known, token_hash=token_hash, until_ms=now_ms + CONFIRM_MS)
        case Confirm(digits=digits):
            if (
                known.key is None
                or derive_digits(known.device_id, known.key, known.nonce or "") != digits
            ):
                raise InvalidInput("digits", "do not match those of the device; pair it again")
            return replace(known, confirmed_at=now, confirmed_by=actor)
        case Rename(name=name):
            return replace(known, name=name)
        case Revoke():
            return replace(known, revoked_at=now, revoked_by=actor, push=None)
        case SetPush(host=host):
            return replace(known, push=host)
        case _:
            assert_never(command)


def _check_room(state: DeviceList | None, now_ms: int) -> None:
    counting = [
        one
        for one in (state.devices if state else ())
        if one.is_active or (one.state != "revoked" and one.until_ms > now_ms)
    ]
    if len(counting) >= MOST:
        raise InvalidInput("devices", f"there are {MOST} already; revoke one of them")


def _keep(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """All active devices and the last others; offers that were never confirmed are dropped here too."""
    others = [one for one in devices if not one.is_active][-2 * MOST :]
    return tuple(one for one in devices if one.is_active or one in others)

"""Pairing: from a code on a screen to a trusted device that can reach the gateway (CHN-8).

The principals that offer and confirm a device are authenticated. The device that presents the code is not: the code,
130 bits that are valid for two minutes and once, is all it has. It gets only a nonce to sign, and a token that is
unusable until a person has compared the digits.

``GatewayAddress`` tells a device how to reach the gateway, and how to recognize it.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from passerelle.core.errors import Forbidden, InvalidInput, NotFound, Unauthenticated, WriteConflict
from passerelle.core.frozen import frozen
from passerelle.core.ids import encode_base32
from passerelle.core.payloads.device import DeviceRights
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.session.device import Claim, Offer, Prove, compose_proof, derive_digits
from passerelle.core.session.device_requests import DevicePaired
from passerelle.core.wire.times import format_ms
from passerelle.permission_bridge.devices.device_keys import holds, read_key
from passerelle.runtime.common.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from passerelle.core.payloads.device import Device, KeyAlgorithm
    from passerelle.core.ports.chance import Clock, Ids
    from passerelle.core.session.device import DeviceList
    from passerelle.core.session.device_requests import PairDevice
    from passerelle.permission_bridge.devices.device_lists import DeviceLists
    from passerelle.runtime.records.idempotency import Once


@frozen
class GatewayAddress:
    """The URL, and the SHA-256 of the gateway's certificate if it uses its own."""

    url: str | None = None
    pin: str | None = None


def find_gateway_address(url: str, certificate: Path | None) -> GatewayAddress:
    """The address at ``url``; the certificate file is read each time, since it may have been renewed."""
    if certificate is None:
        return GatewayAddress(url)
    try:
        chain = certificate.read_text(encoding="ascii")
        leaf = chain[: chain.index(_END) + len(_END)]
        own = ssl.PEM_cert_to_DER_cert(leaf[leaf.index(_BEGIN) :])
    except (OSError, ValueError):
        return GatewayAddress(url)
    return GatewayAddress(url, f"sha256:{hashlib.sha256(own).hexdigest()}")


_BEGIN = "-----BEGIN CERTIFICATE-----"
_END = "-----END CERTIFICATE-----"


TOKEN_PREFIX: Final = "psd."  # noqa: S105  the prefix of tokens is no secret
USUAL_SCOPES: Final = (
    AccessScope.CONNECT,
    AccessScope.READ_TASKS,
    AccessScope.READ_APPROVALS,
    AccessScope.DECIDE,
    AccessScope.DECIDE_HIGH,
)
_CODE: Final = re.compile(r"(dvs_[0-3][0-9a-z]{27})\.([0-9a-hjkmnp-tv-z]{26})")
_CODE_CHARACTERS: Final = 26
_TOKEN_CHARACTERS: Final = 52
_NONCE_CHARACTERS: Final = 26


@frozen
class Claimed:
    """The answer to a claim: the nonce that the device must sign."""

    device_id: str
    nonce: str


@frozen
class Proven:
    """The answer to a proof: a token for later, and the digits to show."""

    device_id: str
    token: Secret
    digits: str
    principal: str


@frozen
class Pairing:
    """Offers devices, and pairs them."""

    lists: DeviceLists
    ids: Ids
    clock: Clock
    find_gateway_address: Callable[[], GatewayAddress]

    async def offer(self, principal: Principal, command: PairDevice, once: Once) -> DevicePaired:
        """A code for a new device of the caller.

        Raises:
            Forbidden: the caller is an agent, or offers rights that it does not have.
            InvalidInput: a name that is not printable, an unknown right, or too many devices.
        """
        if principal.kind not in {"person", "service"}:
            raise Forbidden(f"a credential of kind {principal.kind} has no devices")
        if not command.name.isprintable():
            raise InvalidInput("name", "must be one printable line")
        secret = encode_base32(self.ids.draw(5 * _CODE_CHARACTERS), _CODE_CHARACTERS)
        offer = Offer(
            device_id=self.ids.mint("dev", principal.home),
            whose=principal,
            name=command.name,
            scopes=_choose_scopes(principal, command.scopes),
            rights=DeviceRights(command.options, command.risk_up_to),
            code_hash=_hash(secret),
        )
        stored = await self.lists.change(
            principal, offer, name_actor(principal), idem=once.remember(offer.device_id)
        )
        device = stored.find(offer.device_id)
        if device is None:
            raise WriteConflict("the same command is being carried out")
        code = f"{stored.list_id}.{secret}"
        return DevicePaired(offer.device_id, code, self._link(code), format_ms(device.until_ms))

    async def claim(self, code: str, algorithm: KeyAlgorithm, public: str) -> Claimed:
        """Uses a code once, for a public key.

        Raises:
            NotFound: no such code, or it has expired.
            UnsupportedOperation: it was used before.
            InvalidInput: an invalid key.
        """
        secret, found, device = await self._find(code)
        key = read_key(algorithm, public)
        nonce = encode_base32(self.ids.draw(5 * _NONCE_CHARACTERS), _NONCE_CHARACTERS)
        command = Claim(_hash(secret), key, nonce)
        whose = Principal(found.principal, found.tenant)
        await self.lists.change(whose, command, device.device_id, not_after_ms=device.until_ms)
        return Claimed(device.device_id, nonce)

    async def prove(self, code: str, signature: str) -> Proven:
        """Checks the signed nonce.

        Raises:
            NotFound, UnsupportedOperation: as for a claim.
            Unauthenticated: it was not signed with the claimed key.
        """
        secret, found, device = await self._find(code)
        key, nonce = device.key, device.nonce or ""
        if key is None or not holds(key, compose_proof(device.device_id, nonce), signature):
            raise Unauthenticated("the nonce is not signed with the key of the claim")
        hidden = encode_base32(self.ids.draw(5 * _TOKEN_CHARACTERS), _TOKEN_CHARACTERS)
        token = Secret(f"{TOKEN_PREFIX}{found.list_id}.{hidden}")
        command = Prove(_hash(secret), hash_token(token.get_secret_value()))
        whose = Principal(found.principal, found.tenant)
        await self.lists.change(whose, command, device.device_id, not_after_ms=device.until_ms)
        digits = derive_digits(device.device_id, key, nonce)
        return Proven(device.device_id, token, digits, found.principal)

    async def _find(self, code: str) -> tuple[str, DeviceList, Device]:
        said = _CODE.fullmatch(code)
        found = await self.lists.load_by_id(said[1]) if said else None
        device = found.find_code(_hash(said[2])) if found and said else None
        if said is None or found is None or device is None:
            raise NotFound("code", "")
        return said[2], found, device

    def _link(self, code: str) -> str:
        address = self.find_gateway_address()
        members = {"url": address.url, "code": code, "pin": address.pin}
        return (
            f"passerelle:pair?{urlencode({name: text for name, text in members.items() if text})}"
        )


def hash_token(token: str) -> str:
    """The stored hash of a device's token."""
    return _hash(token)


def name_actor(principal: Principal) -> str:
    """The actor of a device change: the principal, with its device if it uses one."""
    return f"{principal.id} ({principal.device})" if principal.paired else principal.id


def _choose_scopes(principal: Principal, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    if wanted is None:
        return tuple(scope.value for scope in USUAL_SCOPES if scope in principal.scopes)
    known = {scope.value: scope for scope in AccessScope}
    for name in wanted:
        if name not in known:
            raise InvalidInput("scopes", f"{name[:60]!r} is not a known right")
        if known[name] not in principal.scopes:
            raise Forbidden(f"a device cannot have {name}: the caller does not have it", scope=name)
    return tuple(dict.fromkeys(wanted))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()

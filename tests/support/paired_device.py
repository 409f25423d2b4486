"""A device like a phone: it presents a code, signs with its own key, and then has a token."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import cast

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from passerelle.core.payloads.device import KeyAlgorithm
from passerelle.core.wire.canonical import canonicalize
from passerelle.core.wire.json import JsonObject
from passerelle.runtime.common.clock import SystemClock


def encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@dataclass
class Keys:
    """A private key of either type."""

    algorithm: KeyAlgorithm = "Ed25519"
    _edwards: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    def __post_init__(self) -> None:
        self._curve = generate_private_key(SECP256R1())

    @property
    def public(self) -> str:
        if self.algorithm == "Ed25519":
            return encode(self._edwards.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
        key = self._curve.public_key()
        return encode(key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint))

    def sign(self, message: bytes) -> str:
        if self.algorithm == "Ed25519":
            return encode(self._edwards.sign(message))
        r, s = decode_dss_signature(self._curve.sign(message, ECDSA(SHA256())))
        return encode(r.to_bytes(32, "big") + s.to_bytes(32, "big"))


@dataclass
class PairedDevice:
    """``pair`` makes it trusted; the steps are separate methods for tests that stop between them."""

    http: httpx.AsyncClient
    keys: Keys = field(default_factory=Keys)
    device_id: str = ""
    token: str = ""
    digits: str = ""
    clock_ahead_ms: int = 0
    """Offset of its clock from this machine's, in ms."""

    async def claim(self, code: str) -> httpx.Response:
        body = {"code": code, "algorithm": self.keys.algorithm, "publicKey": self.keys.public}
        return await self.http.post("/v1/devices/claim", json=body)

    async def prove(self, code: str, claimed: JsonObject) -> httpx.Response:
        self.device_id = str(claimed["deviceId"])
        bound: JsonObject = {
            "deviceId": self.device_id,
            "nonce": claimed["nonce"],
            "purpose": "passerelle-pairing",
        }
        signature = self.keys.sign(canonicalize(bound))
        return await self.http.post(
            "/v1/devices/prove", json={"code": code, "signature": signature}
        )

    async def bring(self, code: str) -> None:
        claimed = await self.claim(code)
        assert claimed.status_code == 200, claimed.text
        proven = await self.prove(code, cast("JsonObject", claimed.json()))
        assert proven.status_code == 200, proven.text
        self.token, self.digits = proven.json()["token"], proven.json()["digits"]

    async def pair(self, bearer: str, name: str = "phone", **offered: object) -> None:
        owner = {"Authorization": f"Bearer {bearer}"}
        offer = await self.http.post(
            "/v1/devices/pair", json={"name": name, **offered}, headers=owner
        )
        assert offer.status_code == 201, offer.text
        await self.bring(offer.json()["code"])
        confirmed = await self.http.post(
            f"/v1/devices/{self.device_id}/confirm", json={"digits": self.digits}, headers=owner
        )
        assert confirmed.status_code == 200, confirmed.text

    async def get(self, path: str) -> httpx.Response:
        return await self.http.get(path, headers=self.headers)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


def sign_decision(device: PairedDevice, answer: JsonObject, **changed: object) -> JsonObject:
    """The answer with a device's signature; ``changed`` members are signed with other values."""
    iat = SystemClock().now_ms() + device.clock_ahead_ms
    bound: JsonObject = {
        "v": 1,
        "actionId": answer["actionId"],
        "rev": answer["rev"],
        "digest": answer["digest"],
        "optionId": answer["optionId"],
        "contentDigest": None,
        "decisionId": answer["decisionId"],
        "deviceId": device.device_id,
        "iat": iat,
    }
    bound |= cast("JsonObject", changed)
    value = device.keys.sign(canonicalize(bound))
    signature: JsonObject = {
        "deviceId": device.device_id,
        "value": value,
        "iat": iat,
    }
    return {**answer, "signature": signature}

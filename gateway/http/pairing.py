"""Pairing of a device that is not known yet: ``POST /v1/devices/claim``, then ``/v1/devices/prove``.

These are the only ``/v1`` routes without a credential. Nothing is written for an invalid code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from pydantic import Field
from starlette.responses import JSONResponse
from starlette.routing import Route

from passerelle.core.frozen import frozen
from passerelle.core.payloads.device import KeyAlgorithm
from passerelle.core.wire.codec import from_bytes, to_wire
from passerelle.core.wire.record import record
from passerelle.gateway.http.bodies import read_json

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from passerelle.permission_bridge.devices.pairing import Pairing

BODY_LIMIT_BYTES: Final = 2_048
_NO_STORE: Final = {"Cache-Control": "no-store"}
_Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]


@record
class ClaimParams:
    """The code, and the public key of the device in base64url."""

    code: _Text
    public_key: _Text
    algorithm: KeyAlgorithm = "Ed25519"


@record
class DeviceClaimed:
    """What to sign: canonical JSON of ``deviceId``, ``nonce`` and ``purpose`` ``passerelle-pairing``."""

    device_id: str
    nonce: str


@record
class ProveParams:
    """The code again, and the signature in base64url."""

    code: _Text
    signature: _Text


@record
class DeviceProven:
    """The token is valid once the owner has confirmed ``digits``, which the device shows until then."""

    device_id: str
    principal: str
    token: str
    digits: str


@frozen
class PairingEdge:
    """Answers devices that have a pairing code."""

    pairing: Pairing

    async def claim(self, request: Request) -> Response:
        """Redeems a code."""
        params = from_bytes(ClaimParams, await read_json(request, BODY_LIMIT_BYTES))
        made = await self.pairing.claim(params.code, params.algorithm, params.public_key)
        return JSONResponse(to_wire(DeviceClaimed(made.device_id, made.nonce)), 200, _NO_STORE)

    async def prove(self, request: Request) -> Response:
        """Checks the signature."""
        params = from_bytes(ProveParams, await read_json(request, BODY_LIMIT_BYTES))
        made = await self.pairing.prove(params.code, params.signature)
        token = made.token.get_secret_value()
        proven = DeviceProven(made.device_id, made.principal, token, made.digits)
        return JSONResponse(to_wire(proven), 200, _NO_STORE)


def make_pairing_routes(edge: PairingEdge) -> list[Route]:
    """The routes of the edge."""
    return [
        Route("/v1/devices/claim", edge.claim, methods=["POST"], name="claim_device"),
        Route("/v1/devices/prove", edge.prove, methods=["POST"], name="prove_device"),
    ]

"""Tickets: how a web page opens a channel without its bearer in a place where it would be kept (CHN-11).

A ticket stands once, for 30 s, for the credentials that asked for it. They are sealed with a key that is made of the
ticket itself, and stored under another hash of it: the store alone opens nothing. Whoever redeems it must be the same
device and the same origin. What comes out is looked at like any credential, so whatever ends these ends the ticket.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.credentials import Credentials
from passerelle.core.errors import ConfigInvalid, Unauthenticated
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.record import record
from passerelle.gateway.auth.keys import mint_token
from passerelle.runtime.common.sealer import Sealer, make_sealer

if TYPE_CHECKING:
    from passerelle.core.ports.chance import Ids
    from passerelle.store.sealed_values import RedisTickets

TICKET_MS: Final = 30_000
_UNKNOWN: Final = "the ticket is not known"


@record
class _Stub:
    device: str
    origin: str | None
    bearer: str | None
    api_key: str | None
    certificate: str | None
    address: str | None


@dataclass(frozen=True, slots=True)
class Tickets:
    """Gives tickets out and takes them back."""

    kept: RedisTickets
    ids: Ids

    async def issue(self, shown: Credentials, device: str) -> str:
        """A ticket for credentials that were found good.

        Raises:
            StoreUnavailable: there is none.
        """
        ticket = mint_token(self.ids).get_secret_value()
        stub = _Stub(
            device, shown.origin, shown.bearer, shown.api_key, shown.certificate, shown.address
        )
        name = _name(ticket)
        await self.kept.put(name, self._seal_with(ticket).seal(to_bytes(stub), name), TICKET_MS)
        return ticket

    async def redeem(self, ticket: str, origin: str | None, device: str) -> Credentials:
        """What was shown for a ticket; the ticket is used up, whatever comes of it.

        Raises:
            Unauthenticated: unknown, used, too old, or of another device or origin: they all look the same.
        """
        name = _name(ticket)
        sealed = await self.kept.take(name)
        if sealed is None:
            raise Unauthenticated(_UNKNOWN)
        try:
            stub = from_bytes(_Stub, self._seal_with(ticket).unseal(sealed, name))
        except ConfigInvalid:
            raise Unauthenticated(_UNKNOWN) from None
        if (stub.device, stub.origin) != (device, origin):
            raise Unauthenticated(_UNKNOWN)
        return Credentials(
            stub.bearer, stub.api_key, stub.certificate, stub.address, device, origin
        )

    def _seal_with(self, ticket: str) -> Sealer:
        key = hashlib.sha256(b"key of " + ticket.encode()).digest()
        return make_sealer([key], self.ids.draw)


def _name(ticket: str) -> str:
    return hashlib.sha256(b"name of " + ticket.encode(errors="replace")).hexdigest()

"""Tickets: a web page opens a channel without putting its bearer token where it would be stored (CHN-11).

A ticket replaces the credentials that requested it once, within 30 s. They are sealed with a key derived from the
ticket, and stored under another hash of it: the store alone cannot open them. Device and origin must be the same at
redemption. The restored credentials are then checked like any others, so revoking them invalidates the ticket.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from passerelle.core.credentials import Credentials
from passerelle.core.errors import ConfigInvalid, Unauthenticated
from passerelle.core.frozen import frozen
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


@frozen
class Tickets:
    """Issues and redeems tickets."""

    kept: RedisTickets
    ids: Ids

    async def issue(self, shown: Credentials, device: str) -> str:
        """Issues a ticket for credentials that were authenticated.

        Raises:
            StoreUnavailable: it could not be stored.
        """
        ticket = mint_token(self.ids).get_secret_value()
        stub = _Stub(
            device, shown.origin, shown.bearer, shown.api_key, shown.certificate, shown.address
        )
        name = _name(ticket)
        await self.kept.put(name, self._seal_with(ticket).seal(to_bytes(stub), name), TICKET_MS)
        return ticket

    async def redeem(self, ticket: str, origin: str | None, device: str) -> Credentials:
        """The credentials of a ticket; the ticket is used up, whatever the result.

        Raises:
            Unauthenticated: unknown, used, expired, or of another device or origin; the errors are equal.
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

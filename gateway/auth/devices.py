"""Tokens of paired devices: each request reads the device list again, so that a revocation takes effect at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from passerelle.core.errors import Unauthenticated
from passerelle.core.frozen import frozen
from passerelle.core.ids import read_shard
from passerelle.core.principal import Principal
from passerelle.core.session.device import name_list
from passerelle.gateway.connections import note_authenticated
from passerelle.permission_bridge.devices.pairing import TOKEN_PREFIX, hash_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.credentials import Credentials
    from passerelle.core.payloads.device import Device
    from passerelle.gateway.auth.authenticator import CachedAuthenticator
    from passerelle.permission_bridge.devices.device_lists import DeviceLists

_UNKNOWN = "the token does not belong to a device, or the device was revoked"
_LIMIT = 128


@frozen
class DeviceCallers:
    """``CachedAuthenticator`` for paired devices; ``others`` authenticates all other callers.

    ``find(id, tenant)`` is the current configured principal; a device never has more rights than that.
    """

    others: CachedAuthenticator
    lists: DeviceLists
    find: Callable[[str, str], Principal | None]

    def authenticate_cached(self, credentials: Credentials) -> Principal | None:
        """None for a device token, which needs a read."""
        if credentials.token.startswith(TOKEN_PREFIX):
            return None
        return self.others.authenticate_cached(credentials)

    async def authenticate(self, credentials: Credentials) -> Principal:
        """The principal of the credentials.

        Raises:
            Unauthenticated: there are none, or they are not valid.
            StoreUnavailable: whether a device is still valid cannot be checked.
        """
        found = await self._find(credentials)
        note_authenticated()
        return found

    async def _find(self, credentials: Credentials) -> Principal:
        token = credentials.token
        if not token.startswith(TOKEN_PREFIX):
            return await self.others.authenticate(credentials)
        list_id = find_list(credentials)
        if list_id is None:
            raise Unauthenticated(_UNKNOWN)
        found = await self.lists.load_by_id(list_id)
        device = found.find_token(hash_token(token)) if found else None
        owner = self.find(found.principal, found.tenant) if found else None
        return _make_principal(owner, device)

    async def find_device(self, principal: str, tenant: str, device: str) -> Principal:
        """A paired device by its id, for a caller that proved its identity without its token.

        Raises:
            Unauthenticated: it was revoked, or its owner is no longer configured.
            StoreUnavailable: whether it is still valid cannot be checked.
        """
        found = await self.lists.load_by_id(name_list(Principal(principal, tenant)))
        known = found.find(device) if found else None
        active = known if known is not None and known.is_active else None
        return _make_principal(self.find(principal, tenant), active)


def _make_principal(owner: Principal | None, device: Device | None) -> Principal:
    """The device's principal; never with more rights than its owner has now."""
    if device is None or owner is None:
        raise Unauthenticated(_UNKNOWN)
    return replace(
        owner,
        scopes=frozenset(scope for scope in owner.scopes if scope.value in device.scopes),
        device=device.device_id,
        device_name=device.name,
        paired=True,
    )


def find_list(credentials: Credentials) -> str | None:
    """The list named in a device token, without a check that the token is in it."""
    token = credentials.token
    list_id = token.removeprefix(TOKEN_PREFIX).partition(".")[0]
    if not token.startswith(TOKEN_PREFIX) or len(token) > _LIMIT:
        return None
    return list_id if list_id.startswith("dvs_") and read_shard(list_id) is not None else None

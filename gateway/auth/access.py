"""Who may come in, by the settings and by what the store keeps of the owner.

It is made at the start, and made again at each reload.
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from passerelle.core.errors import ConfigInvalid
from passerelle.gateway.auth.authenticator import Callers, KnownCallers, OpenAuthenticator
from passerelle.gateway.auth.credentials import Certificates, CredentialReader
from passerelle.gateway.auth.devices import DeviceCallers
from passerelle.gateway.auth.jwks import HttpKeySource, KeySet
from passerelle.gateway.auth.keys import KeyRing
from passerelle.gateway.auth.owner import (
    NO_KEY,
    OwnerTokenStore,
    StoredOwnerToken,
    load_owner_token,
)
from passerelle.gateway.auth.principals import find_principal
from passerelle.gateway.auth.tokens import Issuer, Tokens
from passerelle.gateway.settings.local_gateway import OWNER_FILE
from passerelle.gateway.settings.values import load_sealer, name_setting
from passerelle.peers.sessions import PeerSessions
from passerelle.runtime.common.address_screen import AddressScreen
from passerelle.runtime.common.clock import SystemClock, SystemIds
from passerelle.runtime.common.refresh import NewsFollowing
from passerelle.runtime.common.sealer import SETTING
from passerelle.store.data_directory import make_data_directory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from passerelle.core.ports.chance import Clock
    from passerelle.core.principal import Principal
    from passerelle.gateway.auth.authenticator import CachedAuthenticator
    from passerelle.gateway.auth.owner import OwnerToken
    from passerelle.gateway.settings.callers import IssuerSettings
    from passerelle.gateway.settings.model import Settings
    from passerelle.permission_bridge.devices.device_lists import DeviceLists
    from passerelle.runtime.common.secret import Secret
    from passerelle.store.store import Store


class Access:
    """The authenticator of all edges, and how they read credentials; ``reload`` swaps what it knows.

    ``owner`` is every token that is the owner's; None lets everybody in.
    """

    def __init__(self, settings: Settings, owner: tuple[Secret, ...] | None, clock: Clock) -> None:
        self._owner = owner
        self._clock = clock
        self._trusted = PeerSessions()
        self._screened = PeerSessions(screen=AddressScreen())
        self._on_change: list[Callable[[], None]] = []
        self._key_sets: dict[IssuerSettings, KeySet] = {}
        proxy = settings.proxy
        self.reader = CredentialReader(proxy.certificate_header.lower() if proxy else None)
        self._known = KnownCallers(self._make(settings)) if owner is not None else None
        self._settings = settings
        self.authenticator: CachedAuthenticator = self._known or OpenAuthenticator()

    def know_devices(self, lists: DeviceLists) -> DeviceCallers:
        """Lets paired devices in, too."""
        devices = DeviceCallers(self.authenticator, lists, self._find_principal)
        self.authenticator = devices
        return devices

    def reload(self, settings: Settings) -> None:
        """Knows whom the settings name, from the next request on. Key sets of issuers that stay are kept."""
        self._settings = settings
        if self._known is not None:
            self._known.callers = self._make(settings)
        for tell in self._on_change:
            tell()

    def know_owner(self, owner: tuple[Secret, ...]) -> None:
        """Knows the owner by these tokens and no others, from the next request on."""
        self._owner = owner
        self.reload(self._settings)

    def on_change(self, tell: Callable[[], None]) -> None:
        """Calls back whenever who may come in has changed: what is open is looked at again."""
        self._on_change.append(tell)

    async def aclose(self) -> None:
        """Closes the connections to identity providers."""
        for keys in self._key_sets.values():
            await keys.close()
        await self._trusted.close()
        await self._screened.close()

    def _make(self, settings: Settings) -> Callers:
        owner = self._owner
        if owner is None:
            raise AssertionError("nobody is known where everybody is let in")
        self._key_sets = {
            issuer: self._key_sets.get(issuer) or self._open(issuer) for issuer in settings.issuers
        }
        issuers = [Issuer(issuer, keys) for issuer, keys in self._key_sets.items()]
        return Callers(
            keys=KeyRing(owner, settings.clients, self._clock),
            tokens=Tokens(issuers, self._clock) if issuers else None,
            certificates=Certificates(settings.proxy, settings.clients) if settings.proxy else None,
        )

    def _find_principal(self, identity: str, tenant: str) -> Principal | None:
        return find_principal(self._settings, identity, tenant)

    def _open(self, issuer: IssuerSettings) -> KeySet:
        source = HttpKeySource(issuer, self._trusted, self._screened)
        return KeySet(issuer.name, source, self._clock)


@asynccontextmanager
async def open_access(
    settings: Settings, store: Store, introduce: Callable[[OwnerToken], None] | None = None
) -> AsyncGenerator[Access]:
    """Who may come in, until the end; ``introduce`` is told of the owner's token.

    Raises:
        ConfigInvalid: the secret key does not open the owner token of the store, or its file cannot be used.
        StoreUnavailable: the token of the store could not be read.
    """
    if settings.auth == "open":
        async with aclosing(Access(settings, None, SystemClock())) as access:
            yield access
        return
    place, log = find_place(settings, store), structlog.get_logger("passerelle")
    kept = None if place is None else StoredOwnerToken(place, log)
    if kept is None:
        await _refuse_sealed(store)
        log.warning("owner_token.unshared", reason=NO_KEY)
        token = load_owner_token(make_data_directory(settings.data_dir), SystemIds())
    else:
        token = await kept.load()
    if introduce is not None:
        introduce(token)
    async with aclosing(Access(settings, token.accepted, SystemClock())) as access:
        if kept is None:
            yield access
            return
        kept.on_change = access.know_owner
        listen = store.owner_tokens.listen
        async with NewsFollowing("owner_token", kept.refresh, listen, log).follow():
            yield access


def find_place(settings: Settings, store: Store) -> OwnerTokenStore | None:
    """Where the owner token of a store is kept; None where nothing can be sealed.

    Raises:
        ConfigInvalid: the secret key cannot be read or used.
    """
    data_dir, ids = make_data_directory(settings.data_dir), SystemIds()
    sealer = load_sealer(settings, data_dir, ids.draw)
    if sealer is None:
        return None
    return OwnerTokenStore(
        store.owner_tokens,
        sealer,
        name_setting(settings, data_dir),
        store.runtime_id,
        data_dir / OWNER_FILE,
        ids,
    )


async def _refuse_sealed(store: Store) -> None:
    """An instance that cannot read the token of the store would go on with one that may have been replaced."""
    if await store.owner_tokens.read() is not None:
        raise ConfigInvalid(
            SETTING,
            "is not given, and the store keeps its owner token sealed; every instance needs the key",
        )

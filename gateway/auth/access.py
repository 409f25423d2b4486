"""Who has access: by the settings, and by the owner tokens of the store.

Built at the start, and rebuilt at each reload.
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
    rotate_owner_token,
)
from passerelle.gateway.auth.principals import find_principal
from passerelle.gateway.auth.tokens import Issuer, Tokens
from passerelle.gateway.settings.local_gateway import OWNER_FILE
from passerelle.gateway.settings.values import load_sealer, name_setting
from passerelle.gateway.store_setup import reach_store
from passerelle.peers.sessions import PeerSessions
from passerelle.runtime.common.address_screen import AddressScreen
from passerelle.runtime.common.clock import SystemClock, SystemIds
from passerelle.runtime.common.refresh import HintFollower
from passerelle.runtime.common.sealer import SETTING
from passerelle.store.data_directory import make_data_directory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

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
    """The authenticator of all edges, and how they read credentials; ``reload`` replaces the callers.

    ``owner`` are all valid owner tokens; None turns authentication off.
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
        """Adds paired devices to the authenticator."""
        devices = DeviceCallers(self.authenticator, lists, self._find_principal)
        self.authenticator = devices
        return devices

    def reload(self, settings: Settings) -> None:
        """Uses the callers of these settings from the next request on. Key sets of unchanged issuers are kept."""
        self._settings = settings
        if self._known is not None:
            self._known.callers = self._make(settings)
        for notify in self._on_change:
            notify()

    def know_owner(self, owner: tuple[Secret, ...]) -> None:
        """Accepts only these owner tokens from the next request on."""
        self._owner = owner
        self.reload(self._settings)

    def on_change(self, notify: Callable[[], None]) -> None:
        """Calls back whenever access has changed, so that open connections are checked again."""
        self._on_change.append(notify)

    async def aclose(self) -> None:
        """Closes the connections to identity providers."""
        for keys in self._key_sets.values():
            await keys.close()
        await self._trusted.close()
        await self._screened.close()

    def _make(self, settings: Settings) -> Callers:
        owner = self._owner
        if owner is None:
            raise AssertionError("without authentication there are no callers to know")
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
    settings: Settings, store: Store, on_token: Callable[[OwnerToken], None] | None = None
) -> AsyncGenerator[Access]:
    """Yields the access of a gateway; calls ``on_token`` with the owner token.

    Raises:
        ConfigInvalid: the secret key does not open the store's owner token, or its file cannot be used.
        StoreUnavailable: the store's token cannot be read.
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
    if on_token is not None:
        on_token(token)
    async with aclosing(Access(settings, token.accepted, SystemClock())) as access:
        if kept is None:
            yield access
            return
        kept.on_change = access.know_owner
        listen = store.owner_tokens.listen
        async with HintFollower("owner_token", kept.refresh, listen, log).follow():
            yield access


def find_place(settings: Settings, store: Store) -> OwnerTokenStore | None:
    """Where a store keeps its owner token; None without a secret key.

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


async def run_rotation(settings: Settings, *, key_lost: bool = False) -> tuple[Secret, Path]:
    """Replaces the owner token of a store, while gateways may run on it; returns it with the file that keeps it here.

    Uses the embedded engine of a running gateway; if none runs, starts the engine for this.

    Raises:
        ConfigInvalid: there is no store, no key, or the key does not open the previous token.
        Conflict: another process replaced the token at the same moment.
        EngineFailed, StoreUnavailable: the store cannot be opened, read or written.
    """
    async with reach_store(settings) as store:
        place = find_place(settings, store)
        if place is None:
            raise ConfigInvalid(
                SETTING,
                "is not set, so each data directory has its own owner token: "
                "delete the file there and start again",
            )
        return await rotate_owner_token(place, key_lost=key_lost), place.path


async def _refuse_sealed(store: Store) -> None:
    """Raises ConfigInvalid: an instance that cannot read the store's token could use a replaced one."""
    if await store.owner_tokens.read() is not None:
        raise ConfigInvalid(
            SETTING,
            "is not set, but the owner token in the store is sealed; every instance needs the key",
        )

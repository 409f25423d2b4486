"""Who may come in, by the settings: made at the start, and made again at each reload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.gateway.auth.authenticator import Callers, KnownCallers, OpenAuthenticator
from passerelle.gateway.auth.certificates import Certificates
from passerelle.gateway.auth.credentials import CredentialReader
from passerelle.gateway.auth.devices import DeviceCallers
from passerelle.gateway.auth.jwks import KeySet
from passerelle.gateway.auth.key_sources import HttpKeySource
from passerelle.gateway.auth.keys import KeyRing
from passerelle.gateway.auth.principals import find_principal
from passerelle.gateway.auth.tokens import Issuer, Tokens
from passerelle.peers.sessions import PeerSessions
from passerelle.runtime.common.address_screen import Screen

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.ports.chance import Clock
    from passerelle.core.principal import Principal
    from passerelle.gateway.auth.authenticator import Doorkeeper
    from passerelle.gateway.settings import Settings
    from passerelle.gateway.settings_callers import IssuerSettings
    from passerelle.permission_bridge.devices.device_lists import DeviceLists
    from passerelle.runtime.common.secret import Secret


class Access:
    """The authenticator of all edges, and how they read credentials; ``reload`` swaps what it knows.

    ``owner`` is every token that is the owner's; None lets everybody in.
    """

    def __init__(self, settings: Settings, owner: tuple[Secret, ...] | None, clock: Clock) -> None:
        self._owner = owner
        self._clock = clock
        self._trusted = PeerSessions()
        self._screened = PeerSessions(screen=Screen())
        self._on_change: list[Callable[[], None]] = []
        self._key_sets: dict[IssuerSettings, KeySet] = {}
        proxy = settings.proxy
        self.reader = CredentialReader(proxy.certificate_header.lower() if proxy else None)
        self._known = KnownCallers(self._make(settings)) if owner is not None else None
        self._settings = settings
        self.authenticator: Doorkeeper = self._known or OpenAuthenticator()

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
            keys=KeyRing(owner, settings.clients),
            tokens=Tokens(issuers, self._clock) if issuers else None,
            certificates=Certificates(settings.proxy, settings.clients) if settings.proxy else None,
        )

    def _find_principal(self, identity: str, tenant: str) -> Principal | None:
        return find_principal(self._settings, identity, tenant)

    def _open(self, issuer: IssuerSettings) -> KeySet:
        source = HttpKeySource(issuer, self._trusted, self._screened)
        return KeySet(issuer.name, source, self._clock)

"""The identity of a connection's client, its credential, and whether that is still valid.

A credential is checked at admission, when the client presents another one, and at intervals: it may have been revoked,
and its rights may have changed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol
from zlib import crc32

from passerelle.channels.admission import admit, identify, show
from passerelle.channels.calls import end_connection
from passerelle.channels.inputs import EndRequested, NoticeDue, Renewed
from passerelle.core.errors import CallerError, PasserelleError, RemoteError, Unauthenticated
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.frames import Refusal, Withdrawn

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from passerelle.channels.admission import Admission
    from passerelle.channels.inputs import Input
    from passerelle.channels.limits import ChannelLimits
    from passerelle.channels.services import ChannelServices
    from passerelle.core.credentials import Credentials
    from passerelle.core.principal import Principal
    from passerelle.protocol.frames import Hello

_CRC_END: Final = 2**32


class Holder(Protocol):
    """The connection whose client this is."""

    @property
    def is_over(self) -> bool:
        """Whether the connection is closed."""
        ...

    def feed(self, given: Input) -> None:
        """Feeds an input to the connection's state machine."""
        ...

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Runs a coroutine that ends with the connection."""
        ...

    def supersede(self) -> None:
        """Ends it: the same device and tab has a newer one."""
        ...

    async def recheck_rights(self) -> None:
        """Checks whether all followed and served streams are still permitted."""
        ...


class HolderRights:
    """``owner`` is the key of the principal; empty before authentication."""

    __slots__ = (
        "_admission",
        "_again",
        "_credentials",
        "_holder",
        "_limits",
        "_loop",
        "_notified_as",
        "_rechecking",
        "_services",
        "_timer",
        "owner",
    )

    def __init__(
        self, services: ChannelServices, limits: ChannelLimits, shown: Credentials, holder: Holder
    ) -> None:
        """``shown`` are the credentials of the handshake."""
        self.owner = ""
        self._services = services
        self._limits = limits
        self._credentials = shown
        self._holder = holder
        self._loop = asyncio.get_running_loop()
        self._admission: Admission | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rechecking: asyncio.Task[None] | None = None
        self._again = False
        self._notified_as: Principal | None = None

    @property
    def admission(self) -> Admission | None:
        """The admission; None before the welcome."""
        return self._admission

    @property
    def known(self) -> Admission:
        """The admission, for code that runs only after the welcome."""
        if self._admission is None:
            raise AssertionError("nothing is followed or called before the welcome")
        return self._admission

    async def identify(self, hello: Hello) -> Principal:
        """Authenticates the client. Nothing is written (CHN-11).

        Raises:
            PasserelleError: the credential opens no channel.
        """
        self._credentials = await show(self._services, hello, self._credentials)
        principal = await identify(self._services, self._credentials)
        self.owner = principal.key
        return principal

    async def admit(self, hello: Hello, principal: Principal) -> Admission:
        """Writes the channel record, and composes the welcome.

        Raises:
            StoreUnavailable: the record could not be written.
        """
        self._admission = await admit(self._services, self._limits, hello, principal)
        self._notified_as = principal
        return self._admission

    async def renew(self, token: str) -> None:
        """Takes a new credential of the same principal; any other one ends the connection."""
        shown = replace(self._credentials, bearer=token)
        try:
            found = await identify(self._services, shown)
        except PasserelleError as error:
            self._holder.feed(EndRequested(*end_connection(error, "auth")))
            return
        if found.key != self.owner:
            notice = Refusal("unauthenticated", "another principal", "auth", fatal=True)
            self._holder.feed(EndRequested(CloseCode.BAD_CREDENTIALS, notice))
            return
        changed = found != self.known.principal
        self._credentials, self._admission = shown, replace(self.known, principal=found)
        self._holder.feed(Renewed(self.find_end_s()))
        if changed:
            self.recheck()

    def find_end_s(self) -> float | None:
        """When the credential expires, by the loop's clock; None if it does not."""
        expires_ms = self.known.principal.expires_ms
        if expires_ms is None:
            return None
        return self._loop.time() + (expires_ms - self._services.clock.now_ms()) / 1000

    def recheck_later(self) -> None:
        """Spreads the rechecks of connections that arrived together: each has its own offset around the interval."""
        if not self._holder.is_over:
            spread = 0.75 + 0.5 * (crc32(self.known.channel.encode()) / _CRC_END)
            self._timer = self._loop.call_later(self._limits.recheck_s * spread, self.recheck)

    def recheck(self) -> None:
        """Checks credential and rights now: at intervals, and when access settings have changed."""
        if self._admission is None or self._holder.is_over:
            return
        if self._rechecking is not None:
            self._again = True  # the running check may have read the old settings
            return
        self.stop()
        self._rechecking = self._holder.spawn(self._recheck_once())

    def stop(self) -> None:
        """Stops the periodic checks."""
        if self._timer is not None:
            self._timer.cancel()

    async def is_superseded(self) -> bool:
        """Whether the same device and tab has a newer connection anywhere; also renews its entry in the store."""
        known, services = self.known, self._services
        driver = services.links.find_driver(self.owner)
        newest = await services.channels.keep(known.channel, known.generation, driver)
        return newest > known.generation

    async def _recheck_once(self) -> None:
        """Detects a newer connection of this device, an invalid credential, and changed rights."""
        try:
            with suppress(RemoteError):  # retried at the next round
                if not await self._recheck_caller():
                    return
                if await self.is_superseded():
                    self._holder.supersede()
                    return
                await self._holder.recheck_rights()
                await self._notify_withdrawn()
        finally:
            self._rechecking = None
        again, self._again = self._again, False
        if again:
            self.recheck()
        else:
            self.recheck_later()

    async def _notify_withdrawn(self) -> None:
        """Notifies the client of open requests that it may no longer see or answer.

        If they cannot be read, this is retried at the next round.
        """
        before, now = self._notified_as, self.known.principal
        if before is None or before == now:
            return
        for action, why in await self._services.snapshots.read_withdrawn(before, now):
            self._holder.feed(NoticeDue(Withdrawn(action, why)))
        self._notified_as = now

    async def _recheck_caller(self) -> bool:
        """Whether the credential still opens this channel; takes over its current rights.

        An expired credential is left to the state machine: it may still be renewed.
        """
        known, shown = self.known, self._credentials
        ends_ms = known.principal.expires_ms
        if ends_ms is not None and ends_ms <= self._services.clock.now_ms():
            return True
        try:
            principal = await identify(self._services, shown)
            if principal.key != self.owner:
                raise Unauthenticated("the credential belongs to another principal now")
        except CallerError as error:
            if self._credentials is shown:
                self._holder.feed(EndRequested(*end_connection(error, "auth", admitted=True)))
                return False
            return True
        if (
            self._credentials is shown
        ):  # otherwise a newer credential was taken meanwhile, and is the valid one
            self._admission = replace(known, principal=principal)
        return True

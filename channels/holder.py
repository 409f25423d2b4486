"""Who is at the other end of a connection, by which credential, and whether that still holds.

A credential is looked at when the connection is admitted, when the client shows another one, and at intervals: it may
have been withdrawn, and what it may do may have changed.
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
    """The connection whose other end this is."""

    @property
    def is_over(self) -> bool:
        """Whether nothing counts any more."""
        ...

    def feed(self, given: Input) -> None:
        """Tells the connection's machine what happened."""
        ...

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Runs beside the reader, and ends with the connection."""
        ...

    def supersede(self) -> None:
        """Ends it: the same device and tab has a newer one."""
        ...

    async def recheck_rights(self) -> None:
        """Looks whether all that is followed and served may still be."""
        ...


class HolderRights:
    """``owner`` is the key of the principal; empty before the credential was looked at."""

    __slots__ = (
        "_admission",
        "_again",
        "_credentials",
        "_holder",
        "_limits",
        "_loop",
        "_rechecking",
        "_services",
        "_timer",
        "_told_as",
        "owner",
    )

    def __init__(
        self, services: ChannelServices, limits: ChannelLimits, shown: Credentials, holder: Holder
    ) -> None:
        """``shown`` is what the handshake showed."""
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
        self._told_as: Principal | None = None

    @property
    def admission(self) -> Admission | None:
        """What the welcome said; None before it."""
        return self._admission

    @property
    def known(self) -> Admission:
        """The same, for what happens after the welcome only."""
        if self._admission is None:
            raise AssertionError("nothing is followed or called before the welcome")
        return self._admission

    async def identify(self, hello: Hello) -> Principal:
        """Looks at the credential. Nothing is written (CHN-11).

        Raises:
            PasserelleError: it opens no channel.
        """
        self._credentials = await show(self._services, hello, self._credentials)
        principal = await identify(self._services, self._credentials)
        self.owner = principal.key
        return principal

    async def admit(self, hello: Hello, principal: Principal) -> Admission:
        """Writes the record of the channel, and composes the welcome.

        Raises:
            StoreUnavailable: the record could not be written.
        """
        self._admission = await admit(self._services, self._limits, hello, principal)
        self._told_as = principal
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
        """When the credential ends, by the clock of the loop; None where it does not."""
        expires_ms = self.known.principal.expires_ms
        if expires_ms is None:
            return None
        return self._loop.time() + (expires_ms - self._services.clock.now_ms()) / 1000

    def recheck_later(self) -> None:
        """Connections that came together are not looked at together: each has a time of its own around the interval."""
        if not self._holder.is_over:
            spread = 0.75 + 0.5 * (crc32(self.known.channel.encode()) / _CRC_END)
            self._timer = self._loop.call_later(self._limits.recheck_s * spread, self.recheck)

    def recheck(self) -> None:
        """Looks at credential and rights now: at intervals, and when who may come in has changed."""
        if self._admission is None or self._holder.is_over:
            return
        if self._rechecking is not None:
            self._again = True  # what has changed may have been looked at already
            return
        self.stop()
        self._rechecking = self._holder.spawn(self._recheck_once())

    def stop(self) -> None:
        """Looks no more at intervals."""
        if self._timer is not None:
            self._timer.cancel()

    async def is_superseded(self) -> bool:
        """Whether the same device and tab has a newer connection, wherever; tells the store that this one is open."""
        known, services = self.known, self._services
        driver = services.links.find_driver(self.owner)
        newest = await services.channels.keep(known.channel, known.generation, driver)
        return newest > known.generation

    async def _recheck_once(self) -> None:
        """Notices a newer connection of this device, a credential that has fallen, and rights that have changed."""
        try:
            with suppress(RemoteError):  # asked again at the next round
                if not await self._recheck_caller():
                    return
                if await self.is_superseded():
                    self._holder.supersede()
                    return
                await self._holder.recheck_rights()
                await self._tell_withdrawn()
        finally:
            self._rechecking = None
        again, self._again = self._again, False
        if again:
            self.recheck()
        else:
            self.recheck_later()

    async def _tell_withdrawn(self) -> None:
        """Says which open questions the client knows of and may not see or answer any more.

        Where they cannot be read this is owed still, and done at the next round.
        """
        before, now = self._told_as, self.known.principal
        if before is None or before == now:
            return
        for action, why in await self._services.snapshots.read_withdrawn(before, now):
            self._holder.feed(NoticeDue(Withdrawn(action, why)))
        self._told_as = now

    async def _recheck_caller(self) -> bool:
        """Whether the credential still opens this channel; what it may do is what it may do now.

        One that has run out is the machine's business: it may still be renewed.
        """
        known, shown = self.known, self._credentials
        ends_ms = known.principal.expires_ms
        if ends_ms is not None and ends_ms <= self._services.clock.now_ms():
            return True
        try:
            principal = await identify(self._services, shown)
            if principal.key != self.owner:
                raise Unauthenticated("the credential is somebody else's now")
        except CallerError as error:
            if self._credentials is shown:
                self._holder.feed(EndRequested(*end_connection(error, "auth", admitted=True)))
                return False
            return True
        if self._credentials is shown:  # else a newer one was taken meanwhile, and counts
            self._admission = replace(known, principal=principal)
        return True

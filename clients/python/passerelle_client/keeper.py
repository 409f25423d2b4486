"""Keeps a client connected. When the server drains, the next link opens before the old one closes.

Between two attempts it waits a random time up to a bound that doubles (full jitter), unless the server sets a time. It
stops when a close code forbids a retry.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from passerelle.client.dialer import Dialer, Identity
from passerelle.client.items import Connecting, Offline, Stopped
from passerelle.client.link import Link
from passerelle.protocol.closing import is_retryable
from passerelle.protocol.concurrency import cancel_all
from passerelle.protocol.frames import Drain, Expiry, Renew

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.client.items import LinkStatus
    from passerelle.protocol.frames import Refusal, Subscribe

_RENEWS_BELOW_S: Final = 60


def draw() -> float:
    """Returns an unpredictable number from 0 to 1, so that clients do not reconnect at the same time."""
    return secrets.randbelow(2**32) / 2**32


class LinkKeeper:
    """``status`` is the link state; ``on_status`` is called with each change."""

    def __init__(
        self,
        identity: Identity,
        jitter: Callable[[], float],
        on_status: Callable[[LinkStatus], None] | None,
    ) -> None:
        self.status: LinkStatus = Connecting()
        self.jitter = jitter
        self._dialer = Dialer(identity, jitter)
        self._on_status = on_status
        self._dial: Callable[[], Awaitable[Link | Stopped]] = self._dial_bare
        self._replacement: asyncio.Task[Link | None] | None = None

    @property
    def is_replacing(self) -> bool:
        """Returns whether the next link is being opened while the current one is still open."""
        return self._replacement is not None

    async def run(
        self,
        serve: Callable[[Link], Awaitable[Stopped]],
        dial: Callable[[], Awaitable[Link | Stopped]] | None = None,
    ) -> Stopped:
        """Runs until no further attempt can succeed. ``serve`` reads a link and returns why it ended."""
        loop = asyncio.get_running_loop()
        self._dial = dial or self._dial
        while True:
            dialled = await self._await_replacement() or await self._dial()
            if isinstance(dialled, Link):
                begun_s = loop.time()
                ended = await serve(dialled)
                self._dialer.note_ended(loop.time() - begun_s)
            else:
                ended = dialled
            if self._replacement is not None:
                continue
            if not is_retryable(ended.code):
                return ended
            pause_s = self._dialer.choose_pause_s()
            self.set_status(Offline(ended.code, pause_s))
            await asyncio.sleep(pause_s)
            self.set_status(Connecting())

    async def dial(
        self, subscriptions: tuple[Subscribe, ...], resume: str | None
    ) -> Link | Stopped:
        """Makes one attempt, with the subscriptions of its hello."""
        return await self._dialer.dial(subscriptions, resume)

    def set_status(self, status: LinkStatus) -> None:
        """Stores a link state and notifies ``on_status``."""
        self.status = status
        if self._on_status is not None:
            self._on_status(status)

    def note_refusal(self, refusal: Refusal) -> None:
        """A fatal refusal may carry the time of the next attempt: keeps it."""
        if refusal.fatal:
            self._dialer.retry_s = refusal.retry_s

    async def handle_notice(self, link: Link, notice: Expiry | Drain) -> None:
        """Sends a new token before the credential expires; opens a new link when the server drains."""
        if isinstance(notice, Expiry):
            await self._renew(link, notice.expires_s)
        elif self._replacement is None:
            self._replacement = asyncio.create_task(self._replace(link, notice))

    async def end(self) -> None:
        """Cancels the link that is being opened."""
        if self._replacement is not None:
            await cancel_all([self._replacement])

    async def _dial_bare(self) -> Link | Stopped:
        return await self._dialer.dial((), None)

    async def _await_replacement(self) -> Link | None:
        replacement, self._replacement = self._replacement, None
        return None if replacement is None else await replacement

    async def _renew(self, link: Link, expires_s: int) -> None:
        """Sends a new token before the old one expires. A token passed as a text cannot be renewed."""
        if expires_s <= _RENEWS_BELOW_S and (token := await self._dialer.renew()) is not None:
            await link.send(Renew(token))

    async def _replace(self, link: Link, drain: Drain) -> Link | None:
        """Opens the next link first, then closes the old one, so that delivery is not interrupted."""
        await asyncio.sleep(drain.jitter_ms / 1000 * self.jitter())
        fresh = await self._dial()
        with suppress(OSError):
            await link.close()
        return fresh if isinstance(fresh, Link) else None

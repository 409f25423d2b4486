"""Outputs of agents by the operator's settings, and copies of files that are named by address (EXT-10).

Agents choose the addresses of files, so each one is screened like that of a webhook: by the allow-list, and again at
the moment of the connection. The target of a redirect is judged anew. No cookie, credential or proxy is used. A large
file may also be uploaded over HTTP with the credential of a channel: its address is one of the gateway's, and it
is handled like any other file.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias

from aiohttp import ClientError, ClientTimeout
from yarl import URL

from passerelle.core.agent_name import find_base
from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.ports.blobs import UPLOADED
from passerelle.delegation.runs.redaction import NO_REDACTION, Redaction
from passerelle.peers.sessions import PeerSessions
from passerelle.runtime.common.address_screen import REFUSED_ERRNO, AddressScreen
from passerelle.webhooks.addresses import WebhookRules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp import ClientResponse
    from aiohttp.abc import AbstractResolver

    from passerelle.core.ports.blobs import Uploads
    from passerelle.webhooks.addresses import Address

_REDIRECTS: Final = 3
_CHUNK: Final = 65_536
_MOVED: Final = frozenset({301, 302, 303, 307, 308})
_LATER: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
_SERVER_FAULT: Final = 500


@frozen
class Fetched:
    """The file, or its beginning. ``size`` is that of the whole file, as far as the server stated it."""

    content: bytes
    media_type: str
    size: int
    is_cut: bool


@frozen
class FileGone:
    """The file is not available there, now or later."""

    reason: str


@frozen
class FileUnavailable:
    """The file was not available now."""

    reason: str


FetchOutcome: TypeAlias = Fetched | FileGone | FileUnavailable


@frozen
class _Moved:
    to: str


class Fetcher:
    """Fetches files; ``close`` ends its connections."""

    def __init__(
        self,
        rules: WebhookRules,
        max_bytes: int,
        timeout_s: float,
        *,
        screen: AddressScreen | None = None,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._rules = rules
        self.limit(max_bytes, timeout_s)
        self._screened = PeerSessions(screen=screen or AddressScreen(), resolver=resolver)
        self._trusted = PeerSessions()

    def limit(self, max_bytes: int, timeout_s: float) -> None:
        """Sets the limits, from the next file on."""
        self._max_bytes = max_bytes
        self._timeout = ClientTimeout(total=timeout_s)

    async def fetch(self, url: str) -> FetchOutcome:
        """Fetches the file at ``url``; every failure is a value."""
        for _ in range(_REDIRECTS + 1):
            try:
                address = self._rules.judge(url)
            except InvalidInput as error:
                return FileGone(error.reason)
            outcome = await self._ask(address)
            if not isinstance(outcome, _Moved):
                return outcome
            url = outcome.to
        return FileGone("too many redirects")

    async def close(self) -> None:
        """Closes every connection."""
        await asyncio.gather(self._screened.close(), self._trusted.close())

    async def _ask(self, address: Address) -> FetchOutcome | _Moved:
        sessions = self._trusted if address.trusted else self._screened
        try:
            async with sessions.open("outputs").get(
                address.url,
                headers={"Accept-Encoding": "identity"},
                timeout=self._timeout,
                allow_redirects=False,
            ) as response:
                return await self._read(address, response)
        except TimeoutError:
            return FileUnavailable("no answer in time")
        except (ClientError, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno == REFUSED_ERRNO:
                return FileGone("its address is not allowed")
            return FileUnavailable("no connection")

    async def _read(self, address: Address, response: ClientResponse) -> FetchOutcome | _Moved:
        status = response.status
        if status in _MOVED and "Location" in response.headers:
            return _Moved(str(address.url.join(URL(response.headers["Location"]))))
        if status in _LATER or status >= _SERVER_FAULT:
            return FileUnavailable(f"HTTP {status}")
        if status != HTTPStatus.OK:
            return FileGone(f"HTTP {status}")
        content = bytearray()
        while len(content) <= self._max_bytes and (chunk := await response.content.read(_CHUNK)):
            content += chunk
        is_cut = len(content) > self._max_bytes
        if is_cut:
            response.close()
        kept = bytes(content[: self._max_bytes])
        size = max(response.content_length or 0, len(content))
        return Fetched(kept, response.content_type, size, is_cut)


async def fetch_upload(uploads: Uploads, agent: str, url: str) -> Fetched | FileGone:
    """The file at one of our addresses, if this agent has uploaded it.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    found = await uploads.get(find_base(agent), url.removeprefix(UPLOADED))
    if found is None:
        return FileGone("the agent has not uploaded it within the last day")
    return Fetched(found.content, found.media_type, len(found.content), is_cut=False)


@frozen
class OutputTerms:
    """The operator's settings. ``allow`` are origins that files may come from; none: every public https one.

    ``max_bytes`` and ``timeout_s`` are per file; ``upload_bytes`` is for all uploads of one agent within a day.
    """

    fetches: bool
    allow: Iterable[str]
    redactions: Iterable[tuple[str, str]]
    """Names and patterns."""
    keep_ms: int | None
    max_bytes: int
    upload_bytes: int
    timeout_s: float


@dataclass(slots=True)
class OutputPolicy:
    """Handles outputs by the operator's settings. ``keep_ms`` None keeps copies as long as everything else.

    ``max_bytes`` is per file, ``upload_bytes`` for all uploads of one agent within a day.
    """

    fetcher: Fetcher | None = None
    redaction: Redaction = NO_REDACTION
    keep_ms: int | None = None
    max_bytes: int = 0
    upload_bytes: int = 0
    _rules: WebhookRules = field(default_factory=lambda: WebhookRules(()))

    def reload(self, terms: OutputTerms) -> None:
        """Applies new settings; fetches in progress continue under the old ones."""
        self._rules.reload(terms.allow)
        self.redaction = Redaction(terms.redactions)
        self.keep_ms = terms.keep_ms
        self.max_bytes, self.upload_bytes = terms.max_bytes, terms.upload_bytes
        if not terms.fetches:
            self.fetcher = None
            return
        limits = (terms.max_bytes, terms.timeout_s)
        if self.fetcher is None:
            self.fetcher = Fetcher(self._rules, *limits)
        else:
            self.fetcher.limit(*limits)

    async def close(self) -> None:
        """Cancels fetches in progress."""
        if self.fetcher is not None:
            await self.fetcher.close()


def make_policy(terms: OutputTerms) -> OutputPolicy:
    """The policy for these settings."""
    policy = OutputPolicy()
    policy.reload(terms)
    return policy

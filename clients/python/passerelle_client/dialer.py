"""Dialling: the identity in the handshake, the result of an attempt, and the pause before the next one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ssl import SSLContext
from typing import Final, TypeAlias

from websockets.exceptions import InvalidHandshake, InvalidStatus

from passerelle.client.items import Stopped
from passerelle.client.link import ABNORMAL, Link, LinkRefused
from passerelle.core.back_off import find_pause
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.frames import CAPABILITIES, VERSION, Hello, Role, Subscribe

Credential: TypeAlias = "str | Callable[[], Awaitable[str]] | None"

STABLE_S: Final = 30.0
"""A link that lasted this long resets the pause to its shortest."""
_SDK: Final = "python/1"
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 20.0
_BAD_REQUEST: Final = range(400, 500)


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a device. ``token`` may be a function, which is called before each attempt."""

    url: str
    device: str
    token: Credential
    tab: str | None
    role: Role
    tls: SSLContext | None = None
    """None: the certificates that the system trusts."""


class Dialer:
    """Makes connection attempts, one at a time."""

    def __init__(self, identity: Identity, jitter: Callable[[], float]) -> None:
        self.retry_s: float | None = None
        """Seconds until the server accepts a new attempt, if it sent a time."""
        self._identity = identity
        self._jitter = jitter
        self._failures = 0

    async def dial(
        self, subscriptions: tuple[Subscribe, ...], resume: str | None
    ) -> Link | Stopped:
        """Returns a link after the welcome frame, or the reason for the failure."""
        self.retry_s = None
        try:
            hello = await self._compose_hello(subscriptions, resume)
            return await Link.dial(self._identity.url, hello, self._identity.tls)
        except LinkRefused as refused:
            self.retry_s = refused.retry_s
            return Stopped(refused.code, refused.reason)
        except InvalidStatus as answer:
            status = answer.response.status_code
            self.retry_s = _read_retry_after(answer)
            code = CloseCode.FORBIDDEN if status in _BAD_REQUEST else ABNORMAL
            return Stopped(code, f"the handshake was answered with {status}")
        except (OSError, InvalidHandshake, TimeoutError) as error:
            return Stopped(ABNORMAL, str(error))

    async def renew(self) -> str | None:
        """Returns a new token if the application passed a function, else None."""
        token = self._identity.token
        return None if token is None or isinstance(token, str) else await token()

    def note_ended(self, lasted_s: float) -> None:
        """Updates the backoff: a link ended after ``lasted_s`` seconds."""
        if lasted_s >= STABLE_S:
            self._failures = 0

    def choose_pause_s(self) -> float:
        """Full jitter: a random pause below a bound that doubles, unless the server sent a time."""
        self._failures += 1
        bound_s = find_pause(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, self._failures)
        return self._jitter() * bound_s if self.retry_s is None else self.retry_s

    async def _compose_hello(
        self, subscriptions: tuple[Subscribe, ...], resume: str | None
    ) -> Hello:
        identity = self._identity
        token = identity.token
        return Hello(
            version=VERSION,
            token=token if isinstance(token, str | None) else await token(),
            device=identity.device,
            tab=identity.tab,
            role=identity.role,
            sdk=_SDK,
            capabilities=CAPABILITIES,
            resume=resume,
            subscriptions=subscriptions,
        )


def _read_retry_after(answer: InvalidStatus) -> float | None:
    text = answer.response.headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else None

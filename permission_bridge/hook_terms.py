"""The configuration of a hook: its points, its timeout, and the effect of a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from passerelle.core.frozen import frozen
from passerelle.core.payloads.governance import HookPoint

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject

OnError: TypeAlias = Literal["closed", "open"]


@frozen
class HookTerms:
    """One hook: a Python callable (``call``, as ``module:name``) or an HTTP endpoint (``url``).

    ``on_error``: with ``closed`` a failure leads to an approval request, or to a denial where none is possible; with
    ``open`` it has no effect except a warning. ``key_env`` is the environment variable with the bearer token.
    """

    name: str
    points: frozenset[HookPoint]
    url: str | None = None
    call: str | None = None
    key_env: str | None = None
    timeout_ms: int = 2_000
    on_error: OnError = "closed"

    def state(self) -> JsonObject:
        """The part of the configuration that the policy version depends on."""
        return {
            "name": self.name,
            "points": [*sorted(self.points)],
            "url": self.url,
            "call": self.call,
            "timeoutMs": self.timeout_ms,
            "onError": self.on_error,
        }

"""What an operator says of a hook: where it is asked, how long it may take, and what its silence by failure means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from passerelle.core.payloads.governance import HookPoint

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject

OnError: TypeAlias = Literal["closed", "open"]


@dataclass(frozen=True, slots=True)
class HookTerms:
    """One hook: a Python callable (``call``, as ``module:name``) or an HTTP endpoint (``url``).

    ``on_error``: ``closed`` takes a failure for a question, or for a no where none can be asked; ``open`` takes it for
    silence, with a warning. ``key_env`` names the variable with the bearer that the endpoint is shown.
    """

    name: str
    points: frozenset[HookPoint]
    url: str | None = None
    call: str | None = None
    key_env: str | None = None
    timeout_ms: int = 2_000
    on_error: OnError = "closed"

    def state(self) -> JsonObject:
        """What of it is a part of the policy's version."""
        return {
            "name": self.name,
            "points": [*sorted(self.points)],
            "url": self.url,
            "call": self.call,
            "timeoutMs": self.timeout_ms,
            "onError": self.on_error,
        }

"""The operator's terms for outputs, with what carries them out; a reload changes them from the next output on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from passerelle.delegation.runs.outputs.fetcher import Fetcher
from passerelle.delegation.runs.outputs.redaction import NO_REDACTION, Redaction
from passerelle.webhooks.addresses import WebhookRules

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class OutputTerms:
    """What the operator wants done. ``allow`` are origins that files may come from; none: every public https one.

    ``max_bytes`` and ``timeout_s`` are of one file; ``upload_bytes`` of all that one agent has uploaded within a day.
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
    """What is done with outputs. ``keep_ms`` None keeps copies for as long as everything else.

    ``max_bytes`` is of one file, ``upload_bytes`` of all that one agent has uploaded within a day.
    """

    fetcher: Fetcher | None = None
    redaction: Redaction = NO_REDACTION
    keep_ms: int | None = None
    max_bytes: int = 0
    upload_bytes: int = 0
    _rules: WebhookRules = field(default_factory=lambda: WebhookRules(()))

    def reload(self, terms: OutputTerms) -> None:
        """Takes over other terms; what is being fetched goes on under the old ones."""
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
        """Ends what is being fetched."""
        if self.fetcher is not None:
            await self.fetcher.close()


def make_policy(terms: OutputTerms) -> OutputPolicy:
    """The policy by the terms."""
    policy = OutputPolicy()
    policy.reload(terms)
    return policy

"""The operator's terms for outputs, with what carries them out; a reload changes them from the next output on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from passerelle.gateway.outputs.fetcher import Fetcher
from passerelle.gateway.outputs.redaction import NO_REDACTION, Redaction
from passerelle.gateway.targets.addresses import WebhookRules

if TYPE_CHECKING:
    from passerelle.gateway.settings_outputs import OutputSettings


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

    def reload(self, settings: OutputSettings) -> None:
        """Takes over other terms; what is being fetched goes on under the old ones."""
        self._rules.reload(settings.allow)
        self.redaction = Redaction((rule.name, rule.pattern) for rule in settings.redact)
        self.keep_ms = settings.keep.ms if settings.keep else None
        self.max_bytes, self.upload_bytes = settings.max_bytes, settings.upload_bytes
        if not settings.fetch:
            self.fetcher = None
            return
        limits = (settings.max_bytes, settings.timeout.seconds)
        if self.fetcher is None:
            self.fetcher = Fetcher(self._rules, *limits)
        else:
            self.fetcher.limit(*limits)

    async def close(self) -> None:
        """Ends what is being fetched."""
        if self.fetcher is not None:
            await self.fetcher.close()


def make_policy(settings: OutputSettings) -> OutputPolicy:
    """The policy of the settings."""
    policy = OutputPolicy()
    policy.reload(settings)
    return policy

"""What webhooks stand on besides the store: who may be called, what seals their secrets, who signs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from passerelle.webhooks.addresses import WebhookRules
from passerelle.webhooks.push import Authority

if TYPE_CHECKING:
    from passerelle.runtime.common.sealer import Sealer


@dataclass(frozen=True, slots=True)
class Webhooks:
    """Without a sealer there are no push notifications, since there is nowhere to keep their secrets."""

    sealer: Sealer | None = None
    rules: WebhookRules = field(default_factory=lambda: WebhookRules(()))
    deliver_final: bool = False
    authority: Authority | None = None

"""Dependencies of webhooks besides the store: allowed addresses, the sealer of secrets, the signing authority."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from passerelle.core.frozen import frozen
from passerelle.webhooks.addresses import WebhookRules
from passerelle.webhooks.push import Authority

if TYPE_CHECKING:
    from passerelle.runtime.common.sealer import Sealer


@frozen
class Webhooks:
    """Without a sealer there are no push notifications, since their secrets cannot be stored."""

    sealer: Sealer | None = None
    rules: WebhookRules = field(default_factory=lambda: WebhookRules(()))
    deliver_final: bool = False
    authority: Authority | None = None

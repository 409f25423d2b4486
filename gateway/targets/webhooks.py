"""What webhooks stand on besides the store: who may be called, what seals their secrets, who signs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from passerelle.gateway.sealing import load_sealer
from passerelle.gateway.targets.addresses import WebhookRules
from passerelle.gateway.targets.push_headers import Authority

if TYPE_CHECKING:
    from pathlib import Path

    from passerelle.core.ports.chance import Clock
    from passerelle.gateway.sealing import Draw, Sealer
    from passerelle.gateway.settings import Settings
    from passerelle.gateway.signing.signer import Signer


@dataclass(frozen=True, slots=True)
class Webhooks:
    """Without a sealer there are no push notifications, since there is nowhere to keep their secrets."""

    sealer: Sealer | None = None
    rules: WebhookRules = field(default_factory=lambda: WebhookRules(()))
    deliver_final: bool = False
    authority: Authority | None = None


def load_webhooks(
    settings: Settings, data_dir: Path, signer: Signer | None, clock: Clock, draw: Draw
) -> Webhooks:
    """The webhooks of the settings.

    Raises:
        ConfigInvalid: a secret key that cannot be read or used.
    """
    section = settings.webhooks
    issuer = settings.public_url or "passerelle"
    authority = Authority(signer, issuer, clock) if signer and section.sign else None
    return Webhooks(
        load_sealer(settings, data_dir, draw),
        WebhookRules(section.allow),
        section.deliver_final,
        authority,
    )

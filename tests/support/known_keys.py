"""An authenticator that knows keys only, without devices and identity provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.gateway.auth.authenticator import Callers, KnownCallers
from passerelle.gateway.auth.keys import KeyRing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.gateway.settings.callers import ClientSettings
    from passerelle.runtime.common.secret import Secret


def make_authenticator(owner: Secret, clients: Iterable[ClientSettings]) -> KnownCallers:
    """Accepts the owner and the clients' keys, and rejects all others."""
    return KnownCallers(Callers(KeyRing((owner,), clients)))

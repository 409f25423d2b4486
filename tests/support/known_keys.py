"""An authenticator of keys alone, without devices and without an identity provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.gateway.auth.authenticator import Callers, KnownCallers
from passerelle.gateway.auth.keys import KeyRing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.gateway.settings.callers import ClientSettings
    from passerelle.runtime.common.secret import Secret


def make_authenticator(owner: Secret, clients: Iterable[ClientSettings]) -> KnownCallers:
    """Knows the owner and the keys of clients, and nobody else."""
    return KnownCallers(Callers(KeyRing((owner,), clients)))

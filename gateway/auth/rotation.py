"""Replaces the owner token of a store while gateways run on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.errors import ConfigInvalid
from passerelle.gateway.auth.access import find_place
from passerelle.gateway.auth.owner import rotate_owner_token
from passerelle.gateway.store_setup import reach_store
from passerelle.runtime.common.sealer import SETTING

if TYPE_CHECKING:
    from pathlib import Path

    from passerelle.gateway.settings.model import Settings
    from passerelle.runtime.common.secret import Secret


async def run_rotation(settings: Settings, *, key_lost: bool = False) -> tuple[Secret, Path]:
    """Returns the new token of the store in the settings, and the file in which this machine keeps it.

    Uses the embedded engine of a running gateway; if none runs, starts the engine for this.

    Raises:
        ConfigInvalid: there is no store, no key, or the key does not open the previous token.
        Conflict: another process replaced the token at the same moment.
        EngineFailed, StoreUnavailable: the store cannot be opened, read or written.
    """
    async with reach_store(settings) as store:
        place = find_place(settings, store)
        if place is None:
            raise ConfigInvalid(
                SETTING,
                "is not set, so each data directory has its own owner token: "
                "delete the file there and start again",
            )
        return await rotate_owner_token(place, key_lost=key_lost), place.path

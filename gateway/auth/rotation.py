"""Another owner token for a store, beside the gateways that work over it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from passerelle.core.errors import ConfigInvalid
from passerelle.gateway.auth.access import find_place
from passerelle.gateway.auth.owner import rotate_owner_token
from passerelle.runtime.common.sealer import SETTING
from passerelle.store.data_directory import read_stamp
from passerelle.store.engine import EmbeddedEngine, find_running
from passerelle.store.engine_process import EngineSettings
from passerelle.store.store import Store, StoreSettings

if TYPE_CHECKING:
    from pathlib import Path

    from passerelle.gateway.settings.model import Settings
    from passerelle.runtime.common.secret import Secret


async def run_rotation(settings: Settings, *, key_lost: bool = False) -> tuple[Secret, Path]:
    """A new token of the store of the settings, and the file in which this machine keeps it.

    The embedded engine of a gateway that runs is asked; where none runs it is started for this.

    Raises:
        ConfigInvalid: there is no store, no key, or the key does not open the token before.
        Conflict: somebody else made another one at the same moment.
        EngineFailed, StoreUnavailable: the store cannot be opened, read or written.
    """
    async with AsyncExitStack() as stack:
        url = await _find_store(stack, settings)
        opened = await Store.open(
            StoreSettings(url, settings.blob_place, durability=settings.store.durability)
        )
        place = find_place(settings, await stack.enter_async_context(opened))
        if place is None:
            raise ConfigInvalid(
                SETTING,
                "is not given, so each data directory has an owner token of its own: "
                "delete the file there and start again",
            )
        return await rotate_owner_token(place, key_lost=key_lost), place.path


async def _find_store(stack: AsyncExitStack, settings: Settings) -> str:
    if settings.redis_url is not None:
        return settings.redis_url.get_secret_value()
    data_dir = settings.data_dir
    if not data_dir.is_dir() or read_stamp(data_dir) is None:
        raise ConfigInvalid("data_dir", f"there is no store in {data_dir}")
    running = find_running(data_dir)
    if running is not None:
        return running
    wanted = EngineSettings(data_dir, settings.engine_path, settings.durability)
    return (await stack.enter_async_context(await EmbeddedEngine.start(wanted))).url

"""``passerelle store backup`` and ``restore``: the data directory of an embedded engine, copied while it works."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from passerelle.core.errors import ConfigInvalid
from passerelle.core.ids import ALL_SHARDS
from passerelle.gateway.store_setup import reach_store
from passerelle.runtime.common.version import VERSION
from passerelle.store.backup import Backup, restore_backup
from passerelle.store.log_rewrite import rewrite_logs

if TYPE_CHECKING:
    from passerelle.gateway.settings.model import Settings

_EXTERNAL = (
    "is given: its server is no part of a backup. Take a snapshot of the server as its makers advise, then copy the "
    "place of blobs, the folder forgotten in it last, and secret_key and data_dir beside them"
)


async def run_backup(settings: Settings, directory: Path) -> list[str]:
    """Copies the store of the settings, also beside a gateway; what was done, for people.

    Raises:
        ConfigInvalid: the engine is not the embedded one, or there is no store.
        EngineFailed: the store cannot be opened.
        InvalidInput: ``directory`` is not empty, or cannot be written.
        StoreUnavailable: the engine does not write its log anew, or does so each time that it is copied.
    """
    data_dir = _find_data_dir(settings)
    async with reach_store(settings) as store:
        # An engine whose disk is busy may answer before it writes; its log written anew has all that it had answered.
        await rewrite_logs(store.nodes)
        backup = Backup(data_dir, directory, VERSION, store.clock.now_ms())
        await asyncio.to_thread(backup.make)
    lines = [f"backed up: {len(backup.files):,} files, {backup.bytes:,} bytes in {directory}"]
    if settings.blobs is not None:
        lines.append(
            f"not covered: {settings.blobs}, the place of content and archive: copy it now, behind the backup, and the "
            "folder forgotten in it last"
        )
    if settings.secret_key is not None or settings.secret_key_file is not None:
        lines.append(
            "not covered: the secret key, which the settings give: nothing opens without it"
        )
    return [*lines, "it has keys and everything that was said: treat it like the store"]


async def run_restore(settings: Settings, backup: Path) -> list[str]:
    """Puts a backup into the data directory of the settings, and forgets again what it has a tombstone of; for people.

    Raises:
        ConfigInvalid: the engine is not the embedded one.
        InvalidInput: the data directory is not empty, or the backup is not whole.
        EngineFailed, StoreUnavailable: what was restored cannot be opened; it is there.
    """
    data_dir = _find_data_dir(settings)
    count = await asyncio.to_thread(restore_backup, backup, data_dir)
    async with reach_store(settings) as store:
        # What was forgotten behind the copy of the engine, and before that of the tombstones.
        now_ms = store.clock.now_ms()
        owners = await store.forgetting.resume(ALL_SHARDS, now_ms)
        sessions = await store.session_forgetting.resume(ALL_SHARDS, now_ms)
    again = [*(one.key.text for one in owners), *(one.id for one in sessions)]
    return [
        f"restored: {count:,} files in {data_dir}",
        *(f"forgotten again: tombstone {one}" for one in again),
        "what was forgotten since the backup: put the newest blobs/forgotten there before the first start",
        "then: passerelle verify --rebuild",
    ]


def _find_data_dir(settings: Settings) -> Path:
    if settings.redis_url is not None:
        raise ConfigInvalid("redis_url", _EXTERNAL)
    return settings.data_dir

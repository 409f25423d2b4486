"""``passerelle store backup`` and ``restore``: copies the data directory of an embedded engine while it runs."""

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
    "is set: a backup does not include its server. Take a snapshot of the server as documented there, then copy the "
    "location of blobs, with its folder forgotten last, and secret_key and data_dir"
)


async def run_backup(settings: Settings, directory: Path) -> list[str]:
    """Backs up the configured store, also while a gateway runs; returns a report.

    Raises:
        ConfigInvalid: the engine is not embedded, or there is no store.
        EngineFailed: the store cannot be opened.
        InvalidInput: ``directory`` is not empty or cannot be written.
        StoreUnavailable: the engine does not rewrite its log, or rewrites it during every copy.
    """
    data_dir = _find_data_dir(settings)
    async with reach_store(settings) as store:
        # with a busy disk the engine may acknowledge before it writes; a rewritten log has every acknowledged write
        await rewrite_logs(store.nodes)
        backup = Backup(data_dir, directory, VERSION, store.clock.now_ms())
        await asyncio.to_thread(backup.make)
    lines = [f"backed up: {len(backup.files):,} files, {backup.bytes:,} bytes in {directory}"]
    if settings.blobs is not None:
        lines.append(
            f"not covered: {settings.blobs}, the location of content and archive: copy it now, after the backup, with "
            "its folder forgotten last"
        )
    if settings.secret_key is not None or settings.secret_key_file is not None:
        lines.append(
            "not covered: the secret key from the settings: without it nothing can be decrypted"
        )
    return [*lines, "it contains keys and all messages: protect it like the store"]


async def run_restore(settings: Settings, backup: Path) -> list[str]:
    """Restores a backup into the configured data directory, repeats the deletions of its tombstones; returns a report.

    Raises:
        ConfigInvalid: the engine is not the embedded one.
        InvalidInput: the data directory is not empty, or the backup is incomplete.
        EngineFailed, StoreUnavailable: the data was restored, but the store cannot be opened.
    """
    data_dir = _find_data_dir(settings)
    count = await asyncio.to_thread(restore_backup, backup, data_dir)
    async with reach_store(settings) as store:
        # deletions that happened between the copy of the engine and the copy of the tombstones
        now_ms = store.clock.now_ms()
        owners = await store.forgetting.resume(ALL_SHARDS, now_ms)
        sessions = await store.session_forgetting.resume(ALL_SHARDS, now_ms)
    again = [*(one.key.text for one in owners), *(one.id for one in sessions)]
    return [
        f"restored: {count:,} files in {data_dir}",
        *(f"forgotten again: tombstone {one}" for one in again),
        "deletions since the backup: copy the newest blobs/forgotten there before the first start",
        "then: passerelle verify --rebuild",
    ]


def _find_data_dir(settings: Settings) -> Path:
    if settings.redis_url is not None:
        raise ConfigInvalid("redis_url", _EXTERNAL)
    return settings.data_dir

"""Opens the store of the settings: for a gateway, which waits until the store is up, and for a single command."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from passerelle.core.back_off import find_pause
from passerelle.core.errors import ConfigInvalid, StoreUnavailable
from passerelle.gateway.settings.values import load_sealer
from passerelle.runtime.common.clock import SystemIds
from passerelle.store.data_directory import is_in_use, read_stamp
from passerelle.store.engine import EmbeddedEngine, find_running
from passerelle.store.engine_process import EngineSettings
from passerelle.store.failures import REASONS
from passerelle.store.store import Store, StoreSettings

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncGenerator

    from structlog.typing import FilteringBoundLogger

    from passerelle.gateway.settings.model import Settings
    from passerelle.runtime.common.sealer import Sealer
    from passerelle.store.info import StoreDurability

_STOPPING_S: Final = 0.5
"""The engine of a killed gateway still answers for a moment, and is gone within this time."""
_PAUSE_FIRST_S: Final = 0.1
_PAUSE_LAST_S: Final = 2.0
_GROWN: Final = 0.9
"""A store that fills this part of its limit is older than the limit, or the machine has less memory now."""
_GROWN_TO: Final = 0.75
"""The part of the raised limit that it fills."""
_LOG_EVERY_S: Final = 10.0
_PERMANENT: Final = (REASONS["NOAUTH"], REASONS["WRONGPASS"], REASONS["NOPERM"])
"""Errors that no waiting resolves: a setting has to change."""

LOSSES: Final[dict[StoreDurability, str]] = {
    "aof": "a crash of the server's machine: the last second or two, unless appendfsync is always; "
    "a failover: what no replica had",
    "replicas": "a crash of all servers at once, or a primary that restarts before a replica takes its place: "
    "everything; a failover: what no replica had",
    "service": "as its operator states; the gateway does not check it",
}
"""What each kind of store can lose of acknowledged writes."""


async def fit_engine(engine: EmbeddedEngine, settings: Settings, log: FilteringBoundLogger) -> None:
    """Sets the engine's memory limit before anything is written; a store larger than a default limit gets a higher one.

    Raises:
        ConfigInvalid: the store is larger than the configured limit.
        StoreUnavailable: the engine does not answer.
    """
    limit, used = settings.memory.find_engine_limit(), (await engine.read_memory()).used
    is_grown = limit > 0 and used >= limit * _GROWN
    if is_grown and settings.memory.engine_bytes is None:
        limit = round(used / _GROWN_TO)
    elif limit and used >= limit:
        raise ConfigInvalid("memory.engine_bytes", f"the store uses {used:,} bytes already")
    await engine.set_memory_limit(limit)
    write = log.warning if is_grown else log.info
    write("engine.memory", used_bytes=used, limit_bytes=limit or None)


async def find_archive_obstacle(settings: Settings, store: Store) -> str | None:
    """Why no session can leave memory, whatever ``retention.memory`` states; None: nothing prevents it.

    Raises:
        StoreUnavailable: the store or the archive does not answer.
    """
    if settings.redis_url is not None and settings.blobs is None:
        return "sessions stay in memory: redis_url is set, and blobs names no place that all instances share"
    if not await store.shares_archive():
        return "sessions stay in memory: blobs differs from that of the other instances"
    return None


@asynccontextmanager
async def reach_store(settings: Settings, *, may_be_new: bool = False) -> AsyncGenerator[Store]:
    """The store of the settings for one command: the one of a running gateway, or one opened for the command.

    ``may_be_new``: creates a store in a data directory without one.

    Raises:
        ConfigInvalid: there is no store in the data directory, or the server cannot be used.
    DirectoryInUse: a gateway that uses the data directory is starting or stopping.
        EngineFailed, StoreUnavailable: the store cannot be opened.
    """
    async with AsyncExitStack() as stack:
        url = await _find_url(stack, settings, may_be_new=may_be_new)
        opened = await Store.open(
            StoreSettings(
                url,
                settings.blob_place,
                durability=settings.store.durability,
                owns_engine=settings.redis_url is None,
                sealer=_load_sealer(settings),
            )
        )
        yield await stack.enter_async_context(opened)


async def _find_url(stack: AsyncExitStack, settings: Settings, *, may_be_new: bool) -> str:
    if settings.redis_url is not None:
        return settings.redis_url.get_secret_value()
    data_dir = settings.data_dir
    is_new = not data_dir.is_dir() or read_stamp(data_dir) is None
    if is_new and not may_be_new:
        raise ConfigInvalid("data_dir", f"there is no store in {data_dir}")
    running = None if is_new else find_running(data_dir)
    if running is not None and await is_in_use(data_dir, _STOPPING_S):
        return running
    wanted = EngineSettings(data_dir, settings.engine_path, settings.durability)
    return (await stack.enter_async_context(await EmbeddedEngine.start(wanted))).url


async def open_store(
    settings: Settings, url: str, batches: Counter[int], log: FilteringBoundLogger
) -> Store:
    """Opens the store at ``url``; waits for one that ``redis_url`` names.

    Raises:
        ConfigInvalid: the server cannot be used as it is.
    StoreUnavailable: it does not answer in time, or rejects the credential.
    """
    alone_after = settings.replicated_acts_after
    wanted = StoreSettings(
        url,
        settings.blob_place,
        durability=settings.store.durability,
        replicated_acts=settings.replicated_acts,
        alone_after_s=None if alone_after is None else alone_after.seconds,
        batches=batches,
        owns_engine=settings.redis_url is None,
        sealer=_load_sealer(settings),
    )
    if settings.redis_url is None:
        return await Store.open(wanted)
    store = await _await_store(wanted, settings.store.wait.seconds, log)
    durability = settings.store.durability
    (log.info if durability == "aof" else log.warning)(
        "store.opened",
        primaries=len(store.nodes.all),
        durability=durability,
        can_lose=LOSSES[durability],
    )
    return store


def _load_sealer(settings: Settings) -> Sealer | None:
    """The sealer of the archive's data keys. Raises ConfigInvalid if the secret key cannot be read or used."""
    return load_sealer(settings, settings.data_dir, SystemIds().draw)


async def _await_store(wanted: StoreSettings, within_s: float, log: FilteringBoundLogger) -> Store:
    now_s = asyncio.get_running_loop().time
    until_s = now_s() + within_s
    tries, log_at_s = 0, now_s()
    while True:
        try:
            return await Store.open(wanted)
        except StoreUnavailable as error:
            tries += 1
            pause_s = find_pause(_PAUSE_FIRST_S, _PAUSE_LAST_S, tries)
            if error.reason.startswith(_PERMANENT) or now_s() + pause_s > until_s:
                raise
            if now_s() >= log_at_s:
                log_at_s = now_s() + _LOG_EVERY_S
                log.warning("store.awaited", reason=error.reason, left_s=round(until_s - now_s()))
        await asyncio.sleep(pause_s)

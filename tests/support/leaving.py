"""Every read of a gateway before its sessions have left memory, and after."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

import httpx
import yaml

from passerelle.core.ids import ALL_SHARDS
from passerelle.demo.processes import GatewayProcess
from passerelle.store.store import Store, StoreSettings
from tests.support.surface import Surface, find_changes, read_at_rest
from tests.support.waiting import wait_until

_WITHIN_S: Final = 60.0
_TIMEOUT_S: Final = 30.0
_LATER_MS: Final = 1 << 45


async def find_changed_reads(
    gateway: GatewayProcess, config: Path, least: int
) -> dict[str, tuple[str, str]]:
    """What the owner reads otherwise once all that is over has left, of a gateway that serves ``config``.

    It is started again with sessions that leave a second after their end. At least ``least`` of them have to.
    """
    settings = cast("dict[str, Any]", yaml.safe_load(config.read_text("utf-8")))
    agents = [str(one["name"]) for one in settings["agents"]]
    async with httpx.AsyncClient(
        base_url=gateway.url,
        headers=gateway.authorization,
        timeout=_TIMEOUT_S,
        trust_env=False,
    ) as http:

        async def read() -> dict[str, str]:
            return await Surface(http, {}, agents).read_all()

        before = await read_at_rest(read)
        await gateway.stop()
        config.write_text(yaml.safe_dump({**settings, "retention": {"memory": "1s"}}), "utf-8")
        await gateway.start()
        await wait_until_left(gateway, least)
        return find_changes(before, await read())


async def wait_until_left(gateway: GatewayProcess, least: int) -> None:
    """Until every session that is over is in the archive, which has at least so many."""
    socket = (gateway.data_dir / "socket").read_text("utf-8").strip()
    settings = StoreSettings(f"unix://{socket}", gateway.data_dir / "blobs")
    async with await Store.open(settings) as store:

        async def has_left() -> bool:
            return not await store.ended_sessions.find(ALL_SHARDS, _LATER_MS)

        await wait_until(has_left, _WITHIN_S, "what is over has left memory")
        assert len(await store.archive.list_sessions(ALL_SHARDS)) >= least

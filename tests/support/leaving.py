"""Compares all reads of a gateway before and after its sessions left memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

import httpx
import yaml

from passerelle.core.ids import ALL_SHARDS
from passerelle.demo.processes import GatewayProcess
from passerelle.gateway.settings.model import Settings
from passerelle.gateway.store_setup import reach_store
from passerelle.store.archive.archiver import join_parts, split_into_segments
from tests.support.surface import Surface, find_changes, read_at_rest

_TIMEOUT_S: Final = 30.0
_LATER_MS: Final = 1 << 45


async def find_changed_reads(
    gateway: GatewayProcess, config: Path, least: int
) -> dict[str, tuple[str, str]]:
    """Reads of the owner that change once all ended sessions of a gateway with ``config`` have left memory.

    At least ``least`` sessions have to leave. Answers that name an unfinished task may change.
    """
    given = cast("dict[str, Any]", yaml.safe_load(config.read_text("utf-8")))
    agents = [str(one["name"]) for one in given["agents"]]
    async with httpx.AsyncClient(
        base_url=gateway.url,
        headers=gateway.authorization,
        timeout=_TIMEOUT_S,
        trust_env=False,
    ) as http:
        going = set[str]()

        async def read() -> dict[str, str]:
            surface = Surface(http, {}, agents, going=going)
            return await surface.read_all()

        before = await read_at_rest(read, going)
        settings = Settings.model_validate({**given, "data_dir": gateway.data_dir})
        assert await leave_all(settings) >= least
        return find_changes(before, await read(), going)


async def leave_all(settings: Settings) -> int:
    """Archives every ended session, next to the gateway with these settings; returns the number of sessions."""
    left = 0
    async with reach_store(settings) as store:
        ended = await store.ended_sessions.find(ALL_SHARDS, _LATER_MS)
        parts = (
            (shard, part) for shard, some in ended.items() for part in split_into_segments(some)
        )
        for segment in join_parts(parts):
            archived = await store.archiver.archive_together(segment)
            assert archived.stay == []
            left += len(archived.sessions)
    return left

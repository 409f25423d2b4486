"""Compares every read of the caller with all ended sessions in the archive and with all in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import httpx
import yaml

from passerelle.core.ids import ALL_SHARDS, shard_of
from passerelle.store.archive.archiver import join_parts, split_into_segments
from tests.support.surface import Surface, find_changes, read_at_rest

if TYPE_CHECKING:
    from passerelle.store.store import Store
    from tests.chaos.merges import Merges
    from tests.chaos.site import Site
    from tests.chaos.verdict import Verdict

_LATER_MS: Final = 1 << 45
_MOST_SHOWN: Final = 20
_SHOWN: Final = 2_000


async def prove_reads(site: Site, store: Store, merges: Merges, key: str, verdict: Verdict) -> str:
    """Compares the reads; returns their number as a line. One of the stopped gateways runs afterwards."""
    await _leave_all(store)
    await merges.merge_all()
    archived = await _read(site, key)
    sessions = await store.archive.list_sessions(ALL_SHARDS)
    await _serve_without_archiving(site)
    for session in sessions:
        if not await store.log.restore(shard_of(session), session):
            verdict.blame("", f"{session} does not come back from the archive")
    if left := await store.archive.list_sessions(ALL_SHARDS):
        verdict.blame("", f"{len(left)} sessions are in the archive still")
    changes = find_changes(await _read(site, key), archived)
    for asked, (kept, left_memory) in [*changes.items()][:_MOST_SHOWN]:
        verdict.blame("", f"{asked}: {kept[:_SHOWN]} became {left_memory[:_SHOWN]} in the archive")
    done = f"{merges.merged} segments merged and {merges.cut} merges cut off"
    return f"chaos: {len(archived)} reads over {len(sessions)} sessions compared, {len(changes)} differ; {done}"


async def _read(site: Site, key: str) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {key}"}
    url = site.gateways[0].url
    async with httpx.AsyncClient(
        base_url=url, headers=headers, trust_env=False, timeout=30
    ) as http:
        return await read_at_rest(lambda: Surface(http, {}, [*site.agents]).read_all())


async def _leave_all(store: Store) -> None:
    """Archives what the gateways have not archived yet. If a gateway archives it at the same time, that counts too."""
    ended = await store.ended_sessions.find(ALL_SHARDS, _LATER_MS)
    parts = ((shard, part) for shard, some in ended.items() for part in split_into_segments(some))
    for segment in join_parts(parts):
        await store.archiver.archive_together(segment)


async def _serve_without_archiving(site: Site) -> None:
    await asyncio.gather(*(gateway.stop() for gateway in site.gateways))
    config = Path(site.gateways[0].folder) / "passerelle.yaml"
    given = cast("dict[str, Any]", yaml.safe_load(config.read_text("utf-8")))
    given["retention"] = {"memory": None}
    config.write_text(yaml.safe_dump(given), encoding="utf-8")
    await site.start_gateway(0)

"""``passerelle store stats``: reports the content of the store, as text or JSON."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from passerelle.cli.verbs.verb import format_table
from passerelle.core.frozen import frozen
from passerelle.core.wire.display import format_count
from passerelle.core.wire.times import format_ms
from passerelle.gateway.store_setup import reach_store
from passerelle.store.inventory import DAY_MS, OTHER, Inventory, KeyUsage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import JsonObject
    from passerelle.gateway.settings.model import Settings

_AGES_DAYS: Final = (1, 7, 30)
"""Ages in days of the sessions that are counted as ended."""
_GROWTH_DAYS: Final = 7
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_STEP: Final = 1000


@frozen
class StoreStats:
    """The measurements of a store. ``blobs`` is the usage of the content folder; None for a bucket."""

    found: Inventory
    place: Path | str
    blobs: KeyUsage | None

    @property
    def lines(self) -> Iterator[str]:
        """Returns the report as lines."""
        found = self.found
        for name, facts in found.primaries:
            limit = facts.maxmemory_bytes
            share = f"{facts.used_bytes / limit:.0%} of {_show(limit)}" if limit else "no limit"
            version = ".".join(map(str, facts.version))
            yield f"{facts.engine} {version} at {name}: {_show(facts.used_bytes)} in use, {share}"
        yield ""
        rows = sorted(found.kinds.items(), key=lambda row: (row[0] == OTHER, -row[1].bytes))
        total = found.total
        table = [(kind, f"{one.keys:,}", _show(one.bytes)) for kind, one in rows if one.keys]
        yield from format_table(("kind", "keys", "bytes"), [*table, _row("total", total)])
        yield ""
        ongoing = sum(one.ended_ms is None for one in found.sessions)
        yield f"sessions with tasks: {len(found.sessions):,}, {ongoing:,} with something open"
        if found.tasks_ms:
            yield from self._describe_tasks()
        if self.blobs is None:
            yield f"content: in {self.place}, not measured"
        else:
            yield f"content in {self.place}: {self.blobs.keys:,} files, {_show(self.blobs.bytes)}"

    def _describe_tasks(self) -> Iterator[str]:
        found, count = self.found, len(self.found.tasks_ms)
        oldest = format_ms(min(found.tasks_ms))[:10]
        mean = _show(found.total.bytes // count)
        yield f"tasks: {count:,}, the oldest of {oldest}; {mean} each, all kinds counted"
        growth = _show(found.find_growth(_GROWTH_DAYS))
        yield f"growth: about {growth} a day (tasks of the last {_GROWTH_DAYS} days)"
        for days in _AGES_DAYS:
            ended = found.find_ended(days * DAY_MS)
            since = "a day" if days == 1 else f"{days} days"
            size = _show(ended.bytes)
            yield f"ended for more than {since}: {format_count(ended.keys, 'session')}, about {size}"

    def to_json(self) -> JsonObject:
        """Returns the report as JSON; sizes are in bytes."""
        found = self.found
        return {
            "at": format_ms(found.now_ms),
            "primaries": [
                {
                    "name": name,
                    "engine": facts.engine,
                    "version": ".".join(map(str, facts.version)),
                    "usedBytes": facts.used_bytes,
                    "maxBytes": facts.maxmemory_bytes or None,
                }
                for name, facts in found.primaries
            ],
            "kinds": {kind: _to_json(one) for kind, one in sorted(found.kinds.items()) if one.keys},
            "total": _to_json(found.total),
            "sessions": len(found.sessions),
            "openSessions": sum(one.ended_ms is None for one in found.sessions),
            "tasks": len(found.tasks_ms),
            "oldestTask": format_ms(min(found.tasks_ms)) if found.tasks_ms else None,
            "growthBytesPerDay": found.find_growth(_GROWTH_DAYS),
            "ended": [
                {"days": days, "sessions": ended.keys, "bytes": ended.bytes}
                for days in _AGES_DAYS
                for ended in (found.find_ended(days * DAY_MS),)
            ],
            "content": None if self.blobs is None else _to_json(self.blobs),
        }


async def run_stats(settings: Settings) -> StoreStats:
    """Measures the configured store, also while a gateway runs; changes nothing.

    Raises:
        ConfigInvalid: there is no store in the data directory, or the server cannot be used.
        EngineFailed, StoreUnavailable: the store cannot be opened, read or measured.
    """
    async with reach_store(settings) as store:
        found = await store.inventory.measure()
        facts = await store.read_facts()
        found.primaries = [(node.endpoint.name, node_facts) for node, node_facts in facts.items()]
        found.now_ms = store.clock.now_ms()
    place = settings.blob_place
    blobs = await asyncio.to_thread(_measure, place) if isinstance(place, Path) else None
    return StoreStats(found, place, blobs)


def _measure(folder: Path) -> KeyUsage:
    amount = KeyUsage()
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                amount.add(path.stat().st_size)
        except FileNotFoundError:
            continue  # it has expired meanwhile
    return amount


def _row(name: str, amount: KeyUsage) -> tuple[str, str, str]:
    return name, f"{amount.keys:,}", _show(amount.bytes)


def _to_json(amount: KeyUsage) -> JsonObject:
    return {"count": amount.keys, "bytes": amount.bytes}


def _show(size: int) -> str:
    """Formats bytes in the unit with at most three digits before the point."""
    value, unit = float(size), 0
    while value >= _STEP and unit < len(_UNITS) - 1:
        value, unit = value / _STEP, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"

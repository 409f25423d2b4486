"""Recent agent observations of each instance, for the others: one expiring value per instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.ids import Shard
from passerelle.store import keys
from passerelle.store.connection import pack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from passerelle.store.nodes import Nodes

KEEP_MS: Final = 60_000


class RedisAgentReports:
    """``core.ports.agent_reports.AgentReports``. All raise StoreUnavailable where the store does not answer."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def put(self, instance: str, report: bytes) -> None:
        """Replaces the instance's report; it expires after ``KEEP_MS``."""
        name = keys.agent_report(Shard(0), instance)
        await self._nodes.update(Shard(0), pack("SET", name, report, "PX", KEEP_MS))

    async def read(self, instances: Sequence[str]) -> Mapping[str, bytes]:
        """The reports of these instances, in one round trip; instances without a report are missing."""
        if not instances:
            return {}
        commands = [pack("GET", keys.agent_report(Shard(0), one)) for one in instances]
        found = await self._nodes.query_all(Shard(0), *commands)
        said = zip(instances, found, strict=True)
        return {name: report for name, report in said if isinstance(report, bytes)}

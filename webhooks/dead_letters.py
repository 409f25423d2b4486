"""Lists webhooks whose deliveries fail, and retries them from the last confirmed cursor.

The owner of a task sees its webhooks; a principal with the operate scope sees all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.members import as_list
from passerelle.core.commands import DeliveryRetried
from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.frozen import frozen
from passerelle.core.principal import AccessScope
from passerelle.core.wire.times import format_ms

if TYPE_CHECKING:
    from passerelle.core.commands import ListDeliveries, RetryDelivery
    from passerelle.core.ids import Shard
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.store.targets import RedisTargets, StuckTarget
    from passerelle.webhooks.kinds import TargetDescription, TargetKind

_MOST_LOOKED_AT: Final = 5_000
_TIME_DIGITS: Final = 15


@frozen
class DeadLetters:
    """Lists and revives targets."""

    targets: RedisTargets
    kinds: Mapping[str, TargetKind]
    news: Callable[[Shard], None]
    """Called with a shard that has a delivery to make."""

    async def list(self, principal: Principal, query: ListDeliveries) -> JsonObject:
        """One page of failing targets, the longest failing first; raises InvalidInput for a wrong page token."""
        found: list[JsonObject] = []
        before = _read_token(query.page_token)
        last = ""
        for stuck in await self.targets.list_stuck(_MOST_LOOKED_AT):
            if before is not None and (stuck.since_ms, stuck.name) <= before:
                continue
            described = await self._describe(stuck.name)
            if described is None or not _sees(principal, described):
                continue
            shown = await self._show(stuck, described)
            if shown is None:
                continue
            if len(found) == query.limit:
                return {"deliveries": as_list(found), "nextPageToken": last}
            found.append(shown)
            last = f"{stuck.since_ms}.{stuck.name}"
        return {"deliveries": as_list(found), "nextPageToken": ""}

    async def retry(self, principal: Principal, command: RetryDelivery) -> DeliveryRetried:
        """Retries the deliveries of a target now.

        Raises:
            NotFound: there is no such target that the caller may see.
        """
        described = await self._describe(command.delivery)
        if described is None or not _sees(principal, described):
            raise NotFound("delivery", command.delivery)
        match await self.targets.revive(described.stream, command.delivery):
            case "ok":
                self.news(described.stream.shard)
                return DeliveryRetried(command.delivery, "retried")
            case "live":
                return DeliveryRetried(command.delivery, "live")
            case _:
                raise NotFound("delivery", command.delivery)

    async def _describe(self, name: str) -> TargetDescription | None:
        kind = self.kinds.get(name.partition(":")[0])
        return await kind.describe(name) if kind else None

    async def _show(self, stuck: StuckTarget, described: TargetDescription) -> JsonObject | None:
        target = await self.targets.find(stuck.stream, stuck.name)
        if target is None:
            return None
        return {
            "delivery": stuck.name,
            **described.members,
            "state": target.state,
            "reason": target.reason,
            "tries": target.tries,
            "since": format_ms(stuck.since_ms),
            "cursor": target.cursor,
            "stream": stuck.stream.id,
        }


def _read_token(token: str | None) -> tuple[int, str] | None:
    """The position of the last target on the previous page."""
    if not token:
        return None
    since, dot, name = token.partition(".")
    if not dot or not since.isascii() or not since.isdecimal() or len(since) > _TIME_DIGITS:
        raise InvalidInput("pageToken", "is no page token of this list")
    return int(since), name


def _sees(principal: Principal, described: TargetDescription) -> bool:
    return AccessScope.OPERATE in principal.scopes or described.owner == principal.key

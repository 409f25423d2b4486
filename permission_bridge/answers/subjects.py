"""The complete content of an approval request: part of the request, or a blob if it is too large (P6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.approval.audience import may_read
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import NotFound, StoreUnavailable, TooLarge
from passerelle.core.frozen import frozen
from passerelle.core.policy.requests import ActionContent
from passerelle.core.wire.canonical import canonicalize, digest
from passerelle.core.wire.codec import to_wire
from passerelle.permission_bridge.answers.actions import find_record, has_asked

if TYPE_CHECKING:
    from passerelle.core.policy.requests import GetActionContent
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.answers.actions import Actions

LIMIT_BYTES: Final = 1024 * 1024
"""Limit of one answer; larger content is read in parts, as an output of its task."""


@frozen
class Subjects:
    """Reads the content of requests."""

    actions: Actions
    blobs: Blobs

    async def read(self, principal: Principal, query: GetActionContent) -> JsonObject:
        """The complete content and its digest, taken from the request if that does not show the content itself.

        Raises:
            NotFound: no request that the caller may see or asked for.
            TooLarge: the content exceeds the limit.
            StoreUnavailable: the content cannot be read now.
        """
        action = query.action_id
        record = find_record(await self.actions.load(action), action)
        if not (may_read(record, principal) or has_asked(record, principal)):
            raise NotFound("action", action)
        named = text_at(record.request.subject, "contentDigest")
        packed = (
            await self._fetch(action, named)
            if named
            else canonicalize(object_at(record.request.subject, "content"))
        )
        content: JsonObject = orjson.loads(packed)
        return to_wire(
            ActionContent(
                action_id=action,
                rev=record.rev,
                digest=record.request.digest,
                content=content,
                content_digest=named or digest(content),
                bytes=len(packed),
            )
        )

    async def _fetch(self, action: str, named: str) -> bytes:
        shard = EntityRef(EntityKind.ACTION, action).shard
        packed = await self.blobs.get(shard, named.removeprefix("sha256:"))
        if packed is None:
            raise StoreUnavailable(f"the content of {action} is missing", "no")
        if len(packed) > LIMIT_BYTES:
            raise TooLarge("the content", LIMIT_BYTES)
        return packed

"""Reads what may be done in a thread, and who is asked at this moment (SNAP-9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import NotFound
from passerelle.core.ids import read_shard
from passerelle.core.read_models.permissions import PermissionState, show_permissions
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.wire.codec import to_wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.control.models import Models
    from passerelle.core.policy.requests import GetPermissions
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.answers.granting import Granting
    from passerelle.permission_bridge.rules import Policy


@dataclass(frozen=True, slots=True)
class PermissionSummaries:
    """Composes the summary of a thread."""

    models: Models
    granting: Granting
    find_rules: Callable[[], Policy]

    async def read(self, principal: Principal, query: GetPermissions) -> JsonObject:
        """The summary.

        Raises:
            NotFound: no such thread of the caller.
        """
        writes = self.granting.writes
        ref = EntityRef(EntityKind.THREAD, query.thread_id)
        known = await writes.load([ref]) if read_shard(query.thread_id) is not None else {}
        thread = known[ref].record if known else None
        if not isinstance(thread, ThreadRecord) or thread.owner != principal.key:
            raise NotFound("thread", query.thread_id)
        _, head, tasks, _ = await self.models.load_session(principal, thread.session_id)
        mine = [task for task in tasks if task.thread_id == thread.thread_id]
        refs = [EntityRef(EntityKind.ACTION, name) for task in mine for name in task.open_actions]
        held = await writes.load(refs) if refs else {}
        actions = [one.record for one in held.values() if isinstance(one.record, ActionRecord)]
        state = await self._find_state(principal)
        return to_wire(show_permissions(thread, head.sequence, state, actions))

    async def _find_state(self, principal: Principal) -> PermissionState:
        rules, now_ms = self.find_rules(), self.granting.writes.clock.now_ms()
        grants = await self.granting.read(principal)
        live = [one for one in grants.grants if one.judge(now_ms) == "live"] if grants else []
        until = grants.bypass_until if grants and grants.bypasses(now_ms) else None
        return PermissionState(rules.mode, rules.version, len(live), until)

"""Content stored outside of facts: a reader of the task may read the content its facts name (ENV-10, EXT-10).

Copies of files may expire. Then a fact records that, and readers of the reference get the state ``expired``.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.batch import EntityKind, EntityRef, IdempotencyRow
from passerelle.core.decision import MAX_EVENTS
from passerelle.core.errors import NotFound, StoreUnavailable
from passerelle.core.events import Fact
from passerelle.core.frozen import frozen
from passerelle.core.payloads.run import COPY, OutputExpired
from passerelle.core.read_models.artifacts import OutputContent
from passerelle.core.task import machine as tasks
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.codec import to_wire
from passerelle.runtime.common.calls import require_operation
from passerelle.runtime.records.contents import shard_of_task
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from passerelle.core.commands import GetOutput
    from passerelle.core.decision import Decision
    from passerelle.core.ports.blobs import Copies
    from passerelle.core.ports.due import DropRow, DueRow
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.outputs import OutputPolicy
    from passerelle.runtime.records.contents import Contents
    from passerelle.runtime.records.ownership import Ownership

OUTPUT_ROW: Final = "output"
_KEPT_MS: Final = 600_000


@frozen
class Outputs:
    """Reads outputs, and expires copies."""

    ownership: Ownership
    contents: Contents
    copies: Copies
    policy: OutputPolicy

    async def read(self, principal: Principal, query: GetOutput) -> JsonObject:
        """A part of the content behind a reference.

        Raises:
            NotFound: no task of the caller, or none of its facts references the content.
            StoreUnavailable: it cannot be read now.
        """
        owned = await self.ownership.find(principal, query.task, None, hidden=True)
        record = owned.record
        require_operation(principal, record.peer or "", Method.GET_TASK)
        found = await self.contents.find_ref(record, query.sha256)
        if found is None:
            raise NotFound("output", query.sha256)
        name, ref = found
        is_copy = name.startswith(COPY)
        content = await (self.copies if is_copy else self.contents.blobs).get(
            shard_of_task(record), query.sha256
        )
        if content is None and not is_copy:
            raise StoreUnavailable(f"blob {query.sha256[:12]} is missing", "no")
        part = None if content is None else content[query.offset : query.offset + query.limit]
        return to_wire(
            OutputContent(
                sha256=query.sha256,
                state="expired" if part is None else "here",
                name=name,
                offset=query.offset,
                content=None if part is None else base64.b64encode(part).decode(),
                size=ref.size if content is None else len(content),
                media_type=ref.media_type,
                preview=ref.preview,
                url=ref.url,
            )
        )

    async def expire(self, row: DueRow, now_ms: int, drop: DropRow) -> None:
        """``output:<task>``: removes the copies of a task, and records that.

        A copy that another task has stored since is kept.
        """
        record, keep_ms = (
            await self.ownership.writes.read(TaskRecord, row.entity),
            self.policy.keep_ms,
        )
        copies = await self.contents.list_copies(record) if record else []
        if record is None or keep_ms is None or not copies:
            await drop(EntityRef(EntityKind.TASK, row.entity).shard, row)
            return
        for sha256 in copies:
            await self.copies.expire(shard_of_task(record), sha256, now_ms - keep_ms)
        facts = [
            Fact(tasks.scope_of(record), OutputExpired("artifact", sha256))
            for sha256 in copies[:MAX_EVENTS]
        ]
        # No record changes, so this row distinguishes a retry from a second fact (I2).
        key = f"{row.member}:{row.token}"

        def body(decision: Decision) -> AppendOptions:
            decision.add(facts)
            return AppendOptions(claim=row, idem=IdempotencyRow(key, key, b"", _KEPT_MS))

        task = EntityRef(EntityKind.TASK, record.task_id)
        await self.ownership.writes.decide(record.session_id, [task], body)

"""The open approvals that tasks wait for, and the rules that require them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from passerelle.core.approval.record import ActionRecord
from passerelle.core.events import decode_event
from passerelle.core.payloads.approval import PermissionEvaluated
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.read_models.blockers import AskedQuestion, classify, list_asking_rules
from passerelle.core.task.status import ENDED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.task.record import TaskRecord
    from passerelle.runtime.records.writes import Writes

_NEAR: Final = 8
"""Facts read before an approval: its evaluation is right before it, in the same append."""


async def load_questions(writes: Writes, tasks: Iterable[TaskRecord]) -> dict[str, AskedQuestion]:
    """The open approvals of the tasks that have not ended, by id; without any, nothing is read.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    named = [name for one in tasks if one.status not in ENDED for name in one.open_actions]
    found = await writes.read_all(ActionRecord, named)
    rules = await asyncio.gather(*(_find_rules(writes, record) for record in found.values()))
    asked = zip(found.values(), rules, strict=True)
    return {record.request.action_id: AskedQuestion(record, asking) for record, asking in asked}


async def _find_rules(writes: Writes, record: ActionRecord) -> tuple[str, ...]:
    """The rules that require approval of a message; for other approvals nothing is read."""
    if classify(record.request) != "policy":
        return ()
    stream = StreamRef(StreamKind.SESSION, record.scope.session_id)
    after = max(0, record.first_seq - 1 - _NEAR)
    for entry in await writes.log.read_page(stream, after, _NEAR):
        judged = decode_event(entry.data).fact.payload
        if (
            isinstance(judged, PermissionEvaluated)
            and judged.evaluation_id == record.request.evaluation_id
        ):
            return list_asking_rules(judged)
    return ()

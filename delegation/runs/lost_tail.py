"""Whether the store still has what it acknowledged to a run, and what becomes of a run that lost a part of it.

*Lost* means a lower version of a record than one that was seen, the same version by another operation, or, at a higher
version, our last event not at its sequence and chain. A write of another process is no loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.event_chain import extend_chain
from passerelle.core.facts import ErrorCategory, ErrorDetail
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import UNDRIVEN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.batch import EntityRef
    from passerelle.core.decision import Held
    from passerelle.core.machine import Record
    from passerelle.core.ports.log import EventLog

HISTORY_LOST: Final = "history_lost"
"""The code of the warning in a task whose tail was lost, and of the failure if its agent cannot repeat it."""


async def has_lost_tail(
    log: EventLog,
    held: Mapping[EntityRef, Held],
    stored: Mapping[EntityRef, Held],
    session: str,
    last: tuple[int, str] | None,
) -> bool:
    """Whether acknowledged data is gone: of the ``held`` records, or our ``last`` event.

    Reads the event only where another writer has written since.

    Raises:
        StoreUnavailable: it cannot be read.
    """
    is_newer = False
    for ref, one in held.items():
        seen, now = one.stamp, stored[ref].stamp
        if now.version < seen.version or (now.version == seen.version and now.op != seen.op):
            return True
        is_newer = is_newer or now.version > seen.version
    return is_newer and last is not None and not await has_event(log, session, *last)


async def has_event(log: EventLog, session: str, sequence: int, chain: str) -> bool:
    """Whether an event is at its place in the history of a session, as it was acknowledged.

    Raises:
        StoreUnavailable: it cannot be read.
    """
    head, page = await log.read_resume(StreamRef(StreamKind.SESSION, session), sequence - 1, 1)
    if head is None or head.sequence < sequence:
        return False
    if not page or page[0].sequence != sequence:
        return True  # it was archived: archived events were stored long before
    return extend_chain(page[0].previous, page[0].event_id) == chain


def may_go_on(record: Record | None) -> bool:
    """Whether the record as it is stored now can take a whole answer of the agent."""
    return (
        isinstance(record, TaskRecord) and record.run is not None and record.status not in UNDRIVEN
    )


def explain_lost(agent: str) -> ErrorDetail:
    """The failure of a task whose agent cannot repeat what was lost."""
    reason = (
        "the store has lost a part of what the agent had said, after a failover or a restore, "
        f"and agent {agent!r} cannot be asked for it"
    )
    return ErrorDetail(HISTORY_LOST, ErrorCategory.STORE, reason, source=agent)

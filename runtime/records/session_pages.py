"""A caller's sessions of one kind, such as jobs, in its index: one more, and pages, newest first."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import StoreUnavailable
from passerelle.core.index_changes import list_session
from passerelle.core.session.machine import SessionRecord
from passerelle.runtime.records.task_pages import read_token, write_token

if TYPE_CHECKING:
    from passerelle.core.decision import Held
    from passerelle.core.ports.projections import Projections
    from passerelle.runtime.records.writes import Writes


async def index_session(projections: Projections, held: Held) -> None:
    """Adds it to the index before the answer; the relay writes the same rows, so a failure loses nothing."""
    record = held.record
    with suppress(StoreUnavailable):
        for row in list_session(record) if isinstance(record, SessionRecord) else ():
            await projections.index_now(row)


async def read_session_page(
    projections: Projections, writes: Writes, owner: str, part: str, token: str | None, size: int
) -> tuple[list[tuple[SessionRecord, Held]], str]:
    """Up to ``size`` sessions, and the token of the next page, empty if there is none.

    A session that was just deleted stays listed until the relay removes it; it is left out if its record is gone.

    Raises:
        InvalidInput: the page token is not from this list.
    """
    page = await projections.read_index(owner, part, read_token(token), size + 1)
    shown = page[:size]
    refs = [EntityRef(EntityKind.SESSION, name) for name, _ in shown]
    held = await writes.load(refs)
    found = [
        (one.record, one) for ref in refs if isinstance((one := held[ref]).record, SessionRecord)
    ]
    more = len(page) > len(shown)
    return found, write_token((shown[-1][1], shown[-1][0])) if more else ""

"""Pages of a caller's sessions of one kind, such as those that are jobs: by an index of theirs, the newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.session.machine import SessionRecord
from passerelle.runtime.records.task_pages import read_token, write_token

if TYPE_CHECKING:
    from passerelle.core.decision import Held
    from passerelle.core.ports.projections import Projections
    from passerelle.runtime.records.writes import Writes


async def read_session_page(
    projections: Projections, writes: Writes, owner: str, part: str, token: str | None, size: int
) -> tuple[list[tuple[SessionRecord, Held]], str]:
    """Up to ``size`` sessions, and the token of the next page, empty where there is none.

    One that was deleted a moment ago is listed until the relay has come by; it is left out where nothing of it is left.

    Raises:
        InvalidInput: a page token that is not ours.
    """
    page = await projections.read_index(owner, part, read_token(token), size + 1)
    shown = page[:size]
    refs = [EntityRef(EntityKind.SESSION, name) for name, _ in shown]
    held = await writes.load(refs) if refs else {}
    found = [
        (one.record, one) for ref in refs if isinstance((one := held[ref]).record, SessionRecord)
    ]
    more = len(page) > len(shown)
    return found, write_token((shown[-1][1], shown[-1][0])) if more else ""

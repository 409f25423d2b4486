"""Sessions that callers create by command (empty ones, jobs, schedules): their creation, and pages of one kind."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import StoreUnavailable
from passerelle.core.index_changes import list_session
from passerelle.core.session import machine
from passerelle.core.session.machine import SessionRecord
from passerelle.runtime.records.idempotency import make_once
from passerelle.runtime.records.places import choose_shard, describe_session
from passerelle.runtime.records.task_pages import read_token, write_token
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.core.batch import DueChange
    from passerelle.core.decision import Decision, Held
    from passerelle.core.job.requests import SubmitJob
    from passerelle.core.ports.projections import Projections
    from passerelle.core.principal import Principal
    from passerelle.core.schedule.requests import CreateSchedule
    from passerelle.core.session.requests import OpenSession
    from passerelle.runtime.records.writes import Writes


async def create_session(
    writes: Writes,
    projections: Projections,
    principal: Principal,
    command: OpenSession | SubmitJob | CreateSchedule,
    idem: str | None,
    prepare: Callable[[EntityRef], Awaitable[Callable[[Decision], DueChange]]] | None = None,
) -> tuple[Held, bool]:
    """Creates a session, once per idempotency key; True: it was created before.

    ``prepare`` runs before anything is stored. The function that it returns adds facts to the same append, and returns
    a due row.

    Raises:
        IdempotencyConflict: the key was used for another request.
    """
    once = make_once(principal, command, idem)
    shard = choose_shard(principal, writes.ids, idem)
    stored = await once.find(writes.log, shard)
    if stored is None:
        ref = EntityRef(EntityKind.SESSION, writes.ids.mint("se", shard))
        begin = machine.BeginSession(
            ref.id, describe_session(principal, command.title, command.labels)
        )
        add = None if prepare is None else await prepare(ref)

        def body(decision: Decision) -> AppendOptions:
            decision.add(machine.decide(None, begin))
            due = () if add is None else (add(decision),)
            return AppendOptions(idem=once.remember(ref.id), due=due)

        written = await writes.change(ref.id, [ref], body)
        if written.repeated in {None, ref.id.encode()}:
            await index_session(projections, written.held[ref])
            if add is not None:
                writes.wake_duties(shard)
            return written.held[ref], False
        stored = written.repeated or b""
    return await writes.load_one(EntityRef(EntityKind.SESSION, stored.decode())), True


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

"""Reads the facts of a scope that a caller may read, and the keys of devices that signed decisions among them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.errors import NotFound, TooLarge
from passerelle.core.events import decode_event
from passerelle.core.evidence.selection import BundleScope, StoredFact, select
from passerelle.core.evidence.signed import SigningDevice
from passerelle.core.frozen import frozen
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import Principal
from passerelle.core.session.device import name_list
from passerelle.core.session.machine import SessionRecord
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task.record import TaskRecord
from passerelle.runtime.common.calls import require_operation
from passerelle.runtime.records.ownership import find_hidden, find_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from passerelle.core.evidence.requests import ExportBundle
    from passerelle.core.evidence.selection import Selection
    from passerelle.core.evidence.signed import SignedAnswer
    from passerelle.core.ports.log import Entry, Head
    from passerelle.permission_bridge.devices.device_lists import DeviceLists
    from passerelle.runtime.records.ownership import Ownership

MOST_BYTES: Final = 32 * 1024 * 1024
"""Limit of fact bytes read for one bundle."""
PAGE: Final = 512
"""Facts read per page."""
_BEFORE: Final = 64
"""How far before a task its evaluations may be stored: in the same append."""


@frozen
class FoundScope:
    """A scope with its record, which names its bundles, and the sequence range of its facts."""

    scope: BundleScope
    record: SessionRecord | TaskRecord
    head: Head
    first: int
    last: int

    @property
    def begins(self) -> int:
        """The first possible sequence of a fact of the scope."""
        return self.record.first if isinstance(self.record, TaskRecord) else 1


@frozen
class EvidenceReader:
    """Reads the content of bundles."""

    ownership: Ownership
    lists: DeviceLists

    async def find(self, principal: Principal, command: ExportBundle) -> FoundScope:
        """The scope that a command names.

        Raises:
            InvalidInput: it names none, or several.
            NotFound: it is not the caller's.
        """
        of, kind = command.of, command.scope
        if of.task_id is not None:
            found = await self.ownership.find(principal, of.task_id, None, hidden=True)
            task = found.record
            require_operation(principal, task.peer or "", Method.GET_TASK)
            head = await self._read_head(task.session_id)
            scope = BundleScope("task", task.task_id, task.session_id)
            first = max(head.first, task.first - _BEFORE)
            last = min(head.sequence, of.through or head.sequence)
            return FoundScope(scope, task, head, first, last)
        name = of.session_id or (await self._find_thread(principal, of.thread_id or ""))
        session = await self.find_session(principal, name)
        head = await self._read_head(name)
        scope = BundleScope(kind, of.turn_id or of.thread_id or name, name)
        last = min(head.sequence, of.through or head.sequence)
        return FoundScope(scope, session, head, head.first, last)

    async def find_session(self, principal: Principal, session: str) -> SessionRecord:
        """A session of the caller. Raises NotFound."""
        return await find_own(self.ownership.writes, SessionRecord, principal, session)

    async def _find_thread(self, principal: Principal, thread: str) -> str:
        return (await find_own(self.ownership.writes, ThreadRecord, principal, thread)).session_id

    async def _read_head(self, session: str) -> Head:
        head = await self.ownership.writes.log.read_head(open_stream(session))
        if head is None:
            raise NotFound("session", session)
        return head

    async def select(self, principal: Principal, place: FoundScope) -> Selection | None:
        """The facts of a scope that the caller may read; None if there are none.

        Raises:
            TooLarge: there are too many for one bundle.
        """
        # In a thread: decoding 20,000 facts takes a second, which would block the event loop.
        facts = await asyncio.to_thread(_decode, await self._read_facts(place))
        if not facts:
            return None
        hidden = await self._find_hidden(principal, place, facts)
        had_more = place.begins < place.head.first
        choose = partial(select, place.scope, facts, place.head, hidden, had_more=had_more)
        return await asyncio.to_thread(choose)

    async def _read_facts(self, place: FoundScope) -> list[Entry]:
        found: list[Entry] = []
        after, size = place.first - 1, 0
        while after < place.last:
            page = await self.ownership.writes.log.read_page(
                open_stream(place.scope.session_id), after, min(PAGE, place.last - after)
            )
            if not page:
                break
            found += [entry for entry in page if entry.sequence <= place.last]
            size += sum(len(entry.data) for entry in page)
            if size > MOST_BYTES:
                raise TooLarge(f"{place.scope.kind} {place.scope.subject}", MOST_BYTES)
            after = page[-1].sequence
        return found

    async def _find_hidden(
        self, principal: Principal, place: FoundScope, facts: Iterable[StoredFact]
    ) -> frozenset[str]:
        """Tasks among the facts that now belong to another principal, or that the caller may not read."""
        tasks = (fact.event.fact.scope.task_id for fact in facts)
        hidden = await find_hidden(self.ownership.writes, principal, tasks)
        return hidden - {place.scope.subject}

    async def find_devices(
        self, principal: Principal, answers: Iterable[SignedAnswer]
    ) -> dict[str, SigningDevice]:
        """The keys of the devices that signed; devices revoked long ago are no longer listed."""
        tenant = principal.tenant
        lists = dict.fromkeys(name_list(Principal(one.principal, tenant)) for one in answers)
        found = (await self.lists.load_all(lists)).values() if lists else ()
        return {
            device.device_id: SigningDevice(
                device_id=device.device_id,
                principal=device.principal,
                tenant=device.tenant,
                key_id=device.key.key_id,
                algorithm=device.key.algorithm,
                public=device.key.public,
                confirmed_at=device.confirmed_at,
                confirmed_by=device.confirmed_by,
            )
            for known in found
            if known is not None
            for device in known.devices
            if device.key is not None
        }


def _decode(entries: Sequence[Entry]) -> list[StoredFact]:
    return [StoredFact(entry, decode_event(entry.data)) for entry in entries]


def open_stream(session: str) -> StreamRef:
    """The stream of a session."""
    return StreamRef(StreamKind.SESSION, session)

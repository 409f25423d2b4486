"""Evidence exports: bundles of stored facts that prove what was approved, and by whom (CMD-20, CMD-26).

A bundle is made only from the event log and from the keys of devices. It is stored with the content of its session
before ``evidence.changed`` references it. The export of an unchanged scope returns the last bundle: nothing is written,
and an archived session stays in the archive.
"""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Final

from passerelle.control.evidence_facts import PAGE, open_stream
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import (
    InvalidInput,
    NotFound,
    StoreUnavailable,
    UnsupportedOperation,
)
from passerelle.core.event_type import EventType
from passerelle.core.events import Fact, decode_event
from passerelle.core.evidence.bundle import compose_bundle, write_bundle
from passerelle.core.evidence.record import MEDIA_TYPE, REF
from passerelle.core.evidence.requests import BundleContent, BundleExported
from passerelle.core.evidence.signed import SigningDevice, list_signed
from passerelle.core.facts import Ref, Scope
from passerelle.core.frozen import frozen
from passerelle.core.ids import shard_of
from passerelle.core.payloads.history import EvidenceChanged
from passerelle.core.payloads.task import TaskDependencyUpdated
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.session.machine import SessionRecord
from passerelle.core.task import commands as tell
from passerelle.core.task import machine as tasks
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.codec import to_wire
from passerelle.runtime.common.calls import require_scope
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.control.evidence_facts import EvidenceReader, FoundScope
    from passerelle.control.task_changes import TaskChanges
    from passerelle.core.decision import Decision
    from passerelle.core.evidence.bundle import Bundle
    from passerelle.core.evidence.record import BundleKind
    from passerelle.core.evidence.requests import ExportBundle, GetBundle
    from passerelle.core.evidence.selection import Selection
    from passerelle.core.evidence.signed import SignedAnswer
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.ports.log import Entry
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.common.signatures import Signer

_READ: Final = (AccessScope.READ_TASKS,)
_NOTES: Final = 16
_NOTE_LENGTH: Final = 300
_TRACES: Final = 32


@frozen
class Exporting:
    """Creates bundles, and returns them."""

    changes: TaskChanges
    reader: EvidenceReader
    blobs: Blobs
    signer: Signer

    async def export(self, principal: Principal, command: ExportBundle) -> BundleExported:
        """Exports the caller's facts as a stored and recorded bundle. A review also exports the evidence it refers to.

        Raises:
            InvalidInput: an invalid scope, or one without a fact up to ``through``.
            NotFound: it is not the caller's.
            TooLarge: there are too many facts for one bundle.
            Forbidden: the caller may read audits but not tasks, whose messages are part of facts.
            UnsupportedOperation: the gateway has no signing key.
        """
        require_scope(principal, _READ)
        if not any(key.signs for key in self.signer.keys):
            raise UnsupportedOperation(
                "there is no signing key: set one under signing, or let the gateway write to data_dir"
            )
        place = await self.reader.find(principal, command)
        selection = await self.reader.select(principal, place)
        if selection is None:
            raise InvalidInput("through", "no fact of this scope exists up to there")
        answers = [*list_signed(selection.facts)]
        devices = await self.reader.find_devices(principal, answers)
        evidence = None
        if command.kind == "review":
            evidence = await _compose("evidence", selection, answers, devices)
            await self._keep(place, evidence)
        bundle = await _compose(command.kind, selection, answers, devices, evidence)
        return await self._keep(place, bundle)

    async def read(self, principal: Principal, query: GetBundle) -> JsonObject:
        """A part of a bundle.

        Raises:
            Forbidden: as for the export.
            InvalidInput: neither a session nor a task is named.
            NotFound: no such bundle of that session or task.
            StoreUnavailable: it cannot be read now.
        """
        require_scope(principal, _READ)
        record = await self._find_record(principal, query)
        ref = await self._find_file(record, query.evidence_id)
        if ref is None or ref.blob is None or ref.size is None:
            raise NotFound("evidence", query.evidence_id)
        shard = shard_of(record.session_id)
        part = await self.blobs.read(shard, ref.blob, query.offset, query.limit)
        if part is None:
            raise StoreUnavailable(f"blob {ref.blob[:12]} is missing", "no")
        return to_wire(
            BundleContent(
                evidence_id=query.evidence_id,
                sha256=ref.blob,
                size=ref.size,
                offset=query.offset,
                content=base64.b64encode(part).decode(),
            )
        )

    async def _keep(self, place: FoundScope, bundle: Bundle) -> BundleExported:
        """Stores the file and then the fact, unless both are stored already."""
        record, evidence_id = place.record, bundle.evidence_id
        shard = shard_of(record.session_id)
        ref = await self._find_file(record, evidence_id)
        if ref is None or await self.blobs.read(shard, ref.blob or "", 0, 1) is None:
            content = await asyncio.to_thread(write_bundle, bundle, self._sign(bundle))
            sha256 = await self.blobs.put(shard, content)
            ref = ref or Ref(blob=sha256, size=len(content), media_type=MEDIA_TYPE)
        repeated = _names(record, evidence_id) or not await self._record(place, bundle, ref)
        scope = place.scope
        return BundleExported(
            evidence_id=evidence_id,
            kind=bundle.kind,
            scope=scope.kind,
            subject=scope.subject,
            session_id=scope.session_id,
            first=bundle.selection.first,
            covers=bundle.selection.last,
            sha256=bundle.sha256,
            blob=ref.blob or "",
            size=ref.size or 0,
            notes=_cut(bundle.notes),
            repeated=repeated,
        )

    async def _record(self, place: FoundScope, bundle: Bundle, ref: Ref) -> bool:
        """Writes the fact; returns False if another request has written it meanwhile."""
        session = EntityRef(EntityKind.SESSION, place.scope.session_id)
        is_task = isinstance(place.record, TaskRecord)
        task = EntityRef(EntityKind.TASK, place.scope.subject) if is_task else None

        def body(decision: Decision) -> AppendOptions:
            record = decision.state(task or session)
            if not _names(record, bundle.evidence_id):
                decision.add(_make_facts(place, bundle, ref, record))
            return AppendOptions()

        refs = [session, task] if task is not None else [session]
        written = await self.changes.writes.change(session.id, refs, body)
        if task is not None and not written.unchanged:
            await self.changes.notify_driver(task)
        return not written.unchanged

    def _sign(self, bundle: Bundle) -> list[JsonObject]:
        keys = [key for key in self.signer.keys if key.signs]
        made = self.signer.sign(bundle.manifest)
        return [
            {
                "jwk": {
                    name: key.jwk[name] for name in ("kty", "crv", "x", "y") if name in key.jwk
                },
                "protected": one.protected,
                "signature": one.signature,
            }
            for key, one in zip(keys, made, strict=True)
        ]

    async def _find_record(
        self, principal: Principal, query: GetBundle
    ) -> SessionRecord | TaskRecord:
        if query.task_id is not None:
            found = await self.changes.ownership.find(principal, query.task_id, None, hidden=True)
            return found.record
        if query.session_id is None:
            raise InvalidInput("sessionId", "sessionId or taskId is required")
        return await self.reader.find_session(principal, query.session_id)

    async def _find_file(self, record: SessionRecord | TaskRecord, evidence_id: str) -> Ref | None:
        """The reference to a bundle's file; None if the record names no such bundle."""
        if isinstance(record, SessionRecord):
            known = (one for one in record.bundles or () if one.evidence_id == evidence_id)
            return next((Ref(blob=one.blob, size=one.size) for one in known), None)
        if evidence_id not in record.evidence_refs:
            return None
        stream, after = open_stream(record.session_id), record.first - 1
        while page := await self.changes.writes.log.read_page(stream, after, PAGE):
            for entry in page:
                ref = _read_export(entry, record.task_id, evidence_id)
                if ref is not None:
                    return ref
            after = page[-1].sequence
        return None


def _read_export(entry: Entry, task_id: str, evidence_id: str) -> Ref | None:
    if entry.type != EventType.EVIDENCE_CHANGED:
        return None
    fact = decode_event(entry.data).fact
    said = fact.payload
    is_it = isinstance(said, EvidenceChanged) and said.evidence_id == evidence_id
    return fact.refs.get(REF) if is_it and fact.scope.task_id == task_id else None


async def _compose(
    kind: BundleKind,
    selection: Selection,
    answers: Sequence[SignedAnswer],
    devices: dict[str, SigningDevice],
    evidence: Bundle | None = None,
) -> Bundle:
    """In a thread: hashing a large bundle would block the event loop."""
    return await asyncio.to_thread(compose_bundle, kind, selection, answers, devices, evidence)


def _make_facts(place: FoundScope, bundle: Bundle, ref: Ref, record: object) -> list[Fact]:
    """``evidence.changed``, and for a task the edge to the bundle (GR-9); an archived task takes no edge."""
    selection, scope = bundle.selection, place.scope
    said = EvidenceChanged(
        evidence_id=bundle.evidence_id,
        kind=bundle.kind,
        change="exported",
        scope=scope.kind,
        subject=scope.subject,
        sha256=bundle.sha256,
        covers=selection.last,
        first=selection.first,
        proof=selection.proof,
        traces=selection.traces[:_TRACES],
        notes=_cut(bundle.notes),
    )
    if not isinstance(record, TaskRecord):
        of_turn = scope.subject if scope.kind == "turn" else None
        of_thread = scope.subject if scope.kind == "thread" else None
        at = Scope(scope.session_id, thread_id=of_thread, turn_id=of_turn)
        return [Fact(at, said, {REF: ref})]
    facts = [Fact(tasks.scope_of(record), said, {REF: ref})]
    edge = tell.LinkTask(
        TaskDependencyUpdated(
            f"evidence:{bundle.evidence_id}", "evidence", bundle.evidence_id, "satisfied"
        )
    )
    if record.status in tasks.TABLE[tell.LinkTask]:
        facts += tasks.decide(record, edge)
    return facts


def _names(record: object, evidence_id: str) -> bool:
    """Whether a record of a session or task names a bundle."""
    if isinstance(record, TaskRecord):
        return evidence_id in record.evidence_refs
    known = (isinstance(record, SessionRecord) and record.bundles) or ()
    return any(one.evidence_id == evidence_id for one in known)


def _cut(notes: tuple[str, ...]) -> tuple[str, ...]:
    more = (f"and {len(notes) - _NOTES} more",) if len(notes) > _NOTES else ()
    return (*(note[:_NOTE_LENGTH] for note in notes[:_NOTES]), *more)

"""The audit of a decision is what is stored: every fact of a question, and the chain of the stream that holds them.

There is no second log that could say something else. The chain shows that nothing was removed or put in between; that
the snapshots are what the facts say is what ``passerelle verify`` shows of the same stream.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import orjson

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.approval.requests import Audit, AuditedFact, AuditProof
from passerelle.core.errors import NotFound
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.codec import to_wire
from passerelle.permission_bridge.answers.actions import find_record
from passerelle.protocol.cursor import extend_chain, start_chain
from passerelle.runtime.records.home import name_home

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.approval.requests import GetAudit
    from passerelle.core.ports.log import Entry, EventLog, Head
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.answers.actions import Actions

_PAGE: Final = 512
_TRIES: Final = 8


@dataclass(frozen=True, slots=True)
class Auditing:
    """Reads facts with their proof."""

    actions: Actions
    log: EventLog

    async def read(self, principal: Principal, query: GetAudit) -> JsonObject:
        """The facts that are asked for.

        Raises:
            NotFound: there is no such question, or it is not the caller's to read.
        """
        if query.action_id is None:
            found = await self._read(name_home(principal), lambda _envelope: True, query.limit)
            return to_wire(found or Audit(()))
        held = await self.actions.load(query.action_id)
        record = find_record(held, query.action_id)
        # Asked of the same door as the question itself: who may not read it learns nothing here either.
        await self.actions.read(principal, query.action_id)
        wanted = _choose(record)
        found = await self._read(record.scope.session_id, wanted, query.limit)
        if found is None:
            raise NotFound("action", query.action_id)
        return to_wire(found)

    async def _read(
        self, session: str, wants: Callable[[JsonObject], bool], limit: int
    ) -> Audit | None:
        """The newest ``limit`` facts, read until the head stands still, so that both belong together."""
        stream = StreamRef(StreamKind.SESSION, session)
        for tries in range(_TRIES):
            head = await self.log.read_head(stream)
            if head is None:
                return None
            entries = await self._read_entries(stream)
            if await self.log.read_head(stream) == head or tries == _TRIES - 1:
                facts = [_show(entry) for entry in entries if wants(orjson.loads(entry.data))]
                proof = AuditProof(
                    session,
                    head.epoch,
                    head.first,
                    head.sequence,
                    head.chain,
                    _judge(head, entries),
                )
                return Audit(tuple(facts[-limit:]), proof, len(facts) > limit)
        return None

    async def _read_entries(self, stream: StreamRef) -> list[Entry]:
        entries: list[Entry] = []
        while page := await self.log.read_page(
            stream, entries[-1].sequence if entries else 0, _PAGE
        ):
            entries += page
        return entries


def _choose(record: ActionRecord) -> Callable[[JsonObject], bool]:
    """Facts of the question, and the evaluation that led to it."""
    action, evaluation = record.request.action_id, record.request.evaluation_id

    def wants(envelope: JsonObject) -> bool:
        said = text_at(object_at(envelope, "payload"), "evaluationId")
        return text_at(envelope, "actionId") == action or (bool(said) and said == evaluation)

    return wants


def _show(entry: Entry) -> AuditedFact:
    hashed = hashlib.sha256(entry.data).hexdigest()
    return AuditedFact(entry.sequence, hashed, orjson.loads(entry.data))


def _judge(head: Head, entries: list[Entry]) -> Literal["whole", "trimmed", "broken"]:
    chain = start_chain(head.epoch) if head.first == 1 else None
    expected = head.first
    for entry in entries:
        if entry.sequence != expected or chain not in {None, entry.previous}:
            return "broken"
        expected, chain = entry.sequence + 1, extend_chain(entry.previous, entry.event_id)
    if expected != head.sequence + 1 or chain not in {None, head.chain}:
        return "broken"
    return "whole" if head.first == 1 else "trimmed"

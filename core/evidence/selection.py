"""The facts of a stream that belong in a bundle, and the state of their chain.

A bundle covers a range of the stream, from the first to the last fact of its scope. Every fact of that range is in it:
as stored, or, if it belongs to another scope, by id only. So the chain can be recomputed from the bundle, and an
omitted fact would be detected.

Facts that exports write (``evidence.changed``, edges of the kind ``evidence``) never end a range. So two exports with
nothing in between are identical, and an export does not make the next one longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.event_chain import extend_chain, start_chain
from passerelle.core.payloads.approval import ActionRequired, PermissionEvaluated
from passerelle.core.payloads.conversation import TurnSubmitted
from passerelle.core.payloads.history import EvidenceChanged
from passerelle.core.payloads.task import TaskDependencyUpdated
from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from passerelle.core.events import Event
    from passerelle.core.evidence.record import Proof, ScopeKind
    from passerelle.core.ports.log import Entry, Head


@value
class BundleScope:
    """The scope of a bundle: ``subject`` is the id of the session, thread, turn or task."""

    kind: ScopeKind
    subject: str
    session_id: str


@value
class StoredFact:
    """A fact as stored, and decoded."""

    entry: Entry
    event: Event


@value
class Selection:
    """The facts of a scope, and the ids of the facts between; ``before`` and ``after`` are the chain around both."""

    scope: BundleScope
    facts: tuple[StoredFact, ...]
    omitted: tuple[tuple[int, str], ...]
    first: int
    last: int
    epoch: str
    before: str
    after: str
    proof: Proof

    @property
    def traces(self) -> tuple[str, ...]:
        """The trace ids of the facts, each once."""
        found = (fact.event.fact.scope.trace_id for fact in self.facts)
        return tuple(dict.fromkeys(one for one in found if one))


def select(
    scope: BundleScope,
    facts: Sequence[StoredFact],
    head: Head,
    hidden: Collection[str] = (),
    *,
    had_more: bool = False,
) -> Selection | None:
    """The facts of a scope among consecutive ones; None if there are none.

    ``hidden`` are tasks whose facts the caller may not read. ``had_more``: the scope had, or may have had, facts that
    are no longer in the stream.
    """
    chosen = _choose(scope, facts, hidden)
    places = [place for place, is_in in enumerate(chosen) if is_in]
    while places and _is_of_export(facts[places[-1]].event):
        del places[-1]
    if not places:
        return None
    within = facts[places[0] : places[-1] + 1]
    taken = chosen[places[0] : places[-1] + 1]
    last = within[-1].entry
    return Selection(
        scope=scope,
        facts=tuple(fact for fact, is_in in zip(within, taken, strict=True) if is_in),
        omitted=tuple(
            (fact.entry.sequence, fact.entry.event_id)
            for fact, is_in in zip(within, taken, strict=True)
            if not is_in
        ),
        first=within[0].entry.sequence,
        last=last.sequence,
        epoch=head.epoch,
        before=within[0].entry.previous,
        after=extend_chain(last.previous, last.event_id),
        proof="broken" if not _is_linked(facts, head) else "trimmed" if had_more else "whole",
    )


def _choose(
    scope: BundleScope, facts: Sequence[StoredFact], hidden: Collection[str]
) -> Sequence[bool]:
    decoded = [fact.event.fact for fact in facts]
    hidden_turns = {
        one.scope.turn_id
        for one in decoded
        if isinstance(one.payload, TurnSubmitted) and one.scope.task_id in hidden
    }
    turns = {
        one.scope.turn_id
        for one in decoded
        if isinstance(one.payload, TurnSubmitted) and one.scope.task_id == scope.subject
    }

    def belongs(event: Event) -> bool:
        at = event.fact.scope
        if at.task_id in hidden or (at.task_id is None and at.turn_id in hidden_turns):
            return False
        match scope.kind:
            case "session":
                return True
            case "thread":
                return at.thread_id == scope.subject
            case "turn":
                return at.turn_id == scope.subject
            case "task":
                of_turn = at.task_id is None and at.turn_id in turns
                return at.task_id == scope.subject or of_turn

    chosen = [belongs(fact.event) for fact in facts]
    # Policy evaluations are recorded next to the approval, some before the task exists.
    judged = {
        one.payload.request.evaluation_id
        for one, is_in in zip(decoded, chosen, strict=True)
        if is_in and isinstance(one.payload, ActionRequired)
    }
    return [
        is_in
        or (
            isinstance(one.payload, PermissionEvaluated)
            and one.payload.evaluation_id in judged
            and one.scope.task_id not in hidden
        )
        for one, is_in in zip(decoded, chosen, strict=True)
    ]


def _is_of_export(event: Event) -> bool:
    payload = event.fact.payload
    is_edge = isinstance(payload, TaskDependencyUpdated) and payload.kind == "evidence"
    return is_edge or isinstance(payload, EvidenceChanged)


def _is_linked(facts: Sequence[StoredFact], head: Head) -> bool:
    """Whether the facts are consecutive without a hole, from the beginning and up to the head if they reach it."""
    begin = facts[0].entry
    chain, expected = begin.previous, begin.sequence
    if begin.sequence == 1 and chain != start_chain(head.epoch):
        return False
    for fact in facts:
        entry = fact.entry
        if (entry.sequence, entry.previous) != (expected, chain):
            return False
        expected, chain = entry.sequence + 1, extend_chain(chain, entry.event_id)
    return expected <= head.sequence or chain == head.chain

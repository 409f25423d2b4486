"""Hooks at their points: each is called, its answer becomes a word in the policy's chain, and all of it facts (PRS-4).

A hook has a say and nothing else: it is handed no way to an agent and none to the store. What it was given and what it
made of that stand behind references of its facts. A message that stands in the stream, and that it has left as it was,
is not stored again; nothing is kept of a credential, and nothing of an answer that is withheld. Hooks of one point are
asked in the order of the file, and each is given the message as the one before has left it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import orjson

from passerelle.core.errors import InvalidInput
from passerelle.core.facts import ErrorCategory, ErrorDetail
from passerelle.core.payloads.governance import HookCompleted, HookFailed, HookStarted
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.wire.canonical import digest
from passerelle.core.wire.record import change
from passerelle.permission_bridge.hooks.caller import HookAnswer
from passerelle.permission_bridge.policy import Said
from passerelle.runtime.records.blob_overflow import Note

if TYPE_CHECKING:
    from passerelle.core.facts import Ref
    from passerelle.core.payloads.governance import HookPoint
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.hook_terms import HookTerms
    from passerelle.permission_bridge.hooks.caller import HookCaller
    from passerelle.permission_bridge.rules import Policy

Applied: TypeAlias = Literal["silent", "ask", "deny"]

VERSION: Final = 1
REWRITING: Final[frozenset[HookPoint]] = frozenset({"before_delegate"})
"""Where the message may be changed."""


@dataclass(frozen=True, slots=True)
class HookResults:
    """What the hooks of one point said; ``message`` is theirs where one of them has changed it."""

    said: tuple[Said, ...] = ()
    notes: tuple[Note, ...] = ()
    message: JsonObject | None = None

    def without_content(self) -> HookResults:
        """The same with notes that say who was asked and what came of it, and nothing of what it was about."""
        return replace(self, notes=tuple(map(_leave_out, self.notes)))


UNHEARD: Final = HookResults()


@dataclass(frozen=True, slots=True)
class Hooks:
    """Asks whoever has a say at a point."""

    caller: HookCaller

    async def hear(
        self, point: HookPoint, policy: Policy, given: JsonObject, stored: Ref | None = None
    ) -> HookResults:
        """What the hooks of a point say to ``given``, whose ``message`` they may change where the point lets them.

        ``stored`` names the entry of that message, where it stands there as it is given.
        """
        heard = UNHEARD
        for terms in policy.hooks:
            if point in terms.points:
                kept = stored if heard.message is None else None
                heard = await self._ask(point, terms, given, heard, kept)
        return heard

    async def classify(self, policy: Policy, given: JsonObject) -> tuple[Said, ...]:
        """What the classifier thinks; one that fails thinks nothing."""
        terms = policy.classifier
        if terms is None:
            return ()
        began_s = monotonic()
        answer = await self.caller.call(terms, {"v": VERSION, "classifier": terms.name, **given})
        ms = _count_ms(began_s)
        if isinstance(answer, ErrorDetail):
            return (Said("classifier", "silent", answer.message, terms.name, ms),)
        reason = answer.reason or f"{terms.name} says {answer.verdict}"
        # It has no no: what it would deny is for somebody to decide.
        verdict = "ask" if answer.verdict in {"ask", "deny"} else answer.verdict
        return (Said("classifier", verdict, reason, terms.name, ms, answer.risk),)

    async def _ask(
        self,
        point: HookPoint,
        terms: HookTerms,
        given: JsonObject,
        heard: HookResults,
        stored: Ref | None,
    ) -> HookResults:
        asked: JsonObject = {"v": VERSION, "hook": terms.name, "point": point, **given}
        if heard.message is not None:
            asked["message"] = heard.message
        started = HookStarted(terms.name, point, terms.on_error, terms.timeout_ms)
        # Before it is called: one that lives here may do anything to what it is given.
        written, began_s = orjson.dumps(asked), monotonic()
        answer = await self.caller.call(terms, asked)
        ms = _count_ms(began_s)
        if not isinstance(answer, ErrorDetail):
            answer = _check(point, terms, answer)
        is_changed = isinstance(answer, HookAnswer) and answer.message is not None
        note = (
            Note(started, {"input": written})
            if stored is None or is_changed
            else Note(started, stored={"input": stored})
        )
        notes = (*heard.notes, note)
        if isinstance(answer, ErrorDetail):
            return _fail(point, terms, answer, ms, HookResults(heard.said, notes, heard.message))
        return _take(point, terms, answer, ms, HookResults(heard.said, notes, heard.message))


def _leave_out(note: Note) -> Note:
    said = note.payload
    return Note(change(said, updated_digest=None) if isinstance(said, HookCompleted) else said)


def _check(point: HookPoint, terms: HookTerms, answer: HookAnswer) -> HookAnswer | ErrorDetail:
    why = None
    if answer.message is not None and point not in REWRITING:
        why = f"it may change nothing at {point}"
    elif answer.message is not None:
        try:
            digest(answer.message)
        except InvalidInput as wrong:
            why = f"its message {wrong.reason}"
    if why is None:
        return answer
    why = f"the hook {terms.name}: {why}"
    return ErrorDetail("bad_answer", ErrorCategory.PROTOCOL, why, source=terms.name)


def _take(
    point: HookPoint, terms: HookTerms, answer: HookAnswer, ms: int, heard: HookResults
) -> HookResults:
    changed = answer.message
    completed = HookCompleted(
        hook=terms.name,
        point=point,
        duration_ms=ms,
        verdict="rewrite" if changed is not None and answer.verdict == "silent" else answer.verdict,
        reason=answer.reason,
        updated_digest=digest(changed) if changed is not None else None,
    )
    contents = {"updatedInput": orjson.dumps(changed)} if changed is not None else {}
    reason = answer.reason or f"the hook {terms.name}"
    said = Said("hook", answer.verdict, reason, terms.name, ms)
    return HookResults(
        (*heard.said, said),
        (*heard.notes, Note(completed, contents)),
        heard.message if changed is None else changed,
    )


def _fail(
    point: HookPoint, terms: HookTerms, failure: ErrorDetail, ms: int, heard: HookResults
) -> HookResults:
    is_open = terms.on_error == "open" or point == "on_stop"
    # Nobody can be asked whether an answer may be given that is there already.
    closed: Applied = "deny" if point == "before_deliver" else "ask"
    applied: Applied = "silent" if is_open else closed
    failed = HookFailed(
        hook=terms.name,
        point=point,
        duration_ms=ms,
        error=failure,
        on_error=terms.on_error,
        applied=applied,
    )
    notes = [Note(failed)]
    if is_open:
        notes.append(Note(WarningRaised("hook_failed_open", failure.message)))
    said = Said("hook", applied, failure.message, terms.name, ms)
    return HookResults((*heard.said, said), (*heard.notes, *notes), heard.message)


def _count_ms(began_s: float) -> int:
    return round((monotonic() - began_s) * 1000)

"""Calls hooks at their points; each answer becomes one verdict of the policy evaluation, and all of it facts (PRS-4).

A hook can only return a verdict: it has no access to agents or to the store. Its input and its changes are stored as
blobs that its facts reference. A message that is already in the stream and that the hook left unchanged is not stored
again. Credentials and withheld answers are never stored. The hooks of one point run in the order of the configuration,
and each receives the message as the previous one returned it.
"""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import orjson

from passerelle.a2a_mapping.inbound import ROLE_USER, read_message
from passerelle.a2a_mapping.members import object_at
from passerelle.core.errors import InvalidInput
from passerelle.core.facts import ErrorCategory, ErrorDetail
from passerelle.core.frozen import frozen
from passerelle.core.payloads.governance import HookCompleted, HookFailed, HookStarted
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.wire.canonical import digest
from passerelle.core.wire.record import change
from passerelle.permission_bridge.hooks.caller import HookAnswer
from passerelle.permission_bridge.policy import SourceVerdict
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
"""Points at which a hook may change the message."""
_PLACES: Final = ("contextId", "taskId")


@frozen
class HookResults:
    """The verdicts of the hooks of one point. ``message`` is set if one of them changed the message."""

    verdicts: tuple[SourceVerdict, ...] = ()
    notes: tuple[Note, ...] = ()
    message: JsonObject | None = None

    def without_content(self) -> HookResults:
        """The same results; the notes keep which hooks ran and their outcome, without the content."""
        return replace(self, notes=tuple(map(_leave_out, self.notes)))


NO_HOOK_RESULTS: Final = HookResults()


@frozen
class Hooks:
    """Calls the hooks and the classifier of a policy."""

    caller: HookCaller

    async def evaluate(
        self, point: HookPoint, policy: Policy, given: JsonObject, stored: Ref | None = None
    ) -> HookResults:
        """Calls the hooks of a point with ``given``; at points in ``REWRITING`` they may change its ``message``.

        ``stored`` references the stored entry of that message, if it is stored exactly as given.
        """
        results = NO_HOOK_RESULTS
        for terms in policy.hooks:
            if point in terms.points:
                kept = stored if results.message is None else None
                results = await self._ask(point, terms, given, results, kept)
        return results

    async def classify(self, policy: Policy, given: JsonObject) -> tuple[SourceVerdict, ...]:
        """The verdict of the classifier; ``silent`` if it fails."""
        terms = policy.classifier
        if terms is None:
            return ()
        began_s = monotonic()
        answer = await self.caller.call(terms, {"v": VERSION, "classifier": terms.name, **given})
        ms = _count_ms(began_s)
        if isinstance(answer, ErrorDetail):
            return (SourceVerdict("classifier", "silent", answer.message, terms.name, ms),)
        reason = answer.reason or f"{terms.name} says {answer.verdict}"
        # The classifier cannot deny: a denial becomes an approval request.
        verdict = "ask" if answer.verdict in {"ask", "deny"} else answer.verdict
        return (SourceVerdict("classifier", verdict, reason, terms.name, ms, answer.risk),)

    async def _ask(
        self,
        point: HookPoint,
        terms: HookTerms,
        given: JsonObject,
        results: HookResults,
        stored: Ref | None,
    ) -> HookResults:
        asked: JsonObject = {"v": VERSION, "hook": terms.name, "point": point, **given}
        if results.message is not None:
            asked["message"] = results.message
        started = HookStarted(terms.name, point, terms.on_error, terms.timeout_ms)
        # Serialized before the call: an in-process hook may mutate its input.
        written, began_s = orjson.dumps(asked), monotonic()
        answer = await self.caller.call(terms, asked)
        ms = _count_ms(began_s)
        if not isinstance(answer, ErrorDetail):
            answer = _check(point, terms, answer, object_at(asked, "message"))
        is_changed = isinstance(answer, HookAnswer) and answer.message is not None
        note = (
            Note(started, {"input": written})
            if stored is None or is_changed
            else Note(started, stored={"input": stored})
        )
        notes = (*results.notes, note)
        if isinstance(answer, ErrorDetail):
            return _fail(
                point, terms, answer, ms, HookResults(results.verdicts, notes, results.message)
            )
        return _take(
            point, terms, answer, ms, HookResults(results.verdicts, notes, results.message)
        )


def _leave_out(note: Note) -> Note:
    said = note.payload
    return Note(change(said, updated_digest=None) if isinstance(said, HookCompleted) else said)


def _check(
    point: HookPoint, terms: HookTerms, answer: HookAnswer, before: JsonObject
) -> HookAnswer | ErrorDetail:
    """The answer with its message as it may be sent; ``before`` is the message that the hook was given."""
    if answer.message is None:
        return answer
    why = f"it may not change the message at {point}"
    if point in REWRITING:
        try:
            changed = read_message({"message": _adopt(answer.message, before)})
            digest(changed)
            return change(answer, message=changed)
        except InvalidInput as wrong:
            why = f"its answer: {wrong}"
    why = f"the hook {terms.name}: {why}"
    return ErrorDetail("bad_answer", ErrorCategory.PROTOCOL, why, source=terms.name)


def _adopt(changed: JsonObject, before: JsonObject) -> JsonObject:
    """The message as a hook changed it; ids, role and context are kept, since a hook may not change them."""
    kept: JsonObject = {name: before[name] for name in ("messageId", *_PLACES) if name in before}
    bare = {name: one for name, one in changed.items() if name not in _PLACES}
    return {**bare, "role": before.get("role", ROLE_USER), **kept}


def _take(
    point: HookPoint, terms: HookTerms, answer: HookAnswer, ms: int, results: HookResults
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
    said = SourceVerdict("hook", answer.verdict, reason, terms.name, ms)
    return HookResults(
        (*results.verdicts, said),
        (*results.notes, Note(completed, contents)),
        results.message if changed is None else changed,
    )


def _fail(
    point: HookPoint, terms: HookTerms, failure: ErrorDetail, ms: int, results: HookResults
) -> HookResults:
    is_open = terms.on_error == "open" or point == "on_stop"
    # ``before_deliver`` runs when the answer already exists: an approver cannot be asked about it, so it is denied.
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
    said = SourceVerdict("hook", applied, failure.message, terms.name, ms)
    return HookResults((*results.verdicts, said), (*results.notes, *notes), results.message)


def _count_ms(began_s: float) -> int:
    return round((monotonic() - began_s) * 1000)

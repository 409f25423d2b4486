"""Decisions in the agent's own dialect: the same rules apply as for a decision in the gateway's form.

A message with such a decision is nothing else: it decides, or it is refused as a whole. It is never forwarded to the
agent as an ordinary message, whatever else is open: the agent would act on an approval that was not given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.dialects.registry import read_native
from passerelle.core.approval.record import ActionRecord
from passerelle.core.commands import RespondAction
from passerelle.core.errors import ActionClosed, InvalidInput, StaleAnswer
from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.a2a_mapping.dialects.native import NativeAnswer
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.writes import Writes

_WHERE: Final = "message.parts"
_NAMED: Final = "native-"
_ALLOWING: Final = frozenset({"allow_once"})
_REJECTING: Final = frozenset({"reject_once"})


@frozen
class NativeDecision:
    """One decision, bound to its request; ``native`` is the payload that is delivered to the agent."""

    command: RespondAction
    native: JsonObject


async def find_decisions(
    writes: Writes, record: TaskRecord, message: JsonObject, turn_id: str, *, has_own: bool
) -> list[NativeDecision]:
    """The decisions in a message to a task; empty for an ordinary message.

    ``has_own``: the message has a decision in the gateway's form as well.

    Raises:
        InvalidInput, StaleAnswer, ActionClosed: it is a decision, but not a valid one.
    """
    answers = read_native(message)
    if not answers:
        return []
    if has_own:
        raise InvalidInput(_WHERE, "holds more than one decision")
    names = {*record.occurrences.values(), *record.open_actions}
    known = [*(await writes.read_all(ActionRecord, sorted(names))).values()]
    found = match_answers(answers, known, record.inputs[-1] if record.inputs else 0)
    return [
        _bind(answer, question, f"{_NAMED}{turn_id}-{place}")
        for place, (answer, question) in enumerate(found)
    ]


def find_turn(decision_id: str) -> str | None:
    """The turn whose message was a decision in the agent's dialect; else None."""
    if not decision_id.startswith(_NAMED):
        return None
    return decision_id.removeprefix(_NAMED).rpartition("-")[0]


def match_answers(
    answers: Sequence[NativeAnswer], known: Sequence[ActionRecord], last_input: int
) -> list[tuple[NativeAnswer, ActionRecord]]:
    """The open request of each decision; empty if the payload is ambiguous and is not a decision.

    ``last_input`` is the sequence of the last message to the task: its sender may not have seen later requests.

    Raises:
        InvalidInput, StaleAnswer, ActionClosed: one matches no request that it can decide.
    """
    found: list[tuple[NativeAnswer, ActionRecord]] = []
    for answer in answers:
        question = _find(answer, known)
        if question is None or question.request.kind != "permission":
            if not answer.is_certain:
                return []
            raise InvalidInput(_WHERE, "matches no approval request of this task")
        if not answer.is_alone:
            raise InvalidInput(_WHERE, "a decision must be the only content of its message")
        if not question.is_open:
            raise ActionClosed(question.closed_as or "already_resolved", question.describe_winner())
        if any(question is other for _, other in found):
            raise InvalidInput(_WHERE, "answers one request twice")
        if answer.native_id is None:
            _check_unnamed(question, known, last_input)
        found.append((answer, question))
    return found


def _find(answer: NativeAnswer, known: Sequence[ActionRecord]) -> ActionRecord | None:
    """The newest request with the agent's id; open requests come first."""
    fitting = [
        one
        for one in known
        if one.request.remote is not None
        and one.request.remote.dialect == answer.dialect
        and (answer.native_id is None or one.request.remote.native_id == answer.native_id)
    ]
    return max(fitting, key=lambda one: (one.is_open, one.first_seq), default=None)


def _check_unnamed(question: ActionRecord, known: Sequence[ActionRecord], last_input: int) -> None:
    """Checks a decision in a dialect without request ids: it must be unambiguous.

    Raises:
        StaleAnswer: a request was opened or changed since the caller's last message.
        InvalidInput: several requests are open, or several approvers are needed.
    """
    others = [one for one in known if one is not question]
    how = "it names none, so answer in the form of urn:passerelle:ext:permission:1"
    if any(one.is_open for one in others):
        raise InvalidInput(_WHERE, f"more than one request is open, and {how}")
    if question.request.quorum.need > 1:
        raise InvalidInput(_WHERE, f"more than one person has to agree, and {how}")
    if question.rev != 1 or any(one.first_seq > last_input for one in others):
        raise StaleAnswer("stale_revision", "rev")


def _bind(answer: NativeAnswer, question: ActionRecord, decision_id: str) -> NativeDecision:
    if answer.allows is None:
        raise InvalidInput(
            _WHERE, "it is neither an approval nor a rejection in the requested form"
        )
    kinds = _ALLOWING if answer.allows else _REJECTING
    chosen = [one for one in question.request.options if one.kind in kinds]
    if not chosen:
        raise InvalidInput(_WHERE, "this option is not offered")
    command = RespondAction(
        action_id=question.request.action_id,
        rev=question.rev,
        digest=question.request.digest,
        decision_id=decision_id,
        option_id=chosen[0].option_id,
        comment=answer.comment,
    )
    return NativeDecision(command, answer.kept)

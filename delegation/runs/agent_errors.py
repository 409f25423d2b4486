"""An agent that refuses an answer, or that fails at its own work.

*Refused*: the callers of the answer are notified at once, and the task is in the state that the agent reports. A
task that waits asks the same again, as a new question: a closed question stays closed (I7). An agent that rejects the
answer as invalid waits too, even if it reports that it works: some agents report so before they have read the message,
and never correct it. An answer of a rule or a timeout would be the same each time, so the run fails.

*Failed*: the agent has reported an error after it had begun, and nothing since. The state of its task outweighs the
error: a task that has ended, or waits, stays as it is, and one that has failed without a message gets the text of the
error. A task that is still reported as working will never move again, since agents forget to end a task whose program
has raised; so its run fails.
"""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.dialects.presentation import read_decision
from passerelle.a2a_mapping.errors import ErrorKind, classify_native
from passerelle.a2a_mapping.frames import make_message
from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.a2a_mapping.states import FAILED, INTERRUPTED_STATES, TERMINAL_STATES
from passerelle.core.approval import machine as approval
from passerelle.core.approval.commands import FailReturn
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import DueChange
from passerelle.core.errors import InvalidInput
from passerelle.core.payloads.run import RunStatus
from passerelle.core.peer import Answered, RefusedByPeer
from passerelle.core.task.status import ENDED, WAITING, Status
from passerelle.delegation.runs.draft import find_action
from passerelle.delegation.runs.failure import RunEnd, end_run, explain
from passerelle.delegation.runs.repeated_questions import (
    read_state,
    restate_moved,
    restate_task,
)
from passerelle.delegation.runs.results import apply_results, refuse_message
from passerelle.permission_bridge.answers.native_answers import find_turn
from passerelle.permission_bridge.return_machine import REFUSED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from passerelle.core.facts import ErrorDetail
    from passerelle.core.peer import Malformed, PeerOutcome
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.delegation.runs.draft import DecisionDraft
    from passerelle.delegation.runs.run import Run

ON_ITS_WAY: Final = frozenset({"owed", "returning"})
"""Return states of an answer that is neither delivered nor given up."""
_BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_FAULTS: Final = frozenset({ErrorKind.INVALID_PARAMS, ErrorKind.CONTENT_TYPE_NOT_SUPPORTED})
_WITH_STATUS: Final = {"task": "id", "statusUpdate": "taskId"}
"""The members of a response that have a status, each with the name of the task's id in it."""
_AT_REST: Final = INTERRUPTED_STATES | TERMINAL_STATES


async def find_turns(run: Run, actions: Sequence[ActionRecord]) -> list[str]:
    """The open turns that brought an answer to ``actions``; none if no message to the task brought it.

    For an answer in words, the decision has the turn's id; for one in the agent's own form, an id derived from it. An
    answer in the gateway's form names its decision itself.
    """
    record = run.record
    named = {action.decision.decision_id for action in actions if action.decision}
    turns = named | {find_turn(name) for name in named}
    found = [turn_id for turn_id in record.open_turns if turn_id in turns]
    if not found:
        for turn_id in record.open_turns:
            turn = await run.contents.read_turn(record, turn_id)
            if turn is not None and _name_decision(turn.message) in named:
                found.append(turn_id)
    return found


def _name_decision(message: JsonObject) -> str | None:
    try:
        answer = read_decision(message)
    except InvalidInput:
        return None
    return answer.decision_id if answer else None


async def refuse_answer(
    active: ActiveRun, action_ids: Sequence[str], remote: str, outcome: RefusedByPeer | Malformed
) -> None:
    """Handles ``outcome``, with which the agent refused the answers to ``action_ids`` on its task ``remote``."""
    failure = explain(outcome, active.run.context, active.run.record).failure
    held = [
        active.run.held[ref].record
        for ref in map(find_action, action_ids)
        if ref in active.run.held
    ]
    turns = await find_turns(active.run, [one for one in held if isinstance(one, ActionRecord)])
    seen = await active.peer.get(remote)
    is_given = True

    def record_refusal(draft: DecisionDraft) -> None:
        nonlocal is_given
        actions = _find_owed(draft, action_ids)
        is_given = all(one.decision and one.decision.source == "answer" for one in actions)
        for action in actions:
            refused = FailReturn(f"{REFUSED}: {failure.message}")
            draft.add(approval.decide(action, refused, draft.decision.now_ms))
            draft.due.append(DueChange(f"return:{action.request.action_id}", None))
        refuse_message(draft, failure, turns)

    if isinstance(outcome, RefusedByPeer) and failed_internally(outcome, seen):
        await fail_after_error(active, outcome, record_refusal)
    elif isinstance(seen, Answered):
        waits = read_state(seen.result) in INTERRUPTED_STATES
        asked = None
        if rejects_input(outcome) and read_state(seen.result) not in _AT_REST:
            # The agent reports that it works on, although it has rejected the answer.
            asked = restate_task(active, action_ids, seen.result)
        if asked is None:
            moved: JsonObject = {"task": restate_moved(active, action_ids, seen.result)}
            if isinstance(outcome, RefusedByPeer) and _is_internal(outcome):
                moved = add_words(active, moved, failure)
            await apply_results(active, [moved], record_refusal)
        else:
            await apply_results(
                active, [{"task": asked}], record_refusal, lambda draft: _wait_on(draft, seen)
            )
        if not is_given and (waits or asked is not None):
            await _give_up(active, remote, failure)
    else:
        await active.append(record_refusal)


def _wait_on(draft: DecisionDraft, seen: Answered) -> None:
    """Records that, while the task waits, the agent's present status is no news."""
    message = object_at(object_at(seen.result, "status"), "message")
    status = RunStatus(
        waits_on=read_state(seen.result), message_id=text_at(message, "messageId") or None
    )
    if draft.record.status in WAITING:
        draft.note(status)


def _find_owed(draft: DecisionDraft, action_ids: Sequence[str]) -> list[ActionRecord]:
    found = [draft.decision.state(find_action(action_id)) for action_id in action_ids]
    return [
        one for one in found if isinstance(one, ActionRecord) and one.return_state in ON_ITS_WAY
    ]


async def _give_up(active: ActiveRun, remote: str, failure: ErrorDetail) -> None:
    """Fails the task and cancels it at the agent: the agent waits for an answer that will not come."""
    text = f"the agent did not accept the answer given by policy: {failure.message}"

    def end(draft: DecisionDraft) -> None:
        if draft.record.run is not None:
            draft.close_actions("asker_lost")
            end_run(draft, RunEnd(replace(failure, message=text)))

    await active.append(end)
    await active.peer.cancel(remote)


def failed_internally(outcome: RefusedByPeer | Malformed, seen: PeerOutcome) -> bool:
    """Whether an agent that refused an answer with ``outcome`` failed over it: it works on in name only.

    ``seen`` is its task since then. After another error it has not taken the answer, and may still be working.
    """
    if not isinstance(outcome, RefusedByPeer) or not isinstance(seen, Answered):
        return False
    return _is_internal(outcome) and read_state(seen.result) not in _AT_REST


def _is_internal(outcome: RefusedByPeer) -> bool:
    """Whether the agent itself failed, and no proxy in front of it refused the message."""
    is_its_own = not outcome.is_bare or outcome.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return is_its_own and classify_native(outcome.code) is ErrorKind.INTERNAL


def rejects_input(outcome: RefusedByPeer | Malformed) -> bool:
    """Whether an agent rejects what it was sent as invalid: then it waits for something else."""
    return isinstance(outcome, RefusedByPeer) and classify_native(outcome.code) in _FAULTS


async def end_after_error(
    active: ActiveRun, outcome: RefusedByPeer, turns: Sequence[str] = ()
) -> None:
    """Ends a run whose stream had begun and ended with an error, unless its task says otherwise.

    ``turns`` are those of the message that got the stream: their callers get the error, as from the agent itself.
    """
    remote = active.remote_task()
    if remote is None or outcome.http_status in _BUSY or active.run.record.status in ENDED:
        return
    failure = explain(outcome, active.run.context, active.run.record).failure

    def refuse(draft: DecisionDraft) -> None:
        if turns:
            refuse_message(draft, failure, turns)

    seen = await active.peer.get(remote)
    if isinstance(seen, Answered) and read_state(seen.result) in _AT_REST:
        await apply_results(active, [add_words(active, {"task": seen.result}, failure)], refuse)
        return
    await fail_after_error(active, outcome, refuse)


def fails_without_words(frame: JsonObject) -> bool:
    """Whether a frame of the agent shows a task that has failed, without a message."""
    return any(_lacks_words(object_at(frame, member)) for member in _WITH_STATUS)


def add_words(active: ActiveRun, frame: JsonObject, failure: ErrorDetail) -> JsonObject:
    """A ``frame`` of the agent with the words of its error, if its task has failed without a message of its own.

    The Python SDK fails a task whose program raises in this way, and sends the words only as the error.
    """
    for member, name in _WITH_STATUS.items():
        shown = object_at(frame, member)
        if _lacks_words(shown):
            ids = text_at(shown, name), text_at(shown, "contextId")
            said = make_message(active.run.context.mint("msg"), *ids, [{"text": failure.message}])
            status: JsonObject = {**object_at(shown, "status"), "message": said}
            return {member: {**shown, "status": status}}
    return frame


def _lacks_words(shown: JsonObject) -> bool:
    return read_state(shown) == FAILED and "message" not in object_at(shown, "status")


async def fail_after_error(
    active: ActiveRun, outcome: RefusedByPeer, before: Callable[[DecisionDraft], None] | None
) -> None:
    """Ends the run with the agent's error; ``before`` adds to the append."""
    failure = explain(outcome, active.run.context, active.run.record).failure

    def end(draft: DecisionDraft) -> None:
        if before is not None:
            before(draft)
        if draft.record.run is None or draft.record.status is Status.CANCELLING:
            return
        draft.close_actions("asker_lost")
        end_run(draft, RunEnd(failure))

    await active.append(end)

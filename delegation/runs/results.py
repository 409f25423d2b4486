"""Turns what the peer sends into facts: answers, frames, and outcomes of calls.

Hooks judge an agent's output before it is stored. An answer that a hook denies is stored nowhere: the task fails with
the reason. Frames of a stream that were shown before stay shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from passerelle.a2a_mapping.inbound import ROLE_USER
from passerelle.a2a_mapping.members import object_at, objects_at
from passerelle.a2a_mapping.replies import read_task_id
from passerelle.core.errors import InvalidInput, StoreUnavailable, TooLarge, UnsupportedOperation
from passerelle.core.facts import ErrorCategory, ErrorDetail
from passerelle.core.payloads.run import ModelFailed, RunStatus
from passerelle.core.peer import Answered, Malformed, RefusedByPeer, Unknown, Unreached
from passerelle.core.principal import Principal
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import ObserveStatus
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.canonical import digest
from passerelle.delegation.runs.draft import DecisionDraft
from passerelle.delegation.runs.failure import RunEnd, end_run, explain, explain_break
from passerelle.delegation.runs.finish import fail
from passerelle.delegation.runs.observation import observe
from passerelle.permission_bridge.hooks.consultation import ConsultationRequired
from passerelle.runtime.records.blob_overflow import write_notes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from passerelle.core.peer import PeerOutcome
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun


async def apply_results(
    active: ActiveRun,
    results: list[JsonObject],
    before: Callable[[DecisionDraft], None] | None = None,
    after: Callable[[DecisionDraft], None] | None = None,
) -> None:
    """Stores the answers of the peer, in as many appends as needed.

    ``before`` adds to the first of them, ``after`` to the last.
    """
    results = [active.deps.outputs.redaction.clean(one) for one in results]
    results = await filter_by_hooks(active, results)
    at_once = len(results)
    if before is not None and not results:
        await active.append(before)
    while results:
        taken = 0
        ending = after if after is not None and at_once >= len(results) else _add_nothing

        def take(
            draft: DecisionDraft,
            batch: list[JsonObject] = results[:at_once],
            begin: Callable[[DecisionDraft], None] = before or _add_nothing,
            end: Callable[[DecisionDraft], None] = ending,
        ) -> None:
            nonlocal taken
            begin(draft)
            taken = _observe(draft, batch)
            if taken == len(batch):
                end(draft)

        await _await_release(active, results)
        try:
            await _store(active, take)
        except UnsupportedOperation:
            await active.run.refresh()
            if not active.run.is_held():
                raise
        except TooLarge:
            if at_once == 1:
                raise
            at_once //= 2
        else:
            results, before = results[taken:], None


def _add_nothing(_draft: DecisionDraft) -> None:
    """Adds nothing to the peer's facts."""


def _observe(draft: DecisionDraft, results: list[JsonObject]) -> int:
    """Observes results until the append is full; returns how many were taken."""
    for number, result in enumerate(results):
        observe(draft, result)
        if draft.more:
            return number
    return len(results)


async def _store(active: ActiveRun, take: Callable[[DecisionDraft], None]) -> None:
    """Stores what was observed; a new question of the peer is first passed to hooks and grants."""
    while True:
        try:
            await active.append(take)
        except ConsultationRequired as needed:
            await _consult(active, needed)
        else:
            # A consultation counts once: if the same is asked again, all are consulted again.
            if active.run.context.consulted:
                active.run.context.consulted.clear()
            return


async def _consult(active: ActiveRun, needed: ConsultationRequired) -> None:
    """Consults hooks and grants about what the peer asks, before it is decided."""
    record, consulted = active.run.record, active.run.context.consulted
    owner, scope = (
        Principal(record.scope.principal, record.scope.tenant),
        tasks.scope_of(record),
    )
    while consulted is not None:
        try:
            for prompt, case in needed.prompts:
                if prompt.occurrence not in consulted:
                    outcome = await active.deps.consulting.consult(
                        case, owner, scope, active.run.context.mint
                    )
                    consulted[prompt.occurrence] = outcome
        except StoreUnavailable as error:
            await active.hold(error)
        else:
            return


async def _await_release(active: ActiveRun, results: list[JsonObject]) -> None:
    """Delays a bare message for a paused or blocked task until its release: no other copy of it exists (CMD-8)."""
    while active.run.is_held() and any("message" in result for result in results):
        await active.rest(active.timeouts.parked_poll_max_s)


async def revive_lost(active: ActiveRun) -> None:
    """Marks a lost task as running, after the peer reported it again."""
    if active.run.record.status is Status.LOST:
        status = RunStatus(native_status=active.run.record.attempts[-1].native_status)
        step_id = active.run.context.mint("step")
        command = ObserveStatus(Status.RUNNING, status, step_id)
        await active.append(lambda draft: draft.add(draft.decide(command)))


def refuse_message(draft: DecisionDraft, failure: ErrorDetail, turns: Sequence[str]) -> None:
    """Records that a further message was refused: its turns get the reason as answer, and the run goes on (CMD-14).

    Call it before the peer's present task is observed, which may answer other turns.
    """
    if draft.record.run is not None:
        draft.note(ModelFailed(draft.context.peer, failure), RunStatus(refused=failure))
        draft.turned_down = True
    draft.refuse_turns(turns, failure)


async def apply_input_outcome(active: ActiveRun, outcome: PeerOutcome, turn_id: str) -> None:
    """Handles the outcome of a further message to a run that works; a refusal leaves the run as it is."""
    if (
        isinstance(outcome, RefusedByPeer | Unreached | Malformed)
        and active.remote_task() is not None
    ):
        failure = explain(outcome, active.run.context, active.run.record).failure
        await active.append(lambda draft: refuse_message(draft, failure, [turn_id]))
        return
    await apply_outcome(active, outcome)


async def apply_outcome(active: ActiveRun, outcome: PeerOutcome) -> bool:
    """Handles the outcome of a unary call; False when it is unknown whether the message arrived."""
    match outcome:
        case Answered(result=result):
            await apply_results(active, [result])
        case RefusedByPeer() | Unreached() | Malformed():
            await refuse(active, outcome)
        case Unknown(reason=reason):
            active.deps.log.warning("send.unknown", task=active.run.record.task_id, reason=reason)
            await record_broken_exchange(active, outcome)
            return False
        case _:
            assert_never(outcome)
    return True


async def record_broken_exchange(active: ActiveRun, outcome: Unknown | Malformed) -> None:
    """Records that the exchange of a message broke; that proves nothing about the task (EVC-6, I6)."""
    if active.run.record.run is None:
        return
    failure = explain_break(outcome, active.run.context.peer)
    failed = ModelFailed(active.run.context.peer, failure)
    await active.note(failed)


async def refuse(active: ActiveRun, outcome: RefusedByPeer | Unreached | Malformed) -> None:
    """Ends the run: the peer did not take its message, or sent an invalid answer."""
    refusal = explain(outcome, active.run.context, active.run.record)
    wait_ms = 0 if isinstance(outcome, Malformed) else 1000 * (outcome.retry_after_s or 0)

    def end(draft: DecisionDraft) -> None:
        if refusal.hit is not None:
            draft.note(refusal.hit)
        end_run(draft, RunEnd(refusal.failure, wait_ms=wait_ms))
        # With a further attempt, callers keep waiting.
        active.failure = refusal.error if draft.record.status in ENDED else None

    await active.append(end)


async def filter_by_hooks(active: ActiveRun, results: list[JsonObject]) -> list[JsonObject]:
    """The results that hooks allow; at the first one that they deny, the task fails."""
    rules = active.deps.consulting.find_rules()
    if not rules.hooks_at("before_deliver"):
        return results
    passed: list[JsonObject] = []
    for result in results:
        if active.run.has_ended():
            break
        brought = _digest_brought(result)
        if brought <= active.passed_hooks or await _ask(active, result):
            passed.append(result)
            active.passed_hooks |= brought
    return [] if active.run.has_ended() else passed


async def _ask(active: ActiveRun, result: JsonObject) -> bool:
    consulting, record = active.deps.consulting, active.run.record
    given: JsonObject = {**name_task(record), "answer": result}
    rules = consulting.find_rules()
    hook_results = await consulting.hooks.evaluate("before_deliver", rules, given)
    against = next((one for one in hook_results.verdicts if one.verdict in {"deny", "ask"}), None)
    # Stored notes can be read by those from whom the answer is withheld.
    notes = (hook_results if against is None else hook_results.without_content()).notes

    def note(draft: DecisionDraft) -> None:
        draft.add(write_notes(draft.spill, tasks.scope_of(draft.record), notes))

    await active.append(note)
    if against is None:
        return True
    reason = f"the answer is withheld: {against.reason}"
    # Its first frame is not stored, so nothing else names its task.
    remote = active.remote_task() or read_task_id(result)
    failure = ErrorDetail("withheld", ErrorCategory.POLICY, reason, source=against.ref)
    await fail(active, failure)
    if remote is not None:
        await active.peer.cancel(remote)
    return False


def name_task(record: TaskRecord) -> JsonObject:
    """The ids of a task for hooks."""
    scope = tasks.scope_of(record)
    return {
        "sessionId": scope.session_id,
        "threadId": scope.thread_id,
        "taskId": scope.task_id,
        "runId": scope.run_id,
    }


def _digest_brought(result: JsonObject) -> frozenset[str]:
    """Digests of all pieces of an answer, so that hooks judge each piece once, however often it is seen."""
    task, update = object_at(result, "task"), object_at(result, "statusUpdate")
    chunk = object_at(result, "artifactUpdate")
    pieces: list[Json] = [
        result.get("message"),
        chunk.get("artifact"),
        *(holder.get("metadata") for holder in (task, update, chunk)),
        object_at(task or update, "status").get("message"),
        *objects_at(task, "artifacts"),
        *(one for one in objects_at(task, "history") if one.get("role") != ROLE_USER),
    ]
    return frozenset(_digest(one) for one in pieces if one)


def _digest(piece: Json) -> str:
    try:
        return digest(piece)
    except InvalidInput:
        # Numbers without a canonical form are compared by their text.
        return repr(piece)

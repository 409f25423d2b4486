"""What the peer says becomes facts: answers, frames, and what came of a call.

Hooks at the other end of a task: before what an agent brings is stored, and after the task has ended.

An answer that a hook does not let through is stored nowhere: the task fails and says why. What was shown of a stream
before stays shown. A hook that is told of an end has nothing to decide any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from passerelle.a2a_mapping.members import object_at
from passerelle.core import task as tasks
from passerelle.core.batch import Claim, IdempotencyRow
from passerelle.core.canonical import digest
from passerelle.core.errors import InvalidInput, StoreUnavailable, TooLarge, UnsupportedOperation
from passerelle.core.events import Fact
from passerelle.core.facts import ErrorCategory, Failure
from passerelle.core.payloads.run import ModelFailed, RunStatus
from passerelle.core.peer import Answered, Malformed, Refused, Unknown, Unreached
from passerelle.core.principal import Principal
from passerelle.core.status import ENDED, Status
from passerelle.core.task_commands import ObserveStatus
from passerelle.core.task_record import TaskRecord
from passerelle.delegation.runs.draft import Step
from passerelle.delegation.runs.failure import RunEnd, end_run, explain, explain_break
from passerelle.delegation.runs.finish import fail
from passerelle.delegation.runs.observation import observe
from passerelle.permission_bridge.hooks.consulting import Unheard
from passerelle.permission_bridge.hooks.hearing import UNHEARD
from passerelle.runtime.records.spill import Spill, write_notes
from passerelle.runtime.records.writes import Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from passerelle.core.batch import EntityRef
    from passerelle.core.decision import Decision
    from passerelle.core.json import JsonObject
    from passerelle.core.peer import PeerOutcome
    from passerelle.core.ports.due import DueRow
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.delegation.runs.driver import ActiveRun


async def apply_results(
    driver: ActiveRun,
    results: list[JsonObject],
    before: Callable[[Step], None] | None = None,
    after: Callable[[Step], None] | None = None,
) -> None:
    """Stores what the peer answered, in as many appends as it takes.

    ``before`` adds to the first of them, ``after`` to the last.
    """
    results = [driver.means.outputs.redaction.clean(one) for one in results]
    results = await let_through(driver, results)
    at_once = len(results)
    if before is not None and not results:
        await driver.patiently(before)
    while results:
        taken = 0
        ending = after if after is not None and at_once >= len(results) else _add_nothing

        def tell(
            step: Step,
            batch: list[JsonObject] = results[:at_once],
            begin: Callable[[Step], None] = before or _add_nothing,
            end: Callable[[Step], None] = ending,
        ) -> None:
            nonlocal taken
            begin(step)
            taken = _observe(step, batch)
            if taken == len(batch):
                end(step)

        await _await_release(driver, results)
        try:
            await _store(driver, tell)
        except UnsupportedOperation:
            await driver.run.refresh()
            if not driver.run.is_held():
                raise
        except TooLarge:
            if at_once == 1:
                raise
            at_once //= 2
        else:
            results, before = results[taken:], None


def _add_nothing(_step: Step) -> None:
    """What the peer says stands alone."""


def _observe(step: Step, results: list[JsonObject]) -> int:
    """How many of the results are taken: an append holds only so much."""
    for number, result in enumerate(results):
        observe(step, result)
        if step.more:
            return number
    return len(results)


async def _store(driver: ActiveRun, take: Callable[[Step], None]) -> None:
    """Stores what was observed; where the peer asks something new, once everybody has been heard about it."""
    while True:
        try:
            await driver.patiently(take)
        except Unheard as unheard:
            await _consult(driver, unheard)
        else:
            # What was heard counts once: about the same, asked again, everybody is heard again.
            if driver.run.sight.consulted:
                driver.run.sight.consulted.clear()
            return


async def _consult(driver: ActiveRun, unheard: Unheard) -> None:
    """Hears everybody about what the peer asks, before it is decided."""
    record, consulted = driver.run.record, driver.run.sight.consulted
    owner, scope = (
        Principal(record.scope.principal, record.scope.tenant),
        tasks.scope_of(record),
    )
    while consulted is not None:
        try:
            for prompt, case in unheard.prompts:
                if prompt.occurrence not in consulted:
                    heard = await driver.means.consulting.hear(
                        case, owner, scope, driver.run.sight.mint
                    )
                    consulted[prompt.occurrence] = heard
        except StoreUnavailable as error:
            await driver.hold(error)
        else:
            return


async def _await_release(driver: ActiveRun, results: list[JsonObject]) -> None:
    """A bare message for a task that is paused or blocked stands nowhere else, so it waits here (CMD-8)."""
    while driver.run.is_held() and any("message" in result for result in results):
        await driver.rest(driver.patience.parked_poll_max_s)


async def revive_lost(driver: ActiveRun) -> None:
    """A task that was lost and of which the peer tells again is under way."""
    if driver.run.record.status is Status.LOST:
        said = RunStatus(native_status=driver.run.record.attempts[-1].native_status)
        step_id = driver.run.sight.mint("step")
        command = ObserveStatus(Status.RUNNING, said, step_id)
        await driver.patiently(lambda step: step.add(step.tell(command)))


def refuse_message(step: Step, failure: Failure, turns: Sequence[str]) -> None:
    """A further message has not been taken: its turns have the reason for an answer, and the run goes on (CMD-14).

    To be added before what the peer says of its task by now, which may answer other turns.
    """
    if step.record.run is not None:
        scope = tasks.scope_of(step.record)
        step.add([Fact(scope, ModelFailed(step.sight.peer, failure))])
        step.add([Fact(scope, RunStatus(refused=failure))])
        step.turned_down = True
    step.refuse_turns(turns, failure)


async def apply_input_outcome(driver: ActiveRun, outcome: PeerOutcome, turn_id: str) -> None:
    """Takes what came of a further message to a run that works; one that is refused leaves the run as it is."""
    if isinstance(outcome, Refused | Unreached | Malformed) and driver.remote_task() is not None:
        failure = explain(outcome, driver.run.sight, driver.run.record).failure
        await driver.patiently(lambda step: refuse_message(step, failure, [turn_id]))
        return
    await apply_outcome(driver, outcome)


async def apply_outcome(driver: ActiveRun, outcome: PeerOutcome) -> bool:
    """Takes the answer of a unary call; False when nobody knows whether it arrived."""
    match outcome:
        case Answered(result=result):
            await apply_results(driver, [result])
        case Refused() | Unreached() | Malformed():
            await refuse(driver, outcome)
        case Unknown(reason=reason):
            driver.means.log.warning("send.unknown", task=driver.run.record.task_id, reason=reason)
            await tell_broken(driver, outcome)
            return False
        case _:
            assert_never(outcome)
    return True


async def tell_broken(driver: ActiveRun, outcome: Unknown | Malformed) -> None:
    """The exchange broke under what was sent; that says nothing about the task (EVC-6, I6)."""
    if driver.run.record.run is None:
        return
    failure = explain_break(outcome, driver.run.sight.peer)
    said = ModelFailed(driver.run.sight.peer, failure)
    await driver.patiently(lambda step: step.add([Fact(tasks.scope_of(step.record), said)]))


async def refuse(driver: ActiveRun, outcome: Refused | Unreached | Malformed) -> None:
    """The peer did not take the message of the run, or answered nonsense: that ends the run."""
    refusal = explain(outcome, driver.run.sight, driver.run.record)
    wait_ms = 0 if isinstance(outcome, Malformed) else 1000 * (outcome.retry_after_s or 0)

    def end(step: Step) -> None:
        if refusal.hit is not None:
            step.add([Fact(tasks.scope_of(step.record), refusal.hit)])
        end_run(step, RunEnd(refusal.failure, wait_ms=wait_ms))
        # Whoever waits goes on waiting where another attempt follows.
        driver.failure = refusal.error if step.record.status in ENDED else None

    await driver.patiently(end)


STOP_ROW: Final = "stop"
"""The kind of the due row of an end that hooks are told of."""
_KEPT_MS: Final = 3_600_000


async def let_through(driver: ActiveRun, results: list[JsonObject]) -> list[JsonObject]:
    """The results as far as hooks let them through: with the first that they do not, the task has failed."""
    rules = driver.means.consulting.find_rules()
    if not rules.hooks_at("before_deliver"):
        return results
    passed: list[JsonObject] = []
    for result in results:
        if driver.run.has_ended():
            break
        brought = _digest_brought(result)
        if brought is None or brought in driver.let_through or await _ask(driver, result):
            passed.append(result)
            driver.let_through |= {brought} if brought else frozenset()
    return [] if driver.run.has_ended() else passed


async def _ask(driver: ActiveRun, result: JsonObject) -> bool:
    consulting, record = driver.means.consulting, driver.run.record
    given: JsonObject = {**_name(record), "answer": result}
    rules = consulting.find_rules()
    heard = await consulting.hooks.hear("before_deliver", rules, given)

    def note(step: Step) -> None:
        step.add(write_notes(step.spill, tasks.scope_of(step.record), heard.notes))

    await driver.patiently(note)
    against = next((one for one in heard.said if one.verdict in {"deny", "ask"}), None)
    if against is None:
        return True
    reason = f"the answer is withheld: {against.reason}"
    remote = driver.remote_task()
    failure = Failure("withheld", ErrorCategory.POLICY, reason, source=against.ref)
    await fail(driver, failure)
    if remote is not None:
        await driver.peer.cancel(remote)
    return False


async def tell_stop(dispatch: Dispatch, task: EntityRef, row: DueRow) -> bool:
    """Tells hooks of the end of a task, and settles the row; False where there is nothing to tell."""
    record = (await dispatch.writes.load([task]))[task].record
    consulting = dispatch.consulting
    rules = consulting.find_rules()
    if not isinstance(record, TaskRecord) or not rules.hooks_at("on_stop"):
        return False
    given: JsonObject = {
        **_name(record),
        "status": record.status,
        "reason": record.status_reason,
        "peer": record.peer,
    }
    heard = await consulting.hooks.hear("on_stop", rules, given)
    if heard is UNHEARD:
        return False
    spill = Spill()
    facts = write_notes(spill, tasks.scope_of(record), heard.notes)
    for blob in spill.blobs:
        await dispatch.blobs.put(task.shard, blob)

    def body(decision: Decision) -> Terms:
        decision.add(facts)
        key = f"{row.member}:{record.exposure}"
        return Terms(
            claim=Claim(row.member, row.token), idem=IdempotencyRow(key, key, b"", _KEPT_MS)
        )

    await dispatch.writes.decide(record.session_id, [], body)
    return True


def _name(record: TaskRecord) -> JsonObject:
    scope = tasks.scope_of(record)
    return {
        "sessionId": scope.session_id,
        "threadId": scope.thread_id,
        "taskId": scope.task_id,
        "runId": scope.run_id,
    }


def _digest_brought(result: JsonObject) -> str | None:
    """What an answer brings, so that it is asked about once however often it is seen; None where it brings nothing."""
    task, update = object_at(result, "task"), object_at(result, "statusUpdate")
    brought: JsonObject = {
        "message": result.get("message"),
        "artifact": object_at(result, "artifactUpdate").get("artifact"),
        "artifacts": task.get("artifacts"),
        "said": object_at(task or update, "status").get("message"),
    }
    if not any(brought.values()):
        return None
    try:
        return digest(brought)
    except InvalidInput:
        return ""

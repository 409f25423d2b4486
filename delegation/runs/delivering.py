"""Hooks at the other end of a task: before what an agent brings is stored, and after the task has ended.

An answer that a hook does not let through is stored nowhere: the task fails and says why. What was shown of a stream
before stays shown. A hook that is told of an end has nothing to decide any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.members import object_at
from passerelle.core import task as tasks
from passerelle.core.batch import Claim, IdempotencyRow
from passerelle.core.canonical import digest
from passerelle.core.errors import InvalidInput
from passerelle.core.facts import ErrorCategory, Failure
from passerelle.core.task_record import TaskRecord
from passerelle.delegation.runs.endings import fail
from passerelle.permission_bridge.hooks.hearing import UNHEARD
from passerelle.runtime.records.spill import Spill, write_notes
from passerelle.runtime.records.writes import Terms

if TYPE_CHECKING:
    from passerelle.core.batch import EntityRef
    from passerelle.core.decision import Decision
    from passerelle.core.json import JsonObject
    from passerelle.core.ports.due import DueRow
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.delegation.runs.driver import Driver
    from passerelle.delegation.runs.step import Step

STOP_ROW: Final = "stop"
"""The kind of the due row of an end that hooks are told of."""
_KEPT_MS: Final = 3_600_000


async def let_through(driver: Driver, results: list[JsonObject]) -> list[JsonObject]:
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


async def _ask(driver: Driver, result: JsonObject) -> bool:
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

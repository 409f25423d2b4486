"""An answer that the agent does not take: its callers are told at once, and the task is what the agent says of it.

One that waits asks the same again, under a question of its own: a question that is closed stays closed (I7). One that
finds fault with the answer waits as well, even if it says that it works: some agents say so before they have looked at
what they were sent, and never take it back. An answer that a rule or a clock has given would be given again for ever,
so with such an answer the run has failed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.dialects.presentation import read_decision
from passerelle.a2a_mapping.dialects.recalling import restate
from passerelle.a2a_mapping.identity import make_relabel
from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.a2a_mapping.states import INTERRUPTED_STATES, TERMINAL_STATES
from passerelle.core import approval
from passerelle.core import task as tasks
from passerelle.core.approval_commands import FailReturn
from passerelle.core.approval_record import ActionRecord
from passerelle.core.batch import DueChange
from passerelle.core.errors import InvalidInput
from passerelle.core.events import Fact
from passerelle.core.payloads.run import RunStatus
from passerelle.core.peer import Answered, Refused
from passerelle.core.status import WAITING
from passerelle.delegation.runs.failing import Ended, end_run
from passerelle.delegation.runs.raising import fail_raised, finds_fault, has_raised, read_state
from passerelle.delegation.runs.refusal import explain, list_ids
from passerelle.delegation.runs.step import find_action
from passerelle.delegation.runs.taking import take, turn_down
from passerelle.permission_bridge.answers.native_answers import find_turn
from passerelle.permission_bridge.returning import REFUSED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.facts import Failure
    from passerelle.core.json import JsonObject
    from passerelle.core.peer import Malformed
    from passerelle.delegation.runs.driver import Driver
    from passerelle.delegation.runs.run import Run
    from passerelle.delegation.runs.step import Step

ON_ITS_WAY: Final = frozenset({"owed", "returning"})
"""Where the return of an answer stands that is neither there nor given up."""


async def find_turns(run: Run, actions: Sequence[ActionRecord]) -> list[str]:
    """The open turns that brought an answer to ``actions``; none where nobody said it in a message to the task.

    Words give their turn to the decision, and an answer in the form of the agent a name that is made of it. An answer
    in our own form names its decision itself.
    """
    record = run.record
    named = {action.decision.decision_id for action in actions if action.decision}
    turns = named | {find_turn(name) for name in named}
    found = [turn_id for turn_id in record.open_turns if turn_id in turns]
    if not found:
        for turn_id in record.open_turns:
            message = await run.contents.read_turn(record, turn_id)
            if message is not None and _name_decision(message) in named:
                found.append(turn_id)
    return found


def _name_decision(message: JsonObject) -> str | None:
    try:
        answer = read_decision(message)
    except InvalidInput:
        return None
    return answer.decision_id if answer else None


async def turn_down_answer(
    driver: Driver, action_ids: Sequence[str], remote: str, outcome: Refused | Malformed
) -> None:
    """Takes ``outcome``, with which the agent refused the answers to ``action_ids`` on its task ``remote``."""
    failure = explain(outcome, driver.run.sight, driver.run.record).failure
    held = [
        driver.run.held[ref].record
        for ref in map(find_action, action_ids)
        if ref in driver.run.held
    ]
    turns = await find_turns(driver.run, [one for one in held if isinstance(one, ActionRecord)])
    seen = await driver.peer.get(remote)
    is_given = True

    def tell(step: Step) -> None:
        nonlocal is_given
        actions = _find_owed(step, action_ids)
        is_given = all(one.decision and one.decision.source == "answer" for one in actions)
        for action in actions:
            refused = FailReturn(f"{REFUSED}: {failure.message}")
            step.add(approval.decide(action, refused, step.decision.now_ms))
            step.due.append(DueChange(f"return:{action.request.action_id}", None))
        turn_down(step, failure, turns)

    if isinstance(outcome, Refused) and has_raised(outcome, seen):
        await fail_raised(driver, outcome, tell)
    elif isinstance(seen, Answered):
        waits = read_state(seen) in INTERRUPTED_STATES
        asked = None if waits or not finds_fault(outcome) else _restate(driver, action_ids, seen)
        if asked is None:
            await take(driver, [{"task": seen.result}], tell)
        else:
            await take(driver, [{"task": asked}], tell, lambda step: _wait_on(step, seen))
        if not is_given and (waits or asked is not None):
            await _give_up(driver, remote, failure)
    else:
        await driver.patiently(tell)


def _restate(driver: Driver, action_ids: Sequence[str], seen: Answered) -> JsonObject | None:
    """The task as it asked, where the agent is said to work since and has refused what it was sent as the answer."""
    run = driver.run
    held = [run.held[ref].record for ref in map(find_action, action_ids) if ref in run.held]
    asked = next((one.request.remote for one in held if isinstance(one, ActionRecord)), None)
    if asked is None or read_state(seen) in TERMINAL_STATES:
        return None
    ids = make_relabel(run.record.task_id, run.sight.context_id, list_ids(run.sight, run.record))
    return restate(seen.result, asked, run.sight.content or {}, ids.scrub(asked.message_id or ""))


def _wait_on(step: Step, seen: Answered) -> None:
    """What the agent says of its task is no news from here on, while it waits."""
    message = object_at(object_at(seen.result, "status"), "message")
    said = RunStatus(waits_on=read_state(seen), message_id=text_at(message, "messageId") or None)
    if step.record.status in WAITING:
        step.add([Fact(tasks.scope_of(step.record), said)])


def _find_owed(step: Step, action_ids: Sequence[str]) -> list[ActionRecord]:
    found = [step.decision.state(find_action(action_id)) for action_id in action_ids]
    return [
        one for one in found if isinstance(one, ActionRecord) and one.return_state in ON_ITS_WAY
    ]


async def _give_up(driver: Driver, remote: str, failure: Failure) -> None:
    """The agent waits for an answer that nobody gives any more: the task fails, and the agent is told to stop."""
    text = f"the agent did not take the answer that policy has given: {failure.message}"

    def end(step: Step) -> None:
        if step.record.run is not None:
            step.close_actions("asker_lost")
            end_run(step, Ended(replace(failure, message=text)))

    await driver.patiently(end)
    await driver.peer.cancel(remote)

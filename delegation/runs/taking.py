"""What the peer says becomes facts: answers, frames, and what came of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from passerelle.core import task as tasks
from passerelle.core.errors import (
    StoreUnavailable,
    TooLarge,
    UnsupportedOperation,
)
from passerelle.core.events import Fact
from passerelle.core.payloads.run import ModelFailed, RunStatus
from passerelle.core.peer import Answered, Malformed, Refused, Unknown, Unreached
from passerelle.core.principal import Principal
from passerelle.core.status import ENDED, Status
from passerelle.core.task_commands import ObserveStatus
from passerelle.delegation.runs.delivering import let_through
from passerelle.delegation.runs.failing import Ended, end_run
from passerelle.delegation.runs.observe import observe
from passerelle.delegation.runs.refusal import explain, explain_break
from passerelle.delegation.runs.step import Step
from passerelle.permission_bridge.hooks.consulting import Unheard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from passerelle.core.facts import Failure
    from passerelle.core.json import JsonObject
    from passerelle.core.peer import PeerOutcome
    from passerelle.delegation.runs.driver import Driver


async def take(
    driver: Driver,
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


async def _store(driver: Driver, take: Callable[[Step], None]) -> None:
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


async def _consult(driver: Driver, unheard: Unheard) -> None:
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


async def _await_release(driver: Driver, results: list[JsonObject]) -> None:
    """A bare message for a task that is paused or blocked stands nowhere else, so it waits here (CMD-8)."""
    while driver.run.is_held() and any("message" in result for result in results):
        await driver.rest(driver.patience.parked_poll_max_s)


async def resurrect(driver: Driver) -> None:
    """A task that was lost and of which the peer tells again is under way."""
    if driver.run.record.status is Status.LOST:
        said = RunStatus(native_status=driver.run.record.attempts[-1].native_status)
        step_id = driver.run.sight.mint("step")
        command = ObserveStatus(Status.RUNNING, said, step_id)
        await driver.patiently(lambda step: step.add(step.tell(command)))


def turn_down(step: Step, failure: Failure, turns: Sequence[str]) -> None:
    """A further message has not been taken: its turns have the reason for an answer, and the run goes on (CMD-14).

    To be added before what the peer says of its task by now, which may answer other turns.
    """
    if step.record.run is not None:
        scope = tasks.scope_of(step.record)
        step.add([Fact(scope, ModelFailed(step.sight.peer, failure))])
        step.add([Fact(scope, RunStatus(refused=failure))])
        step.turned_down = True
    step.refuse_turns(turns, failure)


async def settle_input(driver: Driver, outcome: PeerOutcome, turn_id: str) -> None:
    """Takes what came of a further message to a run that works; one that is refused leaves the run as it is."""
    if isinstance(outcome, Refused | Unreached | Malformed) and driver.remote_task() is not None:
        failure = explain(outcome, driver.run.sight, driver.run.record).failure
        await driver.patiently(lambda step: turn_down(step, failure, [turn_id]))
        return
    await settle(driver, outcome)


async def settle(driver: Driver, outcome: PeerOutcome) -> bool:
    """Takes the answer of a unary call; False when nobody knows whether it arrived."""
    match outcome:
        case Answered(result=result):
            await take(driver, [result])
        case Refused() | Unreached() | Malformed():
            await refuse(driver, outcome)
        case Unknown(reason=reason):
            driver.means.log.warning("send.unknown", task=driver.run.record.task_id, reason=reason)
            await tell_broken(driver, outcome)
            return False
        case _:
            assert_never(outcome)
    return True


async def tell_broken(driver: Driver, outcome: Unknown | Malformed) -> None:
    """The exchange broke under what was sent; that says nothing about the task (EVC-6, I6)."""
    if driver.run.record.run is None:
        return
    failure = explain_break(outcome, driver.run.sight.peer)
    said = ModelFailed(driver.run.sight.peer, failure)
    await driver.patiently(lambda step: step.add([Fact(tasks.scope_of(step.record), said)]))


async def refuse(driver: Driver, outcome: Refused | Unreached | Malformed) -> None:
    """The peer did not take the message of the run, or answered nonsense: that ends the run."""
    refusal = explain(outcome, driver.run.sight, driver.run.record)
    wait_ms = 0 if isinstance(outcome, Malformed) else 1000 * (outcome.retry_after_s or 0)

    def end(step: Step) -> None:
        if refusal.hit is not None:
            step.add([Fact(tasks.scope_of(step.record), refusal.hit)])
        end_run(step, Ended(refusal.failure, wait_ms=wait_ms))
        # Whoever waits goes on waiting where another attempt follows.
        driver.failure = refusal.error if step.record.status in ENDED else None

    await driver.patiently(end)

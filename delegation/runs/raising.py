"""An agent that breaks over its own work: it said an error after it had begun, and says nothing else any more.

What it says of its task outweighs the error: a task that has ended, or waits, stands as it does. One that is still said
to work will never move again, since agents forget to end a task whose program has raised; so its run has failed.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.errors import ErrorKind, classify_native
from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.a2a_mapping.states import INTERRUPTED_STATES, TERMINAL_STATES
from passerelle.core.peer import Answered, Refused
from passerelle.core.status import ENDED, Status
from passerelle.delegation.runs.failing import Ended, end_run
from passerelle.delegation.runs.refusal import explain
from passerelle.delegation.runs.taking import take

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.peer import Malformed, PeerOutcome
    from passerelle.delegation.runs.driver import Driver
    from passerelle.delegation.runs.step import Step

_BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_FAULTS: Final = frozenset({ErrorKind.INVALID_PARAMS, ErrorKind.CONTENT_TYPE_NOT_SUPPORTED})
_AT_REST: Final = INTERRUPTED_STATES | TERMINAL_STATES


def has_raised(outcome: Refused | Malformed, seen: PeerOutcome) -> bool:
    """Whether an agent that refused an answer with ``outcome`` broke over it: it works on in name only.

    ``seen`` is what it says of the task since. With another error it has not taken the answer, and may work on.
    """
    if not isinstance(outcome, Refused) or not isinstance(seen, Answered):
        return False
    is_internal = classify_native(outcome.code) is ErrorKind.INTERNAL
    is_its_own = not outcome.is_bare or outcome.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return is_internal and is_its_own and read_state(seen) not in _AT_REST


def finds_fault(outcome: Refused | Malformed) -> bool:
    """Whether an agent says that what it was sent is wrong: it waits for something else then."""
    return isinstance(outcome, Refused) and classify_native(outcome.code) in _FAULTS


def read_state(seen: Answered) -> str:
    """The state of the task that GetTask has shown."""
    return text_at(object_at(seen.result, "status"), "state")


async def end_raised(driver: Driver, outcome: Refused) -> None:
    """The stream of a run that had begun ended with an error: the run has failed, unless its task says more."""
    remote = driver.remote_task()
    if remote is None or outcome.http_status in _BUSY or driver.run.record.status in ENDED:
        return
    seen = await driver.peer.get(remote)
    if isinstance(seen, Answered) and read_state(seen) in _AT_REST:
        await take(driver, [{"task": seen.result}])
        return
    await fail_raised(driver, outcome)


async def fail_raised(
    driver: Driver, outcome: Refused, before: Callable[[Step], None] | None = None
) -> None:
    """Ends the run with the words of the agent; ``before`` adds to the append."""
    failure = explain(outcome, driver.run.sight, driver.run.record).failure

    def end(step: Step) -> None:
        if before is not None:
            before(step)
        if step.record.run is None or step.record.status is Status.CANCELLING:
            return
        step.close_actions("asker_lost")
        end_run(step, Ended(failure))

    await driver.patiently(end)

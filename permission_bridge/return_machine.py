"""Delivers an approval decision to the agent, one step at a time: check the task, send once, never resend blindly.

An agent that has the decision may not report it: the connection broke, or it is slow to read. A second delivery could
run a tool twice, and deduplication by message id is only a MAY of A2A (1.0, section 3.3.1). So each step begins with
GetTask, and its result outweighs what the record says: our message in the history is a delivery, another approval
request ends this one, and a task that ended takes no decision. The decision is sent only to a task that still waits for
it, and after an attempt with an unknown outcome only once the agent can no longer be reading that attempt.

An unreachable agent is retried until the caller gives the run up as lost. Times are milliseconds of one clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from passerelle.core.back_off import find_pause
from passerelle.core.frozen import frozen
from passerelle.core.peer import Answered, Malformed, PeerOutcome, RefusedByPeer, Unknown, Unreached
from passerelle.core.wire.times import parse_ms

if TYPE_CHECKING:
    from passerelle.core.approval.record import ActionRecord

BACKOFF_MS: Final = 10_000
BACKOFF_MAX_MS: Final = 300_000
REFUSED: Final = "peer_refused"
"""Prefix of the reason of a decision that the agent did not accept."""
_TOO_MANY: Final = 429
_AWAY: Final = 503


@frozen
class StillWaiting:
    """GetTask: the task waits; ``same``: for the same occurrence."""

    same: bool
    native_status: str
    has_message: bool | None = None
    """Whether our message id is in the history; None if the agent shows no history."""


@frozen
class RunningOn:
    """GetTask: the task is working, and does not wait."""

    native_status: str
    has_message: bool | None = None


@frozen
class TaskOver:
    """GetTask: the task is in a terminal state."""

    native_status: str
    has_message: bool | None = None


@frozen
class Gone:
    """GetTask: the agent does not know the task."""


@frozen
class Unreachable:
    """GetTask was not answered, or not with a task."""


TaskSighting: TypeAlias = StillWaiting | RunningOn | TaskOver | Gone | Unreachable


@frozen
class ReturnAttempts:
    """The attempts *before* this step; any of them may have reached the agent.

    ``last_ms`` is the time of the last one, if there was any; ``untaken``: it certainly did not arrive.
    """

    count: int = 0
    last_ms: int = 0
    untaken: bool = False


@frozen
class SendReturn:
    """Store the attempt (BeginReturn), then send once."""


@frozen
class Returned:
    """The agent has the decision (FinishReturn)."""

    native_status: str


@frozen
class Undeliverable:
    """The agent will never accept the decision (FailReturn)."""

    reason: str


@frozen
class WaitUntil:
    """Nothing to do before ``at_ms``: the time of the due row."""

    at_ms: int


ReturnStep: TypeAlias = SendReturn | Returned | Undeliverable | WaitUntil


def read_attempts(record: ActionRecord, *, untaken: bool = False) -> ReturnAttempts:
    """The attempts of a record, read before a further one is stored."""
    # After a retry that a person requested this is the time of that request: later than the attempt, never earlier.
    return ReturnAttempts(record.return_attempts, parse_ms(record.updated_at), untaken)


def choose_step(
    observed: TaskSighting, attempts: ReturnAttempts, now_ms: int, doubt_ms: int
) -> ReturnStep:
    """The next step for a decision that is ``owed`` or ``returning``, given the result of GetTask.

    ``doubt_ms``: how long a message of unknown outcome may still be on its way to the agent, whichever process sent it:
    data that a process has written is delivered even if the process dies.
    """
    match observed:
        case Unreachable():
            return WaitUntil(now_ms + back_off(attempts.count))
        case Gone():
            return Undeliverable("task_not_found")
        case StillWaiting(same=True, has_message=True) if attempts.count:
            return _judge_unaccepted(attempts, now_ms, doubt_ms)
        case StillWaiting() | RunningOn() | TaskOver() if observed.has_message:
            return Returned(observed.native_status)
        case StillWaiting(same=False):
            return Undeliverable("stale")
        case StillWaiting():
            return _try_again(attempts, now_ms, doubt_ms)
        case RunningOn(has_message=None, native_status=native_status) if attempts.count:
            return Returned(native_status)
        case RunningOn():
            # The task continued without our decision: the history, or the absence of any attempt, proves it.
            return Undeliverable("peer_moved_on")
        case TaskOver():
            return Undeliverable("peer_terminal")
        case _:
            assert_never(observed)


def back_off(attempts: int) -> int:
    """Milliseconds until the next check: 10 s, doubling, at most 5 min."""
    return find_pause(BACKOFF_MS, BACKOFF_MAX_MS, attempts)


@frozen
class LookAgain:
    """Call GetTask again, not before ``at_ms``; ``untaken`` is passed to the ``ReturnAttempts`` of that step."""

    at_ms: int
    untaken: bool = False


@frozen
class TurnedDown:
    """The agent has answered and refuses the decision: the approver is notified and may decide again."""

    outcome: RefusedByPeer | Malformed


def judge_sending(
    outcome: PeerOutcome, native_status: str | None, attempts: int, now_ms: int
) -> Returned | TurnedDown | LookAgain:
    """The result of a delivery; if the agent did not answer, or is busy, GetTask is called again.

    ``attempts`` counts this one; ``native_status`` is the state in the agent's answer, None for a bare Message.
    """
    match outcome:
        case Answered():
            return Returned(native_status or "unknown")
        case RefusedByPeer(http_status=status, retry_after_s=wait_s) if status == _TOO_MANY or (
            status == _AWAY and wait_s is not None
        ):
            return LookAgain(
                now_ms + (back_off(attempts) if wait_s is None else wait_s * 1000), True
            )
        case RefusedByPeer() | Malformed():
            return TurnedDown(outcome)
        case Unreached():
            return LookAgain(now_ms + back_off(attempts), untaken=True)
        case Unknown():
            return LookAgain(now_ms + back_off(attempts))
        case _:
            assert_never(outcome)


def _judge_unaccepted(attempts: ReturnAttempts, now_ms: int, doubt_ms: int) -> ReturnStep:
    """The agent has the decision and still waits: it may be about to accept it, or its refusal was lost."""
    settled_ms = min(attempts.last_ms, now_ms) + doubt_ms
    if now_ms > settled_ms:
        return Undeliverable(f"{REFUSED}: the agent has the answer and still waits")
    return WaitUntil(settled_ms + 1)


def _try_again(attempts: ReturnAttempts, now_ms: int, doubt_ms: int) -> ReturnStep:
    if attempts.count == 0 or attempts.untaken:
        return SendReturn()
    # A time in the future comes from another machine's clock. It counts as now, which only lengthens the wait.
    settled_ms = min(attempts.last_ms, now_ms) + doubt_ms
    return SendReturn() if now_ms > settled_ms else WaitUntil(settled_ms + 1)

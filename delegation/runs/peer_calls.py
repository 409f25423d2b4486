"""Calls to the peer about its task: GetTask, CancelTask, a further message."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, assert_never

from passerelle.a2a_mapping.outbound import RemoteAddress, address_send
from passerelle.a2a_mapping.replies import MalformedReply, read_task_reply
from passerelle.core.errors import TooLarge
from passerelle.core.peer import Answered, Malformed, RefusedByPeer, Unknown, Unreached
from passerelle.core.task.status import Status
from passerelle.delegation.runs.finish import confirm_cancel, fail, give_up, judge_liveness, lose
from passerelle.delegation.runs.lost_tail import explain_lost
from passerelle.delegation.runs.results import apply_results, revive_lost

if TYPE_CHECKING:
    from passerelle.core.peer import PeerOutcome
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun

_TASK_NOT_FOUND: Final = -32001
_NEVER_TOLD: Final = frozenset({_TASK_NOT_FOUND, -32601, -32004})
"""The task, the method or the operation is unknown to the peer."""
_NO_OPERATION: Final = frozenset(
    {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
)
_LONGEST_TASK_BYTES: Final = 24 * 1024 * 1024
"""The most that the client of a peer reads of one answer."""


async def poll_task(active: ActiveRun, remote: str) -> bool:
    """Polls with GetTask and records news; a task that the peer no longer knows is lost. Whether the peer answered."""
    outcome = await active.peer.get(remote)
    match outcome:
        case Answered(result=task) if isinstance(
            malformed := read_task_reply(task), MalformedReply
        ):
            # It lives, but as long as its task cannot be read, that says nothing of the task.
            await judge_liveness(active, f"the peer's task cannot be read: {malformed.reason}")
        case Answered(result=task):
            active.proof_ms = active.deps.clock.now_ms()
            await apply_results(active, [{"task": task}])
            await revive_lost(active)
            active.has_lost = False
        case RefusedByPeer() if active.has_lost and _cannot_tell(outcome):
            await fail(active, explain_lost(active.peer.name))
        case RefusedByPeer(code=code) if code == _TASK_NOT_FOUND:
            if active.run.record.status is Status.CANCELLING:
                await confirm_cancel(active)
            else:
                await lose(active, "the peer does not know the task any more")
        case RefusedByPeer(
            http_status=HTTPStatus.TOO_MANY_REQUESTS | HTTPStatus.SERVICE_UNAVAILABLE
        ):
            # It lives, and has stated when to come back.
            active.proof_ms = active.deps.clock.now_ms()
            active.not_before_ms = active.proof_ms + (outcome.retry_after_s or 0) * 1000
        case Malformed(too_long=True):
            # The task exceeds the read limit, however often it is polled.
            await give_up(active, TooLarge("the task at the agent", _LONGEST_TASK_BYTES))
        case RefusedByPeer() | Unreached() | Unknown() | Malformed():
            reason = type(outcome).__name__.lower()
            await judge_liveness(active, f"the peer is out of reach: {reason}")
        case _:
            assert_never(outcome)
    return isinstance(outcome, Answered | RefusedByPeer)


def _cannot_tell(outcome: RefusedByPeer) -> bool:
    """Whether the peer can never report the state of the task: it has no such task, or no such operation."""
    return outcome.code in _NEVER_TOLD or outcome.http_status in _NO_OPERATION


async def cancel_task(active: ActiveRun) -> bool:
    """Cancels the task at the peer; returns whether the peer got it. Until then the cancel has a due row.

    The answer is the task that a stream reports already, so while a stream is read its reader polls for itself.
    """
    remote = active.remote_task()
    if remote is None or active.run.has_ended():
        active.wake()
        run = active.run.record.run
        if run is not None and run.send_after is not None:
            await _await_end(active)
        return active.run.has_ended()
    outcome = await active.peer.cancel(remote)
    if isinstance(outcome, Unreached | Unknown | Malformed):
        active.deps.log.warning("cancel.unknown", task=active.run.record.task_id)
    elif active.is_streaming:
        active.wake()
        await _await_end(active)
    elif isinstance(outcome, Answered):
        await apply_results(active, [{"task": outcome.result}])
    else:
        await poll_task(active, remote)
    active.wake()
    return isinstance(outcome, Answered | RefusedByPeer)


async def _await_end(active: ActiveRun) -> None:
    """Waits a while for the end: the caller of a cancel wants to read that it has worked."""
    with suppress(TimeoutError):
        async with asyncio.timeout(active.timeouts.cancel_s):
            while not (active.run.has_ended() or active.run.moved):
                await active.run.wait_for_change()


async def send_input(
    active: ActiveRun, message: JsonObject, params: JsonObject
) -> PeerOutcome | None:
    """Sends a further message on the live run; returns the outcome, None where the run is over."""
    run = active.run.record.run
    if run is None:
        return None
    referred = await active.refer(message)
    to = RemoteAddress(
        run.remote_context_id, run.remote_task_id, references=referred.ids, parts=referred.parts
    )
    sent = address_send({**params, "message": message}, to)
    await active.wait_until_sendable()
    active.left_ms = 0
    return await active.send(sent)

"""Why a turn has no answer: the recorded error as the error that its caller gets, also after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.errors import (
    InvalidAgentResponse,
    PasserelleError,
    PeerRefused,
    PeerUnavailable,
)

if TYPE_CHECKING:
    from passerelle.core.facts import Failure
    from passerelle.core.task_record import TaskRecord


def explain_failure(record: TaskRecord | None) -> PasserelleError:
    """The error of a task that ended before callers saw it."""
    failure = record.last_error if record is not None else None
    return PeerUnavailable("the turn has no answer") if failure is None else make_error(failure)


def make_error(failure: Failure) -> PasserelleError:
    """The error that a recorded failure of a peer is to the caller."""
    if failure.code == PeerRefused.code and failure.native is not None:
        return PeerRefused(failure.message, int(failure.native))
    if failure.code == InvalidAgentResponse.code:
        return InvalidAgentResponse(failure.message)
    return PeerUnavailable(failure.message)

"""Why a turn has no answer: the recorded error as the error that its caller gets, also after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.errors import (
    InvalidAgentResponse,
    PasserelleError,
    PeerBusy,
    PeerRefused,
    PeerUnavailable,
)

if TYPE_CHECKING:
    from passerelle.core.facts import Failure
    from passerelle.core.task.record import TaskRecord


_BUSY_S: Final = 1
"""For whoever asks again under a key whose turn was refused: a message under another key may go through."""


def explain_failure(record: TaskRecord | None) -> PasserelleError:
    """The error of a task that ended before callers saw it."""
    failure = record.last_error if record is not None else None
    return PeerUnavailable("the turn has no answer") if failure is None else make_error(failure)


def make_error(failure: Failure) -> PasserelleError:
    """The error that a recorded failure of a peer is to the caller."""
    if failure.code == PeerRefused.code and failure.native is not None:
        native, details = int(failure.native), failure.details or ()
        return PeerRefused(failure.message, native, failure.http_status, details)
    if failure.code == InvalidAgentResponse.code:
        return InvalidAgentResponse(failure.message)
    if failure.code == PeerBusy.code:
        return PeerBusy(failure.message, retry_after_s=_BUSY_S)
    return PeerUnavailable(failure.message)

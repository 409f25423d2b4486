"""Why a peer did not take a message: once for the record, once for the caller; nothing of the peer leaks (A2A-12)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal, assert_never

from passerelle.a2a_mapping.identity import make_relabel
from passerelle.a2a_mapping.peer_errors import NativeError, make_refusal
from passerelle.core.errors import (
    InvalidAgentResponse,
    PasserelleError,
    PeerBusy,
    PeerUnavailable,
)
from passerelle.core.facts import ErrorCategory, Failure
from passerelle.core.payloads.limit import Limited, RateLimitHit
from passerelle.core.peer import Malformed, Refused, Unknown, Unreached

if TYPE_CHECKING:
    from passerelle.core.task_record import TaskRecord
    from passerelle.delegation.runs.step import Sight


_BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error as it is recorded, and as the caller gets it."""

    failure: Failure
    error: PasserelleError
    hit: RateLimitHit | None = None
    """The limit that was met (EXT-7), where that is the reason."""


def explain(outcome: Refused | Unreached | Malformed, sight: Sight, record: TaskRecord) -> Refusal:
    """The refusal that an outcome stands for."""
    name = sight.peer
    match outcome:
        case Refused(http_status=status, retry_after_s=wait_s) if status in _BUSY:
            text = f"agent {name!r} takes no more work for now (HTTP {status})"
            kind = PeerBusy if status == HTTPStatus.TOO_MANY_REQUESTS else PeerUnavailable
            busy = kind(text, agent=name, retry_after_s=wait_s)
            told = _record(busy, ErrorCategory.PEER, name, str(status))
            if status != HTTPStatus.TOO_MANY_REQUESTS:
                return told
            return replace(told, hit=_hit(name, "peer", wait_s, str(status)))
        case Refused(code=code, message=text, details=details):
            ids = make_relabel(record.task_id, sight.context_id, list_ids(sight, record))
            own = [str(message.get("messageId")) for message in sight.accepted]
            bare = outcome.http_status if outcome.is_bare else None
            refused = make_refusal(name, NativeError(code, text, details, bare), ids, own)
            told = _record(refused, ErrorCategory.PEER, name, str(code))
            failure = replace(told.failure, http_status=bare, details=refused.given or None)
            return replace(told, failure=failure)
        case Unreached(reason=reason, retry_after_s=wait_s, why="limit"):
            text = f"agent {name!r} gets no more work for now: {reason}"
            held = PeerBusy(text, agent=name, retry_after_s=wait_s)
            told = _record(held, ErrorCategory.POLICY, name)
            return replace(told, hit=_hit(name, "gateway", wait_s))
        case Unreached(reason=reason, retry_after_s=wait_s):
            text = f"agent {name!r} cannot be reached: {reason}"
            away = PeerUnavailable(text, agent=name, retry_after_s=wait_s)
            return _record(away, ErrorCategory.TRANSPORT, name)
        case Malformed(reason=reason):
            text = f"agent {name!r} answered with something that is not A2A: {reason}"
            return _record(InvalidAgentResponse(text, agent=name), ErrorCategory.PROTOCOL, name)
        case _:
            assert_never(outcome)


def explain_break(outcome: Unknown | Malformed, peer: str) -> Failure:
    """Why there is no answer where the peer may have taken the message all the same."""
    match outcome:
        case Unknown(reason=reason):
            text = f"the connection to agent {peer!r} broke: {reason}"
            return Failure("connection_broken", ErrorCategory.TRANSPORT, text, True, peer)
        case Malformed(reason=reason):
            text = f"agent {peer!r} answered with something that is not A2A: {reason}"
            return Failure(InvalidAgentResponse.code, ErrorCategory.PROTOCOL, text, False, peer)
        case _:
            assert_never(outcome)


def list_ids(sight: Sight, record: TaskRecord) -> dict[str, str]:
    """What the peer calls the task and its context in each run, with our ids."""
    known: dict[str, str] = {}
    for attempt in record.attempts:
        if attempt.remote_task_id:
            known[attempt.remote_task_id] = record.task_id
        if attempt.remote_context_id:
            known[attempt.remote_context_id] = sight.context_id
    return known


def _hit(
    peer: str,
    source: Literal["peer", "gateway"],
    wait_s: int | None,
    native: str | None = None,
) -> RateLimitHit:
    wait_ms = None if wait_s is None else wait_s * 1000
    return RateLimitHit(Limited("peer", peer), source, wait_ms, native)


def _record(
    error: PasserelleError, category: ErrorCategory, source: str, native: str | None = None
) -> Refusal:
    failure = Failure(
        code=error.stable_code,
        category=category,
        message=str(error),
        retryable=error.retryable,
        source=source,
        native=native,
    )
    return Refusal(failure, error)

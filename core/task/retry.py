"""Whether a failed run is retried, when, and at which agent (ATT-10, ATT-13…ATT-16, MK-7).

Pure: the fault, the earlier attempts and the policy lead to one of three verdicts. The same agent again, after a pause;
another agent, at once; or the end, with its reason.

The first question is what is known of the failed run. It *ended* if the agent reported so, or never accepted the
message. It is *in doubt* if it may still be working: a retry could do the work twice, so there is none unless the agent
is marked as idempotent. A caller's own fault fails everywhere in the same way, so it is not retried.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never

from passerelle.core.back_off import find_pause
from passerelle.core.facts import ErrorCategory
from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.facts import ErrorDetail, RetryPolicy


class RunFault(StrEnum):
    """Why a run failed, as far as it matters for a retry."""

    UNREACHABLE = "unreachable"
    """The agent certainly did not accept the message."""
    BUSY = "busy"
    """The agent, or a limit of the gateway, accepts no more for now."""
    FAILED = "failed"
    """The agent ended the task as failed, or had an internal error while accepting it."""
    MALFORMED = "malformed"
    """The agent sent something that is not A2A."""
    REJECTED = "rejected"
    """The agent rejects the task, or does not support it."""
    LOST = "lost"
    """Whether the agent has the task is unknown."""
    TIMED_OUT = "timed_out"
    """The agent took too long, and may still be working."""
    REFUSED = "refused"
    """The request itself was wrong, or was stopped: a repeat fails again."""


Retryable: TypeAlias = Literal["unreachable", "busy", "failed", "malformed", "lost", "timed_out"]
"""The faults that a configuration may name; others are never retried at the same agent."""
Stop: TypeAlias = Literal["not_retryable", "in_doubt", "used_up"]
RetryCause: TypeAlias = Literal[
    "rejected", "failed", "unreachable", "timed_out", "lost", "rate_limited"
]

RETRIED: Final[tuple[Retryable, ...]] = ("unreachable", "busy", "failed", "lost", "timed_out")
"""The default faults to retry; those in doubt only at an idempotent agent."""
IN_DOUBT: Final = frozenset({RunFault.LOST, RunFault.TIMED_OUT})
_AT_ONCE: Final = frozenset({RunFault.UNREACHABLE, RunFault.REJECTED})
"""Another agent is preferred to a retry, if there is one."""
_BUSY: Final = frozenset({"429", "503"})
_WRONG_REQUEST: Final = frozenset({"-32700", "-32600", "-32602", "-32001"})
_BROKEN_AGENT: Final = "-32603"
_JITTER_PERCENT: Final = 50
_CODES: Final = {
    "lost": RunFault.LOST,
    "unknown_outcome": RunFault.LOST,
    "history_lost": RunFault.LOST,
    "timed_out": RunFault.TIMED_OUT,
    "peer_failed": RunFault.FAILED,
    "acceptance": RunFault.FAILED,
    "rejected": RunFault.REJECTED,
    "cancelled": RunFault.REFUSED,
}
_CAUSES: Final[dict[RunFault, RetryCause]] = {
    RunFault.UNREACHABLE: "unreachable",
    RunFault.BUSY: "rate_limited",
    RunFault.FAILED: "failed",
    RunFault.MALFORMED: "failed",
    RunFault.REJECTED: "rejected",
    RunFault.LOST: "lost",
    RunFault.TIMED_OUT: "timed_out",
    RunFault.REFUSED: "failed",
}


@frozen
class RetryLater:
    """The same agent, not before ``at_ms``."""

    at_ms: int


@frozen
class RetryElsewhere:
    """Another agent takes over, at once."""

    peer: str
    cause: RetryCause


@frozen
class GiveUp:
    """No automatic retry."""

    reason: Stop


RetryVerdict: TypeAlias = RetryLater | RetryElsewhere | GiveUp


@frozen
class EarlierAttempts:
    """The attempts since the task was last requested, newest last: agents by name, and the terms.

    ``policy`` is that of the failed run. ``fallback`` are the agents that may take over from the requested one.
    ``is_routed``: the gateway chose the agent, so another fitting one may take over at once until the work has begun.
    ``is_begun``: the agent of the failed run has made a task of the message.
    """

    peers: Sequence[str]
    policy: RetryPolicy
    fallback: Sequence[str] = ()
    is_routed: bool = False
    is_begun: bool = False

    @property
    def at_this_peer(self) -> int:
        """The number of attempts at the last agent."""
        return sum(peer == self.peers[-1] for peer in self.peers)

    @property
    def next_peer(self) -> str | None:
        """The first fallback that was not tried."""
        return next((peer for peer in self.fallback if peer not in self.peers), None)


def classify(failure: ErrorDetail) -> RunFault:
    """The fault of a recorded error; total, from its code and category only."""
    if failure.code in _CODES:
        return _CODES[failure.code]
    match failure.category:
        case ErrorCategory.TRANSPORT:
            return RunFault.UNREACHABLE
        case ErrorCategory.POLICY:
            return RunFault.BUSY if failure.retryable else RunFault.REFUSED
        case ErrorCategory.TIMEOUT:
            return RunFault.TIMED_OUT
        case ErrorCategory.PROTOCOL:
            return RunFault.MALFORMED
        case ErrorCategory.PEER:
            return _classify_native(failure.native)
        case ErrorCategory.CALLER | ErrorCategory.STORE | ErrorCategory.INTERNAL:
            return RunFault.REFUSED
        case _:
            assert_never(failure.category)


def _classify_native(native: str | None) -> RunFault:
    if native in _BUSY:
        return RunFault.BUSY
    if native == _BROKEN_AGENT:
        return RunFault.FAILED
    return RunFault.REFUSED if native in _WRONG_REQUEST else RunFault.REJECTED


def decide(
    fault: RunFault, tried: EarlierAttempts, now_ms: int, chance: float, *, wait_ms: int = 0
) -> RetryVerdict:
    """The verdict after a failed run. ``chance`` is random, in [0, 1); ``wait_ms`` is the delay the agent asked for."""
    policy = tried.policy
    if fault is RunFault.REFUSED:
        return GiveUp("not_retryable")
    if fault in IN_DOUBT and not policy.idempotent:
        return GiveUp("in_doubt")
    elsewhere = tried.next_peer
    if tried.is_routed and tried.is_begun and fault is not RunFault.REJECTED:
        elsewhere = None
    if elsewhere is not None and (tried.is_routed or fault in _AT_ONCE):
        return RetryElsewhere(elsewhere, _CAUSES[fault])
    is_retried = _is_retried(fault, policy)
    if is_retried and tried.at_this_peer < policy.attempts:
        pause_ms = back_off(policy, tried.at_this_peer, chance)
        return RetryLater(now_ms + max(pause_ms, wait_ms))
    if elsewhere is not None:
        return RetryElsewhere(elsewhere, _CAUSES[fault])
    return GiveUp("used_up" if is_retried else "not_retryable")


def _is_retried(fault: RunFault, policy: RetryPolicy) -> bool:
    wanted = RETRIED if policy.retry_on is None else policy.retry_on
    return fault in wanted and fault not in (policy.never_on or ())


def back_off(policy: RetryPolicy, failed: int, chance: float) -> int:
    """The pause in ms after the ``failed``-th failure: the full one, less a random part up to the jitter."""
    failures = 1 if policy.backoff == "fixed" else failed
    full_ms = find_pause(policy.backoff_ms, policy.backoff_max_ms, failures)
    jitter = _JITTER_PERCENT if policy.jitter_percent is None else policy.jitter_percent
    return full_ms - int(full_ms * jitter / 100 * chance)

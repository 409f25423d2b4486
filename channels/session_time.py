"""Timers of a connection: missing hello and heartbeats, expiring credentials, drains."""

from __future__ import annotations

from typing import Final

from passerelle.channels.outputs import Send
from passerelle.channels.session_acks import store_acks_when_due
from passerelle.channels.session_end import close
from passerelle.channels.session_state import (
    ConnectionPhase,
    ConnectionState,
    ConnectionStep,
    flush_acks,
)
from passerelle.core.wire.record import change
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.frames import Drain, Expiry, Refusal, ServerBeat

_NEVER_S: Final = 2**31
"""The value sent for a credential that does not expire."""
_LEAST_SLACK_S: Final = 0.1


def next_tick_s(state: ConnectionState, *, waits: bool = False) -> float:
    """The latest time at which ``Ticked`` is due.

    ``waits``: no frames of the client are read. It may have heard nothing since the answer to its last heartbeat, so it
    hears from the gateway within half of what is left until it would give up.
    """
    if state.phase is ConnectionPhase.GREETING:
        return state.opened_s + state.limits.hello_s
    limits = state.limits
    due_s = state.heard_s + limits.idle_s
    if waits and state.phase is ConnectionPhase.OPEN:
        due_s = state.heard_s + max(limits.idle_s - limits.heartbeat_s, _LEAST_SLACK_S) / 2
    if state.acks:
        due_s = min(due_s, state.acks_stored_s + limits.ack_interval_s)
    if state.drains_at_s is not None:
        due_s = min(due_s, state.drains_at_s)
    if state.expires_s is not None:
        judged_s = limits.grace_s if state.warned else -limits.renew_s
        due_s = min(due_s, state.expires_s + judged_s)
    return due_s


def tick(state: ConnectionState, now_s: float, *, waits: bool = False) -> ConnectionStep:
    """Handles the passing of time.

    A client that is not read counts as alive: its heartbeats are in the socket. It is sent heartbeats meanwhile, since
    those that would be answered are not read.
    """
    if state.phase is ConnectionPhase.GREETING:
        late = now_s >= state.opened_s + state.limits.hello_s
        return close(state, CloseCode.NO_HELLO, "no hello in time") if late else (state, ())
    beats: tuple[Send, ...] = ()
    if waits and state.phase is ConnectionPhase.OPEN:
        state, beats = change(state, heard_s=now_s), (Send(ServerBeat(0)),)
    if now_s >= state.heard_s + state.limits.idle_s:
        return close(state, CloseCode.HEARTBEAT_MISSED, "no frame in time")
    if state.drains_at_s is not None and now_s >= state.drains_at_s:
        return close(state, CloseCode.DRAIN, "draining")
    if state.expires_s is not None and now_s >= state.expires_s + state.limits.grace_s:
        notice = Refusal("token_expired", "renew the credential and connect again", fatal=True)
        return close(state, CloseCode.TOKEN_EXPIRED, notice.message, notice)
    state, warning = _warn_of_expiry(state, now_s)
    state, outputs = store_acks_when_due(state, now_s)
    return state, (*beats, *warning, *outputs)


def _warn_of_expiry(state: ConnectionState, now_s: float) -> ConnectionStep:
    expires_s = state.expires_s
    if expires_s is None or state.warned or now_s < expires_s - state.limits.renew_s:
        return state, ()
    return change(state, warned=True), (Send(Expiry(count_down(expires_s, now_s))),)


def count_down(expires_s: float | None, now_s: float) -> int:
    """The seconds until the credential expires, as sent to the client."""
    return _NEVER_S if expires_s is None else max(0, round(expires_s - now_s))


def drain(state: ConnectionState, within_ms: int, jitter_ms: int, now_s: float) -> ConnectionStep:
    """Asks the client to reconnect elsewhere, with the deadline."""
    if state.phase is ConnectionPhase.GREETING:
        return close(state, CloseCode.DRAIN, "draining")
    drains = change(state, drains_at_s=now_s + (within_ms + jitter_ms) / 1000)
    if state.phase is ConnectionPhase.ADMITTING:
        return drains, ()
    return change(drains, acks={}, acks_stored_s=now_s), (
        *flush_acks(state),
        Send(Drain(within_ms, jitter_ms)),
    )

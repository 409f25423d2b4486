"""How a connection refuses frames, and how it ends."""

from __future__ import annotations

from dataclasses import replace

from passerelle.channels.acks import ACK_FAULTS
from passerelle.channels.outputs import Close, Send
from passerelle.channels.session_state import (
    ConnectionPhase,
    ConnectionState,
    ConnectionStep,
    flush_acks,
)
from passerelle.core.wire.record import change
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.frames import Failure, Refusal


def count_frame(state: ConnectionState, now_s: float) -> ConnectionState:
    """Counts a frame in the rate window."""
    if now_s - state.window_s >= state.limits.window_s:
        return change(state, window_s=now_s, window_frames=1)
    return change(state, window_frames=state.window_frames + 1)


def limit_rate(state: ConnectionState) -> ConnectionStep:
    """Closes the connection because the client sends too many frames."""
    wait_s = max(1, round(state.limits.window_s))
    notice = Refusal("rate_limited", "too many frames", fatal=True, retry_s=wait_s)
    return close(state, CloseCode.RATE_LIMIT, notice.message, notice)


def not_subscribed(of: str, stream: str, ask: str | None = None) -> Refusal:
    """The refusal of a frame about a stream that is not followed here; ``ask`` is the frame's id, if it has one."""
    return Refusal("not_subscribed", ACK_FAULTS["not_subscribed"], of=of, stream=stream, id=ask)


def refuse(state: ConnectionState, answer: Refusal | Failure) -> ConnectionStep:
    """Refuses a frame and changes nothing else; before the welcome, or after many refusals, closes the connection."""
    if isinstance(answer, Refusal) and (answer.fatal or state.phase is ConnectionPhase.GREETING):
        return close(state, CloseCode.MALFORMED, answer.message, replace(answer, fatal=True))
    refused = change(state, refusals=state.refusals + 1)
    if refused.refusals >= state.limits.refusals:
        notice = Refusal("repeated_refusals", "too many refused frames", fatal=True)
        closed, outputs = close(refused, CloseCode.REPEATED_REFUSALS, notice.message, notice)
        return closed, (Send(answer), *outputs)
    return refused, (Send(answer),)


def close(
    state: ConnectionState, code: CloseCode, reason: str, notice: Refusal | None = None
) -> ConnectionStep:
    """Closes the connection: acknowledged cursors are stored first, and ``notice`` is sent."""
    sent = () if notice is None else (Send(notice),)
    closed = change(state, phase=ConnectionPhase.CLOSED, acks={})
    return closed, (*flush_acks(state), *sent, Close(code, reason))

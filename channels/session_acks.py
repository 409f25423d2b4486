"""Acknowledgements of a client: checked, collected, and stored at most once per interval (CHN-5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from passerelle.channels.acks import ACK_FAULTS, choose_later, judge_cursor
from passerelle.channels.outputs import NotePresence, Send
from passerelle.channels.session_end import close, count_frame, limit_rate
from passerelle.channels.session_state import ConnectionState, ConnectionStep, flush_acks
from passerelle.core.ports.channels import AckResult
from passerelle.core.wire.record import change
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.cursor import Cursor
from passerelle.protocol.frames import Refusal, ServerBeat


def answer_beat(
    state: ConnectionState,
    number: int,
    cursors: Mapping[str, Cursor],
    reached: Mapping[str, Cursor],
    now_s: float,
) -> ConnectionStep:
    """Processes a heartbeat: its acks, and in the answer the positions of streams without visible events."""
    state, outputs = acknowledge(state, cursors, "hb", now_s)
    ahead = {
        stream: cursor
        for stream, cursor in reached.items()
        if (sent := state.sent.get(stream)) is not None and cursor.sequence > sent.sequence
    }
    moved = change(state, sent={**state.sent, **ahead})
    renewed = () if state.presence is None else (NotePresence(state.presence),)
    return moved, (*outputs, Send(ServerBeat(number, ahead)), *renewed)


def acknowledge(
    state: ConnectionState, cursors: Mapping[str, Cursor], of: str, now_s: float
) -> ConnectionStep:
    """Accepts cursors that were sent on this connection and refuses the others, per stream.

    A refused cursor only counts as a frame: the history may have been lost without the client's knowledge, and a slow
    application acknowledges cursors of it.
    """
    accepted: dict[str, Cursor] = {}
    refused: list[Refusal] = []
    for stream, cursor in cursors.items():
        if state.sent.get(stream, cursor) is None:
            continue  # subscribed again and not answered yet: no cursor was sent that this could acknowledge
        why = judge_cursor(state.sent, stream, cursor)
        if why is None:
            accepted[stream] = choose_later(state.acks.get(stream), cursor)
        else:
            refused.append(Refusal(why, ACK_FAULTS[why], of=of, stream=stream))
    state = change(state, acks={**state.acks, **accepted})
    state, outputs = store_acks_when_due(state, now_s)
    for refusal in refused:
        state = count_frame(state, now_s)
        if state.window_frames > state.limits.frames_per_window:
            state, more = limit_rate(state)
            return state, (*outputs, *more)
        outputs = (*outputs, Send(refusal))
    return state, outputs


def store_acks_when_due(state: ConnectionState, now_s: float) -> ConnectionStep:
    """Stores the acks whose interval is over."""
    if not state.acks or now_s < state.acks_stored_s + state.limits.ack_interval_s:
        return state, ()
    return change(state, acks={}, acks_stored_s=now_s), flush_acks(state)


def judge_stored(state: ConnectionState, stream: str, result: AckResult) -> ConnectionStep:
    """Handles the store's result for an ack. A refused ack was issued by the gateway, so it is no client error."""
    match result:
        case "stored":
            return state, ()
        case "stale_generation":
            notice = Refusal("superseded", "a newer connection has this device", fatal=True)
            return close(state, CloseCode.SUPERSEDED, notice.message, notice)
        case "ack_epoch" | "ack_ahead":
            return state, (Send(Refusal(result, ACK_FAULTS[result], of="ack", stream=stream)),)
        case _:
            assert_never(result)

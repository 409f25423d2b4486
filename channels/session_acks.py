"""What a client acknowledges: judged, gathered, and stored at most once per interval (CHN-5)."""

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
    """A heartbeat carries acks there, and back how far quiet streams have come."""
    state, outputs = acknowledge(state, cursors, "hb", now_s)
    ahead = {
        stream: cursor
        for stream, cursor in reached.items()
        if (told := state.told.get(stream)) is not None and cursor.sequence > told.sequence
    }
    moved = change(state, told={**state.told, **ahead})
    renewed = () if state.presence is None else (NotePresence(state.presence),)
    return moved, (*outputs, Send(ServerBeat(number, ahead)), *renewed)


def acknowledge(
    state: ConnectionState, cursors: Mapping[str, Cursor], of: str, now_s: float
) -> ConnectionStep:
    """Takes what was told on this connection and refuses the rest, stream by stream.

    What is refused counts as a frame and no more: a history may have been lost behind the client's back, and an
    application that is slow acknowledges what it had of it.
    """
    accepted: dict[str, Cursor] = {}
    refused: list[Refusal] = []
    for stream, cursor in cursors.items():
        if state.told.get(stream, cursor) is None:
            continue  # subscribed again and not answered yet: nothing was told that could be meant
        why = judge_cursor(state.told, stream, cursor)
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
    """Has the acks stored whose interval is over."""
    if not state.acks or now_s < state.acks_stored_s + state.limits.ack_interval_s:
        return state, ()
    return change(state, acks={}, acks_stored_s=now_s), flush_acks(state)


def judge_stored(state: ConnectionState, stream: str, result: AckResult) -> ConnectionStep:
    """The store's word on an ack. What it refuses was ours to give out, so it is no fault of the client."""
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

"""The connection state machine: what a client may do in which phase, and what follows.

``step`` is pure: a state, an input and a time give a new state and a list of outputs. The shell owns the socket,
carries the outputs out and feeds their results back as inputs; it decides nothing.

A connection is ``GREETING`` until its ``hello`` arrives, the only frame allowed there, and nothing is written for it
(CHN-11). During authentication it is ``ADMITTING``. ``OPEN`` processes frames until something closes it; a drain only
sets the time of the close. ``CLOSED`` is final: late inputs are dropped, so a closed or superseded socket decides
nothing (I6, CHN-9).

A frame is refused if its type is not for clients, a member is invalid, or it asks for something that this connection
cannot have. A refusal changes nothing (CMD-29); many refusals close the connection.

An acknowledgement is checked against the cursors sent on this connection, so a stored cursor is always one that the
gateway issued; it is stored at most once per interval, and at once when the connection ends (CHN-5). It is never
inferred from writes to a socket.

Times are seconds of one monotonic clock. The state is in ``session_state``; acks, timers and endings have modules of
their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, assert_never

from passerelle.channels.acks import choose_later
from passerelle.channels.inputs import (
    AckJudged,
    Admitted,
    CallAnswered,
    DrainAsked,
    EndRequested,
    EventsDelivered,
    Input,
    NoticeDue,
    NoticeFrame,
    Received,
    Renewed,
    SocketGone,
    Ticked,
    Undecodable,
)
from passerelle.channels.outputs import (
    Admit,
    NotePresence,
    Open,
    Output,
    Reauthenticate,
    Release,
    Send,
    TakeSnapshot,
)
from passerelle.channels.session_acks import acknowledge, answer_beat, judge_stored
from passerelle.channels.session_calls import asks, execute, settle, take_agent_frame
from passerelle.channels.session_end import (
    close,
    count_frame,
    limit_rate,
    not_subscribed,
    refuse,
)
from passerelle.channels.session_state import (
    ConnectionPhase,
    ConnectionState,
    ConnectionStep,
    flush_acks,
    forget,
    mark,
    mark_delivered,
)
from passerelle.channels.session_time import count_down, drain, tick
from passerelle.core.wire.record import change
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.frames import (
    Ack,
    AskSnapshot,
    Call,
    ClientBeat,
    ClientFrame,
    Expiry,
    Failure,
    Gap,
    Hello,
    Live,
    Refusal,
    Renew,
    SayPresence,
    ShowPresence,
    Snapshot,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    Withdrawn,
)
from passerelle.protocol.reverse_frames import (
    AnswerItem,
    AnswerPiece,
    Done,
    Failed,
    Register,
    StopAsking,
    TakeMore,
    Unregister,
)

ACCEPTS: Final[Mapping[ConnectionPhase, frozenset[type[Input]]]] = {
    ConnectionPhase.GREETING: frozenset(
        {Received, Undecodable, Ticked, DrainAsked, EndRequested, SocketGone}
    ),
    ConnectionPhase.ADMITTING: frozenset({Admitted, Ticked, DrainAsked, EndRequested, SocketGone}),
    ConnectionPhase.OPEN: frozenset(
        {
            Received,
            Undecodable,
            NoticeDue,
            EventsDelivered,
            AckJudged,
            CallAnswered,
            Renewed,
            Ticked,
            DrainAsked,
            EndRequested,
            SocketGone,
        }
    ),
    ConnectionPhase.CLOSED: frozenset(),
}
"""Inputs accepted in each phase; any other input is late and ignored."""


def step(state: ConnectionState, given: Input, now_s: float) -> ConnectionStep:  # noqa: C901, PLR0912 - one arm per input
    """The next state and the outputs. Total: it never raises."""
    if type(given) not in ACCEPTS[state.phase]:
        return state, ()
    match given:
        case Received():
            return _receive(state, given, now_s)
        case Undecodable(answer):
            return refuse(count_frame(change(state, heard_s=now_s), now_s), answer)
        case Admitted(welcome, expires_s):
            wanted = state.hello.subscriptions if state.hello else ()
            opened = change(state, phase=ConnectionPhase.OPEN, heard_s=now_s, expires_s=expires_s)
            opened, outputs = _subscribe_all(opened, wanted)
            return opened, (Send(welcome), *outputs)
        case Renewed(expires_s):
            renewed = change(state, expires_s=expires_s, warned=False)
            return renewed, (Send(Expiry(count_down(expires_s, now_s))),)
        case NoticeDue(frame):
            return _send_notice(state, frame)
        case EventsDelivered(cursors):
            return mark_delivered(state, cursors), ()
        case AckJudged(stream, result):
            return judge_stored(state, stream, result)
        case CallAnswered(frame):
            return settle(state, frame)
        case Ticked(waits):
            return tick(state, now_s, waits=waits)
        case DrainAsked(within_ms, jitter_ms):
            return drain(state, within_ms, jitter_ms, now_s)
        case EndRequested(code, notice):
            return close(state, code, "" if notice is None else notice.message, notice)
        case SocketGone():
            return change(state, phase=ConnectionPhase.CLOSED, acks={}), flush_acks(state)
        case _:
            assert_never(given)


def _receive(state: ConnectionState, given: Received, now_s: float) -> ConnectionStep:
    frame = given.frame
    if state.phase is ConnectionPhase.GREETING:
        return _greet(state, frame, now_s)
    state = change(state, heard_s=now_s)
    match frame:
        case Ack(cursors):
            return acknowledge(state, cursors, "ack", now_s)
        case ClientBeat(number, cursors):
            return answer_beat(state, number, cursors, given.reached, now_s)
        case AnswerItem() | AnswerPiece() | Done() | Failed() | TakeMore() | StopAsking():
            # Not rate limited: calls are, and a window bounds the frames about one.
            return take_agent_frame(state, frame)
        case Call() if asks(state, frame):
            # Not rate limited either: the number of open calls is bounded, and the caller's limits apply to each.
            return execute(state, frame)
        case _:
            return _serve(count_frame(state, now_s), frame)


def _serve(  # noqa: C901 - one arm per frame of the closed union
    state: ConnectionState,
    frame: Hello
    | Subscribe
    | Unsubscribe
    | AskSnapshot
    | Call
    | Renew
    | SayPresence
    | Register
    | Unregister,
) -> ConnectionStep:
    if state.window_frames > state.limits.frames_per_window:
        return limit_rate(state)
    match frame:
        case Hello():
            return refuse(state, Refusal("forbidden_frame", "hello may be sent once", of="hello"))
        case Subscribe():
            return _subscribe(state, frame)
        case Unsubscribe(stream):
            return _unsubscribe(state, stream)
        case AskSnapshot(stream, ask):
            if stream not in state.sent:
                return refuse(state, not_subscribed("snap", stream, ask))
            return state, (TakeSnapshot(frame),)
        case Call():
            return execute(state, frame)
        case Renew(token):
            return state, (Reauthenticate(token),)
        case Register() | Unregister():
            return take_agent_frame(state, frame)
        case SayPresence():
            return change(state, presence=frame), (NotePresence(frame),)
        case _:
            assert_never(frame)


def _greet(state: ConnectionState, frame: ClientFrame, now_s: float) -> ConnectionStep:
    if isinstance(frame, Hello):
        greeted = change(state, phase=ConnectionPhase.ADMITTING, hello=frame, heard_s=now_s)
        return greeted, (Admit(frame),)
    notice = Refusal("hello_first", "the first frame is hello", fatal=True)
    return close(state, CloseCode.MALFORMED, notice.message, notice)


def _subscribe(state: ConnectionState, frame: Subscribe) -> ConnectionStep:
    full = len(state.sent) >= state.limits.subscriptions
    if full and frame.stream not in state.sent:
        return refuse(
            state,
            Refusal("limit", "too many subscriptions", of="sub", stream=frame.stream, id=frame.id),
        )
    return change(state, sent={**state.sent, frame.stream: None}), (Open(frame),)


def _unsubscribe(state: ConnectionState, stream: str) -> ConnectionStep:
    if stream not in state.sent:
        return refuse(state, not_subscribed("unsub", stream))
    forgotten = change(forget(state, stream), acks={})
    return forgotten, (*flush_acks(state), Release(stream))


def _send_notice(state: ConnectionState, frame: NoticeFrame) -> ConnectionStep:
    match frame:
        case Subscribed(stream):
            later = choose_later(state.sent.get(stream), frame.cursor)
            state = mark(state, stream, later)
        case Live(stream) | Snapshot(stream):
            state = mark(state, stream, frame.cursor)
        case Unsubscribed(stream):
            forgotten = change(forget(state, stream), acks={})
            return forgotten, (*flush_acks(state), Send(frame))
        case Refusal(stream=stream) if frame.of == "sub" and stream is not None:
            state = forget(state, stream)
        case Gap() | Refusal() | Failure() | ShowPresence() | Withdrawn():
            pass
        case _:
            assert_never(frame)
    return state, (Send(frame),)


def _subscribe_all(state: ConnectionState, frames: Iterable[Subscribe]) -> ConnectionStep:
    outputs: tuple[Output, ...] = ()
    for frame in frames:
        state, more = _subscribe(state, frame)
        outputs = (*outputs, *more)
    return state, outputs

"""The connection machine: what one side of a channel may do when, and what follows.

``step`` is pure: a state, an input and a time give a new state and a list of outputs. The shell owns the
socket, carries the outputs out and feeds their results back as inputs; it decides nothing.

A connection is ``GREETING`` until its ``hello`` comes, which is the only frame that it may send there, and
nothing is written for it (CHN-11). While the credential is being looked at it is ``ADMITTING``. ``OPEN``
serves frames until something closes it; a drain only sets the time at which that happens. ``CLOSED`` is
final: what arrives late is dropped, so a closed or superseded socket decides nothing (I6, CHN-9).

A frame is refused when its type is not for clients, when a member is wrong, or when it asks for something
that this connection cannot have; a refusal changes nothing (CMD-29), and many of them close.

An acknowledgement is checked against what was told on this connection, so a stored cursor is always one
that we gave out; it is stored at most once per interval, and at once when the connection ends (CHN-5). It
is never inferred from what was written to a socket.

Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, TypeAlias, assert_never

from passerelle.channels.acks import ACK_FAULTS, choose_later, judge_cursor
from passerelle.channels.closing import CloseCode
from passerelle.channels.cursor import Cursor
from passerelle.channels.frames import (
    Ack,
    AskSnapshot,
    Call,
    ClientBeat,
    ClientFrame,
    Drain,
    Expiry,
    Failure,
    Gap,
    Hello,
    Live,
    Refusal,
    Renew,
    SayPresence,
    ServerBeat,
    ShowPresence,
    Snapshot,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from passerelle.channels.inputs import (
    AckJudged,
    Admitted,
    Answered,
    Delivered,
    DrainAsked,
    Ended,
    Input,
    Left,
    Received,
    Renewed,
    Ticked,
    Told,
    Undecodable,
)
from passerelle.channels.limits import Limits
from passerelle.channels.outputs import (
    Admit,
    Close,
    Execute,
    NotePresence,
    Open,
    Output,
    Reauthenticate,
    Release,
    Send,
    Serve,
    StoreAcks,
    TakeSnapshot,
)
from passerelle.channels.reverse_frames import (
    AgentFrame,
    Done,
    Failed,
    Item,
    Piece,
    Register,
    Unregister,
)
from passerelle.core.ports import AckResult


class Phase(StrEnum):
    """Where a connection stands."""

    GREETING = "greeting"
    ADMITTING = "admitting"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class State:
    """Everything that a decision needs. ``told`` is per stream the last cursor that the client was given."""

    limits: Limits
    opened_s: float
    heard_s: float
    phase: Phase = Phase.GREETING
    hello: Hello | None = None
    told: Mapping[str, Cursor | None] = field(default_factory=dict[str, "Cursor | None"])
    calls: frozenset[str] = frozenset()
    acks: Mapping[str, Cursor] = field(default_factory=dict[str, Cursor])
    """Acknowledged, not yet stored."""
    acks_stored_s: float = float("-inf")
    window_s: float = 0.0
    window_frames: int = 0
    refusals: int = 0
    drains_at_s: float | None = None
    expires_s: float | None = None
    """When the credential ends; None where it does not."""
    warned: bool = False
    """Whether the client knows that it ends soon."""
    presence: SayPresence | None = None
    """What the device says of whoever sits before it; each heartbeat says it again."""

    @property
    def is_saturated(self) -> bool:
        """Whether the reader should stop reading: TCP then slows the client down, nothing queues."""
        return len(self.calls) >= self.limits.calls


Step: TypeAlias = tuple[State, tuple[Output, ...]]

_NEVER_S: Final = 2**31
"""What is told of a credential that does not end."""

ACCEPTS: Final[Mapping[Phase, frozenset[type[Input]]]] = {
    Phase.GREETING: frozenset({Received, Undecodable, Ticked, DrainAsked, Ended, Left}),
    Phase.ADMITTING: frozenset({Admitted, Ticked, DrainAsked, Ended, Left}),
    Phase.OPEN: frozenset(
        {
            Received,
            Undecodable,
            Told,
            Delivered,
            AckJudged,
            Answered,
            Renewed,
            Ticked,
            DrainAsked,
            Ended,
            Left,
        }
    ),
    Phase.CLOSED: frozenset(),
}
"""What means something in which phase; anything else comes late and changes nothing."""


def start(limits: Limits, now_s: float) -> State:
    """The state of a socket that has just been accepted."""
    return State(limits, now_s, now_s, window_s=now_s)


def next_tick_s(state: State) -> float:
    """When ``Ticked`` is due at the latest."""
    if state.phase is Phase.GREETING:
        return state.opened_s + state.limits.hello_s
    times = [state.heard_s + state.limits.idle_s]
    if state.acks:
        times.append(state.acks_stored_s + state.limits.ack_interval_s)
    if state.drains_at_s is not None:
        times.append(state.drains_at_s)
    if state.expires_s is not None:
        limits = state.limits
        times.append(state.expires_s + (limits.grace_s if state.warned else -limits.renew_s))
    return min(times)


def step(state: State, given: Input, now_s: float) -> Step:  # noqa: C901, PLR0912 - one arm per input of the closed union
    """The next state and what is to be done. Total: it never raises."""
    if type(given) not in ACCEPTS[state.phase]:
        return state, ()
    match given:
        case Received():
            return _receive(replace(state, heard_s=now_s), given, now_s)
        case Undecodable(answer):
            return _refuse(_count(replace(state, heard_s=now_s), now_s), answer)
        case Admitted(welcome, expires_s):
            wanted = state.hello.subscriptions if state.hello else ()
            opened = replace(state, phase=Phase.OPEN, heard_s=now_s, expires_s=expires_s)
            opened, outputs = _subscribe_all(opened, wanted)
            return opened, (Send(welcome), *outputs)
        case Renewed(expires_s):
            renewed = replace(state, expires_s=expires_s, warned=False)
            return renewed, (Send(Expiry(_count_down(expires_s, now_s))),)
        case Told(frame):
            return _tell(state, frame)
        case Delivered(stream, cursor):
            later = choose_later(state.told.get(stream), cursor)
            return _mark(state, stream, later), ()
        case AckJudged(stream, result):
            return _judge_ack(state, stream, result)
        case Answered(frame):
            return replace(state, calls=state.calls - {frame.id}), (Send(frame),)
        case Ticked():
            return _tick(state, now_s)
        case DrainAsked(within_ms, jitter_ms):
            return _drain(state, within_ms, jitter_ms, now_s)
        case Ended(code, notice):
            return _close(state, code, "" if notice is None else notice.message, notice)
        case Left():
            return replace(state, phase=Phase.CLOSED, acks={}), _flush(state)
        case _:
            assert_never(given)


def _receive(state: State, given: Received, now_s: float) -> Step:
    frame = given.frame
    if state.phase is Phase.GREETING:
        return _greet(state, frame)
    match frame:
        case Ack(cursors):
            return _acknowledge(state, cursors, "ack", now_s)
        case ClientBeat(number, cursors):
            return _answer_beat(state, number, cursors, given.reached, now_s)
        case Item() | Piece() | Done() | Failed():
            # Not counted: whoever calls an agent bounds what it may say.
            return _hear_agent(state, frame)
        case _:
            return _serve(_count(state, now_s), frame)


def _serve(  # noqa: C901 - one arm per frame of the closed union
    state: State,
    frame: Hello
    | Subscribe
    | Unsubscribe
    | AskSnapshot
    | Call
    | Renew
    | SayPresence
    | Register
    | Unregister,
) -> Step:
    if state.window_frames > state.limits.frames_per_window:
        return _limit_rate(state)
    match frame:
        case Hello():
            return _refuse(state, Refusal("forbidden_frame", "hello comes once", of="hello"))
        case Subscribe():
            return _subscribe(state, frame)
        case Unsubscribe(stream):
            return _unsubscribe(state, stream)
        case AskSnapshot(stream):
            if stream not in state.told:
                return _refuse(state, _not_subscribed("snap", stream))
            return state, (TakeSnapshot(frame),)
        case Call():
            return _execute(state, frame)
        case Renew(token):
            return state, (Reauthenticate(token),)
        case Register() | Unregister():
            return _hear_agent(state, frame)
        case SayPresence():
            return replace(state, presence=frame), (NotePresence(frame),)
        case _:
            assert_never(frame)


def _hear_agent(state: State, frame: AgentFrame) -> Step:
    if state.hello is None or state.hello.role != "agent":
        message = f"{frame.TAG} is for connections with the role agent"
        return _refuse(state, Refusal("forbidden_frame", message, of=frame.TAG))
    return state, (Serve(frame),)


def _greet(state: State, frame: ClientFrame) -> Step:
    if isinstance(frame, Hello):
        return replace(state, phase=Phase.ADMITTING, hello=frame), (Admit(frame),)
    notice = Refusal("hello_first", "the first frame is hello", fatal=True)
    return _close(state, CloseCode.MALFORMED, notice.message, notice)


def _subscribe(state: State, frame: Subscribe) -> Step:
    full = len(state.told) >= state.limits.subscriptions
    if full and frame.stream not in state.told:
        return _refuse(
            state, Refusal("limit", "too many subscriptions", of="sub", stream=frame.stream)
        )
    return replace(state, told={**state.told, frame.stream: None}), (Open(frame),)


def _unsubscribe(state: State, stream: str) -> Step:
    if stream not in state.told:
        return _refuse(state, _not_subscribed("unsub", stream))
    forgotten = replace(_forget(state, stream), acks={})
    return forgotten, (*_flush(state), Release(stream))


def _execute(state: State, call: Call) -> Step:
    if call.id in state.calls:
        return _refuse(state, Refusal("duplicate_id", f"call {call.id[:40]} is open", of="rpc"))
    return replace(state, calls=state.calls | {call.id}), (Execute(call),)


def _answer_beat(
    state: State,
    number: int,
    cursors: Mapping[str, Cursor],
    reached: Mapping[str, Cursor],
    now_s: float,
) -> Step:
    state, outputs = _acknowledge(state, cursors, "hb", now_s)
    ahead = {
        stream: cursor
        for stream, cursor in reached.items()
        if (told := state.told.get(stream)) is not None and cursor.sequence > told.sequence
    }
    moved = replace(state, told={**state.told, **ahead})
    renewed = () if state.presence is None else (NotePresence(state.presence),)
    return moved, (*outputs, Send(ServerBeat(number, ahead)), *renewed)


def _acknowledge(state: State, cursors: Mapping[str, Cursor], of: str, now_s: float) -> Step:
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
    state = replace(state, acks={**state.acks, **accepted})
    state, outputs = _store_acks_when_due(state, now_s)
    for refusal in refused:
        state, more = _refuse(state, refusal)
        outputs = (*outputs, *more)
    return state, outputs


def _store_acks_when_due(state: State, now_s: float) -> Step:
    if not state.acks or now_s < state.acks_stored_s + state.limits.ack_interval_s:
        return state, ()
    return replace(state, acks={}, acks_stored_s=now_s), _flush(state)


def _judge_ack(state: State, stream: str, result: AckResult) -> Step:
    match result:
        case "stored":
            return state, ()
        case "stale_generation":
            notice = Refusal("superseded", "a newer connection has this device", fatal=True)
            return _close(state, CloseCode.SUPERSEDED, notice.message, notice)
        case "ack_epoch" | "ack_ahead":
            return _refuse(state, Refusal(result, ACK_FAULTS[result], of="ack", stream=stream))
        case _:
            assert_never(result)


def _tell(
    state: State,
    frame: Subscribed | Live | Gap | Snapshot | Unsubscribed | Refusal | Failure | ShowPresence,
) -> Step:
    match frame:
        case Subscribed(stream):
            later = choose_later(state.told.get(stream), frame.cursor)
            state = _mark(state, stream, later)
        case Live(stream) | Snapshot(stream):
            state = _mark(state, stream, frame.cursor)
        case Unsubscribed(stream):
            forgotten = replace(_forget(state, stream), acks={})
            return forgotten, (*_flush(state), Send(frame))
        case Refusal(stream=stream) if frame.of == "sub" and stream is not None:
            state = _forget(state, stream)
        case Gap() | Refusal() | Failure() | ShowPresence():
            pass
        case _:
            assert_never(frame)
    return state, (Send(frame),)


def _mark(state: State, stream: str, cursor: Cursor) -> State:
    if stream not in state.told:
        return state
    return replace(state, told={**state.told, stream: cursor})


def _forget(state: State, stream: str) -> State:
    return replace(state, told={name: told for name, told in state.told.items() if name != stream})


def _tick(state: State, now_s: float) -> Step:
    if state.phase is Phase.GREETING:
        late = now_s >= state.opened_s + state.limits.hello_s
        return _close(state, CloseCode.NO_HELLO, "no hello in time") if late else (state, ())
    if now_s >= state.heard_s + state.limits.idle_s:
        return _close(state, CloseCode.HEARTBEAT_MISSED, "nothing heard")
    if state.drains_at_s is not None and now_s >= state.drains_at_s:
        return _close(state, CloseCode.DRAIN, "draining")
    if state.expires_s is not None and now_s >= state.expires_s + state.limits.grace_s:
        notice = Refusal("token_expired", "renew the credential and connect again", fatal=True)
        return _close(state, CloseCode.TOKEN_EXPIRED, notice.message, notice)
    state, warning = _warn_of_expiry(state, now_s)
    state, outputs = _store_acks_when_due(state, now_s)
    return state, (*warning, *outputs)


def _warn_of_expiry(state: State, now_s: float) -> Step:
    expires_s = state.expires_s
    if expires_s is None or state.warned or now_s < expires_s - state.limits.renew_s:
        return state, ()
    return replace(state, warned=True), (Send(Expiry(_count_down(expires_s, now_s))),)


def _count_down(expires_s: float | None, now_s: float) -> int:
    return _NEVER_S if expires_s is None else max(0, round(expires_s - now_s))


def _drain(state: State, within_ms: int, jitter_ms: int, now_s: float) -> Step:
    if state.phase is Phase.GREETING:
        return _close(state, CloseCode.DRAIN, "draining")
    drains = replace(state, drains_at_s=now_s + (within_ms + jitter_ms) / 1000)
    if state.phase is Phase.ADMITTING:
        return drains, ()
    return replace(drains, acks={}, acks_stored_s=now_s), (
        *_flush(state),
        Send(Drain(within_ms, jitter_ms)),
    )


def _count(state: State, now_s: float) -> State:
    if now_s - state.window_s >= state.limits.window_s:
        return replace(state, window_s=now_s, window_frames=1)
    return replace(state, window_frames=state.window_frames + 1)


def _limit_rate(state: State) -> Step:
    wait_s = max(1, round(state.limits.window_s))
    notice = Refusal("rate_limited", "too many frames", fatal=True, retry_s=wait_s)
    return _close(state, CloseCode.RATE_LIMIT, notice.message, notice)


def _not_subscribed(of: str, stream: str) -> Refusal:
    return Refusal("not_subscribed", ACK_FAULTS["not_subscribed"], of=of, stream=stream)


def _refuse(state: State, answer: Refusal | Failure) -> Step:
    if isinstance(answer, Refusal) and (answer.fatal or state.phase is Phase.GREETING):
        return _close(state, CloseCode.MALFORMED, answer.message, replace(answer, fatal=True))
    refused = replace(state, refusals=state.refusals + 1)
    if refused.refusals >= state.limits.refusals:
        notice = Refusal("repeated_refusals", "too many refused frames", fatal=True)
        closed, outputs = _close(refused, CloseCode.REPEATED_REFUSALS, notice.message, notice)
        return closed, (Send(answer), *outputs)
    return refused, (Send(answer),)


def _close(state: State, code: CloseCode, reason: str, notice: Refusal | None = None) -> Step:
    told = () if notice is None else (Send(notice),)
    closed = replace(state, phase=Phase.CLOSED, acks={})
    return closed, (*_flush(state), *told, Close(code, reason))


def _flush(state: State) -> tuple[Output, ...]:
    return (StoreAcks(state.acks),) if state.acks else ()


def _subscribe_all(state: State, frames: Iterable[Subscribe]) -> Step:
    outputs: tuple[Output, ...] = ()
    for frame in frames:
        state, more = _subscribe(state, frame)
        outputs = (*outputs, *more)
    return state, outputs

"""The connection machine: every pair of phase and input, and each rule by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, cast, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passerelle.channels.inputs import (
    AckJudged,
    Admitted,
    CallAnswered,
    DrainAsked,
    EndRequested,
    EventsDelivered,
    Input,
    NoticeDue,
    Received,
    Renewed,
    SocketGone,
    Ticked,
    Undecodable,
)
from passerelle.channels.limits import ChannelLimits
from passerelle.channels.outputs import (
    Admit,
    Ask,
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
from passerelle.channels.session import ACCEPTS, step
from passerelle.channels.session_state import ConnectionPhase, ConnectionState, start
from passerelle.channels.session_time import next_tick_s
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.cursor import Cursor, GapReason
from passerelle.protocol.frames import (
    Ack,
    Answer,
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
    Role,
    SayPresence,
    ServerBeat,
    ShowPresence,
    Snapshot,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    Welcome,
)
from passerelle.protocol.reverse_frames import (
    AgentFrame,
    AnswerItem,
    AnswerPiece,
    Done,
    Failed,
    Register,
    StopAsking,
    TakeMore,
    Unregister,
)

EPOCH = "0000000a"
NAME = "session:se_1"
HELLO = Hello(1, "phone", "ui", "t", subscriptions=(Subscribe(NAME),))
WELCOME = Welcome("cn", "ch", 1, "pr", frozenset(), 25, 35, {}, "r", "now", (), pending_more=False)

AGENT_FRAMES: tuple[AgentFrame, ...] = (
    Register("a", {}),
    Unregister("a"),
    AnswerItem("g1", 1, {}),
    AnswerPiece("g1", "{}"),
    Done("g1"),
    Failed("g1", "busy"),
)
ASKING_FRAMES = (TakeMore("7", 1), StopAsking("7"), AnswerPiece("7", "{}"))
ASKED = Call("7", "a2a:SendMessage", None, {}, "planner")


def at(sequence: int, epoch: str = EPOCH) -> Cursor:
    return Cursor(epoch, sequence, f"{sequence:08x}")


def run(
    state: ConnectionState, *inputs: Input, now_s: float = 0.0
) -> tuple[ConnectionState, list[Output]]:
    outputs: list[Output] = []
    for one in inputs:
        state, more = step(state, one, now_s)
        outputs += more
    return state, outputs


def opened(limits: ChannelLimits | None = None, sent: int | None = 20) -> ConnectionState:
    """An open connection that follows one stream and was sent up to ``sent``."""
    state, _ = run(
        start(limits or ChannelLimits(), 0), Received(replace(HELLO, subscriptions=())), Admitted(WELCOME)
    )  # fmt: skip
    state, _ = run(state, Received(Subscribe(NAME)))
    if sent is not None:
        state, _ = run(
            state, NoticeDue(Subscribed(NAME, "resumed", at(sent), dense=True, missed=0))
        )
    return state


def welcome(role: Role) -> ConnectionState:
    """An open connection of a role that follows nothing."""
    hello = replace(HELLO, role=role, subscriptions=())
    state, _ = run(start(ChannelLimits(), 0), Received(hello), Admitted(WELCOME))
    return state


def sent(outputs: list[Output]) -> list[object]:
    return [output.frame for output in outputs if isinstance(output, Send)]


def closes(outputs: list[Output]) -> list[CloseCode]:
    return [output.code for output in outputs if isinstance(output, Close)]


def test_every_input_is_listed_for_the_open_phase_or_for_the_one_before() -> None:
    kinds = set(get_args(Input))
    assert ACCEPTS[ConnectionPhase.OPEN] | ACCEPTS[ConnectionPhase.ADMITTING] == kinds
    assert set(ACCEPTS) == set(ConnectionPhase)


INPUTS: list[Input] = [
    Received(Subscribe(NAME)),
    Undecodable(Refusal("malformed", "no", fatal=True)),
    Admitted(WELCOME),
    Renewed(None),
    NoticeDue(Live(NAME, at(3), 0)),
    EventsDelivered({NAME: at(3)}),
    AckJudged(NAME, "stale_generation"),
    CallAnswered(Answer("1", {})),
    Ticked(),
    DrainAsked(0, 0),
    EndRequested(CloseCode.RESTART),
    SocketGone(),
]


@pytest.mark.requirement("I6", "CHN-9")
@pytest.mark.parametrize("given_input", INPUTS, ids=lambda one: type(one).__name__)
def test_a_closed_connection_decides_nothing(given_input: Input) -> None:
    closed, _ = run(opened(), EndRequested(CloseCode.RESTART))
    assert closed.phase is ConnectionPhase.CLOSED
    assert step(closed, given_input, 1e9) == (closed, ())


@pytest.mark.requirement("I6", "CHN-9")
@pytest.mark.parametrize("end", [SocketGone(), EndRequested(CloseCode.TOO_SLOW), Ticked()])
def test_the_end_of_a_connection_asks_for_nothing_but_its_acks(end: Input) -> None:
    state, _ = run(opened(), Received(Call("1", "submit_turn", "k", {})))
    _, outputs = run(state, end, now_s=1e6)
    assert {type(output) for output in outputs} <= {StoreAcks, Send, Close}


@pytest.mark.requirement("CHN-11")
@pytest.mark.parametrize(
    "frame",
    [
        Subscribe(NAME),
        Ack({NAME: at(1)}),
        ClientBeat(1),
        Call("1", "x", None, {}),
        Unsubscribe(NAME),
    ],
)
def test_before_hello_every_other_frame_ends_the_connection(frame: ClientFrame) -> None:
    state, outputs = run(start(ChannelLimits(), 0), Received(frame))
    assert state.phase is ConnectionPhase.CLOSED
    assert closes(outputs) == [CloseCode.MALFORMED]
    assert {type(output) for output in outputs} == {Send, Close}


def test_hello_is_looked_at_before_anything_is_opened() -> None:
    state, outputs = run(start(ChannelLimits(), 0), Received(HELLO))
    assert (state.phase, outputs) == (ConnectionPhase.ADMITTING, [Admit(HELLO)])
    state, outputs = run(state, Admitted(WELCOME))
    assert outputs == [Send(WELCOME), Open(Subscribe(NAME))]
    _, outputs = run(state, Received(HELLO))
    assert [frame.code for frame in sent(outputs) if isinstance(frame, Refusal)] == [
        "forbidden_frame"
    ]


def test_no_hello_in_time_closes() -> None:
    state = start(ChannelLimits(), 0)
    assert next_tick_s(state) == 10
    assert step(state, Ticked(), 9.9) == (state, ())
    _, outputs = run(state, Ticked(), now_s=10)
    assert closes(outputs) == [CloseCode.NO_HELLO]


@pytest.mark.requirement("CHN-10")
def test_silence_closes_and_any_frame_is_a_sign_of_life() -> None:
    state, _ = run(opened(), Received(ClientBeat(1)), now_s=30)
    state, outputs = run(state, Ticked(), now_s=64.9)
    assert outputs == []
    _, outputs = run(state, Ticked(), now_s=65)
    assert closes(outputs) == [CloseCode.HEARTBEAT_MISSED]


def test_a_client_that_is_not_read_counts_as_alive_and_hears_from_the_gateway() -> None:
    state, now_s = opened(), 0.0
    for _ in range(20):
        now_s = next_tick_s(state, waits=True)
        state, outputs = run(state, Ticked(waits=True), now_s=now_s)
        assert sent(outputs) == [ServerBeat(0)]
    assert now_s > 2 * state.limits.idle_s
    # Close enough for a client that has heard nothing since the answer to its last heartbeat.
    assert next_tick_s(state, waits=True) - now_s <= state.limits.idle_s - state.limits.heartbeat_s
    assert next_tick_s(state) == now_s + state.limits.idle_s
    assert closes(run(state, Ticked(), now_s=now_s + 35)[1]) == [CloseCode.HEARTBEAT_MISSED]


def test_a_credential_that_ends_is_asked_for_once_and_then_ends_the_connection() -> None:
    limits = ChannelLimits(renew_s=60, grace_s=25, idle_s=1_000)
    state, _ = run(
        start(limits, 0), Received(replace(HELLO, subscriptions=())), Admitted(WELCOME, 100)
    )  # fmt: skip
    assert next_tick_s(state) == 40
    state, outputs = run(state, Ticked(), now_s=40)
    assert sent(outputs) == [Expiry(60)]
    assert next_tick_s(state) == 125
    assert run(state, Ticked(), now_s=124) == (state, [])
    _, outputs = run(state, Ticked(), now_s=125)
    assert closes(outputs) == [CloseCode.TOKEN_EXPIRED]
    state, outputs = run(state, Received(Renew("next")), now_s=110)
    assert outputs == [Reauthenticate("next")]
    state, outputs = run(state, Renewed(700.0), now_s=110)
    assert sent(outputs) == [Expiry(590)]
    assert next_tick_s(state) == 640
    state, _ = run(state, Renewed(None), now_s=110)
    assert next_tick_s(state) == 110 + 1_000


@pytest.mark.requirement("CHN-5")
def test_an_ack_is_stored_at_once_and_then_at_most_once_per_interval() -> None:
    state, outputs = run(opened(), Received(Ack({NAME: at(10)})), now_s=5)
    assert outputs == [StoreAcks({NAME: at(10)})]
    state, outputs = run(
        state, Received(Ack({NAME: at(12)})), Received(Ack({NAME: at(11)})), now_s=5.2
    )
    assert outputs == []
    assert next_tick_s(state) == 6
    state, outputs = run(state, Ticked(), now_s=6)
    assert outputs == [StoreAcks({NAME: at(12)})]
    assert run(state, Ticked(), now_s=8)[1] == []


@pytest.mark.requirement("CHN-5")
@pytest.mark.parametrize(
    ("cursor", "code"),
    [
        (at(21), "ack_ahead"),
        (Cursor(EPOCH, 20, "ffffffff"), "ack_ahead"),
        (at(3, "0000000b"), "ack_epoch"),
    ],
)
def test_an_ack_that_was_never_given_out_is_refused(cursor: Cursor, code: str) -> None:
    _, outputs = run(opened(), Received(Ack({NAME: cursor})))
    assert [frame.code for frame in sent(outputs) if isinstance(frame, Refusal)] == [code]
    assert not [output for output in outputs if isinstance(output, StoreAcks)]


@pytest.mark.requirement("CHN-5")
def test_acks_of_a_history_that_was_lost_do_not_end_the_link_unless_they_are_too_many() -> None:
    late = Received(Ack({NAME: at(3, "0000000b")}))
    state, outputs = run(opened(ChannelLimits(frames_per_window=30)), *[late] * 20)
    assert (len(sent(outputs)), closes(outputs)) == (20, [])
    by_store = [AckJudged(NAME, "ack_ahead")] * 20
    assert closes(run(state, *by_store)[1]) == []
    assert closes(run(state, *[late] * 20)[1]) == [CloseCode.RATE_LIMIT]


def test_an_ack_of_a_stream_that_is_not_followed_is_refused() -> None:
    _, outputs = run(opened(), Received(Ack({"inbox": at(1)})))
    assert [frame.code for frame in sent(outputs) if isinstance(frame, Refusal)] == [
        "not_subscribed"
    ]


def test_an_ack_between_a_new_subscription_and_its_answer_means_nothing() -> None:
    state, _ = run(opened(), Received(Subscribe(NAME)))
    assert run(state, Received(Ack({NAME: at(3)})))[1] == []


@pytest.mark.requirement("CHN-5")
@pytest.mark.parametrize(
    "end",
    [SocketGone(), EndRequested(CloseCode.RESTART), DrainAsked(0, 0), Received(Unsubscribe(NAME)),
     NoticeDue(Unsubscribed(NAME, "forbidden"))],
)  # fmt: skip
def test_acks_that_wait_are_stored_before_the_end(end: Input) -> None:
    state, _ = run(opened(), Received(Ack({NAME: at(10)})), Received(Ack({NAME: at(15)})))
    state, outputs = run(state, end)
    assert outputs[0] == StoreAcks({NAME: at(15)}) if outputs else False
    assert state.acks == {}


@pytest.mark.requirement("CHN-9")
def test_an_ack_of_an_older_generation_ends_the_connection() -> None:
    _, outputs = run(opened(), AckJudged(NAME, "stale_generation"))
    assert closes(outputs) == [CloseCode.SUPERSEDED]


def test_a_heartbeat_is_answered_and_moves_what_is_caught_up() -> None:
    beat = Received(ClientBeat(7, {NAME: at(20)}), {NAME: at(25)})
    state, outputs = run(opened(), beat)
    assert outputs == [StoreAcks({NAME: at(20)}), Send(ServerBeat(7, {NAME: at(25)}))]
    assert state.sent[NAME] == at(25)
    _, outputs = run(state, beat)
    assert sent(outputs) == [ServerBeat(7)]


@pytest.mark.requirement("PRS-9")
def test_presence_is_repeated_with_each_heartbeat() -> None:
    here = SayPresence("active", frozenset({NAME}))
    state, outputs = run(opened(), Received(here))
    assert outputs == [NotePresence(here)]
    state, outputs = run(state, Received(ClientBeat(1)))
    assert outputs == [Send(ServerBeat(1)), NotePresence(here)]
    away = SayPresence("away")
    state, outputs = run(state, Received(away), Received(ClientBeat(2)))
    assert outputs == [NotePresence(away), Send(ServerBeat(2)), NotePresence(away)]
    assert replace(state, presence=None, window_frames=1, heard_s=0) == opened()
    shown = ShowPresence("inbox:pr_ada", ())
    assert run(state, NoticeDue(shown)) == (state, [Send(shown)])


def test_the_sent_cursor_grows_with_deliveries_and_is_set_by_a_snapshot() -> None:
    state, _ = run(opened(), EventsDelivered({NAME: at(22)}), EventsDelivered({NAME: at(21)}))
    assert state.sent[NAME] == at(22)
    state, outputs = run(state, NoticeDue(Snapshot(NAME, at(18), {})))
    assert (state.sent[NAME], len(outputs)) == (at(18), 1)
    gap = Gap(NAME, GapReason.EPOCH, None, None, None, "inline")
    state, _ = run(state, NoticeDue(gap), NoticeDue(Snapshot(NAME, at(2, "0000000b"), {})))
    assert state.sent[NAME] == at(2, "0000000b")


def test_streams_are_opened_replaced_released_and_bounded() -> None:
    state, outputs = run(
        opened(ChannelLimits(subscriptions=1)), Received(Subscribe(NAME, full=True))
    )
    assert outputs == [Open(Subscribe(NAME, full=True))]
    _, outputs = run(state, Received(Subscribe("inbox")))
    assert [frame.code for frame in sent(outputs) if isinstance(frame, Refusal)] == ["limit"]
    state, outputs = run(state, Received(Unsubscribe(NAME)))
    assert outputs == [Release(NAME)]
    _, outputs = run(state, Received(Unsubscribe(NAME)), Received(AskSnapshot(NAME)))
    assert [type(output) for output in outputs] == [Send, Send]


def test_a_refused_stream_is_not_followed() -> None:
    state, _ = run(opened(sent=None), NoticeDue(Refusal("not_found", "no", "sub", NAME)))
    assert NAME not in state.sent


def test_a_snapshot_is_taken_for_a_stream_that_is_followed() -> None:
    assert run(opened(), Received(AskSnapshot(NAME, "4")))[1] == [
        TakeSnapshot(AskSnapshot(NAME, "4"))
    ]


def test_reading_stops_at_the_bound_of_open_calls_and_goes_on_with_an_answer() -> None:
    state = opened(ChannelLimits(calls=2))
    for number in ("1", "2"):
        state, outputs = run(state, Received(Call(number, "get_task", None, {})))
        assert outputs == [Execute(Call(number, "get_task", None, {}))]
    assert state.is_saturated
    state, outputs = run(state, CallAnswered(Failure("1", "not_found", "no")))
    assert (state.is_saturated, len(outputs)) == (False, 1)


def test_an_id_of_an_open_call_is_not_taken_twice() -> None:
    state, _ = run(opened(), Received(Call("1", "x", None, {})))
    _, outputs = run(state, Received(Call("1", "y", None, {})))
    assert [frame.code for frame in sent(outputs) if isinstance(frame, Refusal)] == ["duplicate_id"]


def test_acks_and_heartbeats_are_not_counted_and_other_frames_are() -> None:
    state = opened(ChannelLimits(frames_per_window=3))
    beats = [Received(ClientBeat(n)) for n in range(50)]
    state, outputs = run(state, *beats, now_s=20)
    assert closes(outputs) == []
    subscribes = [Received(Subscribe(NAME))] * 3
    state, outputs = run(state, *subscribes, now_s=20)
    assert closes(outputs) == []
    assert closes(run(state, Received(Subscribe(NAME)), now_s=20)[1]) == [CloseCode.RATE_LIMIT]
    assert closes(run(state, Received(Subscribe(NAME)), now_s=30)[1]) == []


def test_repeated_refusals_close_the_connection_with_the_reason() -> None:
    refusal = Undecodable(Refusal("forbidden_frame", "no", of="ev"))
    state, outputs = run(opened(), *[refusal] * 7)
    assert closes(outputs) == []
    _, outputs = run(state, refusal)
    assert closes(outputs) == [CloseCode.REPEATED_REFUSALS]
    last = sent(outputs)[-1]
    assert isinstance(last, Refusal)
    assert last.fatal


def test_a_drain_is_sent_and_closes_the_connection_after_its_time() -> None:
    state, outputs = run(opened(), DrainAsked(2_000, 5_000), now_s=10)
    assert sent(outputs) == [Drain(2_000, 5_000)]
    assert next_tick_s(state) == 17
    assert closes(run(state, Ticked(), now_s=16.9)[1]) == []
    assert closes(run(state, Ticked(), now_s=17)[1]) == [CloseCode.DRAIN]
    assert closes(run(start(ChannelLimits(), 0), DrainAsked(1, 1))[1]) == [CloseCode.DRAIN]


@pytest.mark.requirement("CMD-29")
@pytest.mark.parametrize("frame", [*AGENT_FRAMES, *ASKING_FRAMES], ids=repr)
def test_frames_of_agents_are_forbidden_to_everybody_else(frame: AgentFrame) -> None:
    for role, count in (("agent", 1), ("ui", 0), ("peer", 0)):
        _, came = run(welcome(cast("Role", role)), Received(frame))
        kind = Ask if frame in ASKING_FRAMES else Serve
        assert [one.frame for one in came if isinstance(one, kind)] == [frame] * count
        refusals = [one.code for one in sent(came) if isinstance(one, Refusal)]
        assert refusals == ([] if count else ["forbidden_frame"])


def test_only_an_agent_may_call_other_agents() -> None:
    _, outputs = run(welcome("agent"), Received(ASKED))
    assert outputs == [Ask(ASKED)]
    for role in get_args(Role):
        if role == "agent":
            continue
        _, outputs = run(welcome(role), Received(ASKED))
        assert outputs == [Execute(ASKED)]


@pytest.mark.parametrize(
    ("call", "field"),
    [(replace(ASKED, id="g7"), "id"), (replace(ASKED, to=None), "to")],
)
def test_a_call_to_an_agent_needs_its_name_and_an_id_that_is_not_the_gateways(
    call: Call, field: str
) -> None:
    state, outputs = run(welcome("agent"), Received(call))
    (failure,) = sent(outputs)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.data) == ("invalid_input", {"field": field})
    assert state.asks == frozenset()


def test_calls_to_agents_are_bounded_and_never_stop_the_reader() -> None:
    state = welcome("agent")
    limit = state.limits.calls
    state, outputs = run(state, *(Received(replace(ASKED, id=f"c{n}")) for n in range(limit + 1)))
    (busy,) = sent(outputs)
    assert isinstance(busy, Failure)
    assert (busy.id, busy.code, busy.retry_s) == (f"c{limit}", "concurrency_limited", 1)
    assert not state.is_saturated
    state, outputs = run(state, Received(replace(ASKED, id="c0")))
    assert [one.code for one in sent(outputs) if isinstance(one, Refusal)] == ["duplicate_id"]
    state, _ = run(state, CallAnswered(Answer("c0")))
    _, outputs = run(state, Received(replace(ASKED, id="c0")))
    assert [one for one in outputs if isinstance(one, Ask)] == [Ask(replace(ASKED, id="c0"))]


def test_frames_of_agent_calls_do_not_count_against_the_rate() -> None:
    state, limit = welcome("agent"), ChannelLimits().frames_per_window
    state, outputs = run(state, *(Received(AnswerItem("g1", 1, {})) for _ in range(3 * limit)))
    assert closes(outputs) == []
    state, outputs = run(state, *(Received(one) for one in ASKING_FRAMES * limit))
    assert closes(outputs) == []
    calls = (one for _ in range(limit + 1) for one in (Received(ASKED), CallAnswered(Answer("7"))))
    state, outputs = run(state, *calls)
    assert (closes(outputs), outputs.count(Ask(ASKED))) == ([], limit + 1)
    commands = (Received(replace(ASKED, id=str(one))) for one in range(limit + 1))
    assert closes(run(welcome("ui"), *commands)[1]) == [CloseCode.RATE_LIMIT]
    _, outputs = run(state, *(Received(Register("a", {})) for _ in range(limit + 1)))
    assert closes(outputs) == [CloseCode.RATE_LIMIT]


CURSORS = st.builds(at, st.integers(0, 30), st.sampled_from([EPOCH, "0000000b"]))
STREAMS = st.sampled_from([NAME, "inbox", "task:x"])
FRAMES: st.SearchStrategy[ClientFrame] = st.one_of(
    st.just(HELLO),
    st.builds(Subscribe, STREAMS),
    st.builds(Unsubscribe, STREAMS),
    st.builds(AskSnapshot, STREAMS),
    st.builds(Ack, st.dictionaries(STREAMS, CURSORS, min_size=1)),
    st.builds(ClientBeat, st.integers(0, 9), st.dictionaries(STREAMS, CURSORS)),
    st.builds(Call, st.sampled_from("123"), st.just("get_task"), st.none(), st.just({})),
    st.sampled_from(AGENT_FRAMES + ASKING_FRAMES),
    st.builds(
        Call, st.sampled_from("1g"), st.just("a2a:GetTask"), st.none(), st.just({}), st.just("a")
    ),
)
ANY_INPUT: st.SearchStrategy[Input] = st.one_of(
    st.builds(Received, FRAMES, st.dictionaries(STREAMS, CURSORS)),
    st.builds(Undecodable, st.builds(Refusal, st.just("x"), st.just("y"), fatal=st.booleans())),
    st.just(Admitted(WELCOME)),
    st.builds(NoticeDue, st.builds(Live, STREAMS, CURSORS, st.just(0))),
    st.builds(NoticeDue, st.builds(Snapshot, STREAMS, CURSORS, st.just({}))),
    st.builds(NoticeDue, st.builds(Unsubscribed, STREAMS, st.just("gone"))),
    st.builds(EventsDelivered, st.dictionaries(STREAMS, CURSORS, max_size=3)),
    st.builds(AckJudged, STREAMS, st.sampled_from(["stored", "ack_epoch", "ack_ahead"])),
    st.builds(CallAnswered, st.builds(Answer, st.sampled_from("123"), st.just({}))),
    st.just(Ticked()),
    st.just(DrainAsked(2_000, 5_000)),
    st.just(EndRequested(CloseCode.RESTART)),
    st.just(SocketGone()),
)


@settings(max_examples=200)
@given(st.lists(st.tuples(ANY_INPUT, st.floats(0, 5)), max_size=40))
def test_any_sequence_of_inputs_keeps_the_promises(inputs: list[tuple[Input, float]]) -> None:
    state, now_s, closed, admitted = start(ChannelLimits(), 0), 0.0, False, False
    issued: dict[tuple[str, str], int] = {}
    for one, later_s in inputs:
        now_s += later_s
        state, outputs = step(state, one, now_s)
        assert not (closed and outputs), "something was done after the close"
        for output in outputs:
            if isinstance(
                output, Open | Execute | StoreAcks | TakeSnapshot | Release | Serve | Ask
            ):
                assert admitted, "something was done before the welcome"
            if isinstance(output, StoreAcks):
                for name, cursor in output.cursors.items():
                    assert cursor.sequence <= issued[name, cursor.epoch], "never given out"
            admitted = admitted or output == Send(WELCOME)
        for name, told in state.sent.items():
            if told is not None:
                issued[name, told.epoch] = max(issued.get((name, told.epoch), 0), told.sequence)
        closed = closed or state.phase is ConnectionPhase.CLOSED
        assert len([output for output in outputs if isinstance(output, Close)]) <= 1


@pytest.mark.requirement("CHN-5")
@pytest.mark.parametrize("why", ["ack_epoch", "ack_ahead"])
def test_an_ack_that_the_store_refuses_is_answered_with_the_reason(
    why: Literal["ack_epoch", "ack_ahead"],
) -> None:
    state, outputs = run(opened(), AckJudged(NAME, why))
    assert [frame.code for frame in sent(outputs) if isinstance(frame, Refusal)] == [why]
    assert run(state, AckJudged(NAME, "stored"))[1] == []


def test_a_delivery_of_a_stream_that_was_left_changes_nothing() -> None:
    state, _ = run(opened(), Received(Unsubscribe(NAME)))
    assert run(state, EventsDelivered({NAME: at(30)}))[0] == state


def test_a_drain_while_the_credential_is_looked_at_only_sets_the_time() -> None:
    state, _ = run(start(ChannelLimits(), 0), Received(HELLO))
    state, outputs = run(state, DrainAsked(1_000, 0), now_s=1)
    assert (outputs, next_tick_s(state)) == ([], 2)
    assert closes(run(state, Ticked(), now_s=2)[1]) == [CloseCode.DRAIN]


def test_a_failure_to_decode_before_hello_ends_the_connection() -> None:
    state, outputs = run(
        start(ChannelLimits(), 0), Undecodable(Failure("1", "invalid_input", "no"))
    )
    assert state.phase is ConnectionPhase.GREETING
    assert len(sent(outputs)) == 1

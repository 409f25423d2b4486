"""The thread machine: one context for ever, its turns in order, and what each agent gets (ID-3, A2A-4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.errors import CallerError, InvalidInput, NotFound
from passerelle.core.events import Event, Fact, decode_event, encode_event
from passerelle.core.facts import ErrorCategory, ErrorDetail, Scope
from passerelle.core.payloads.conversation import (
    ThreadStarted,
    ThreadUpdated,
    TurnCompleted,
    TurnSubmitted,
)
from passerelle.core.payloads.subagent import SubagentClosed
from passerelle.core.payloads.tool import ToolCatalogResolved
from passerelle.core.session.thread import (
    TABLE,
    CloseContext,
    EndTurn,
    FailTurn,
    OpenThread,
    ResolveTools,
    SubmitMessage,
    ThreadCommand,
    ThreadRecord,
    ThreadStatus,
    decide,
    evolve,
    name_current,
)
from passerelle.core.subagent.name import SubagentName, parse_subagent
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.times import format_ms
from tests.support.task_commands import STARTED

OPEN = OpenThread("se_1", "th_1", ThreadStarted("ctx_1", "pr_1", "default", "ada"))
FAILURE = ErrorDetail("peer_failed", ErrorCategory.PEER, "it broke")
DONE = TurnCompleted("task", "completed")
HELD_BACK = ToolCatalogResolved("ada", digest="sha256:1")
OTHERWISE = ToolCatalogResolved("ada", digest="sha256:2")


def submit(turn: str, session: str = "se_1") -> SubmitMessage:
    return SubmitMessage(session, turn, "task_1", TurnSubmitted(f"m-{turn}", "echo", "a2a", "hi"))


def resolve(catalog: ToolCatalogResolved | None) -> ResolveTools:
    return ResolveTools(Scope("se_1", "th_1", "turn_1", "task_1"), "ada", catalog)


class Stream:
    """A thread and its events."""

    def __init__(self, *commands: ThreadCommand) -> None:
        self.state: ThreadRecord | None = None
        self.events: list[Event] = []
        for command in commands:
            self.apply(command)

    def apply(self, command: ThreadCommand) -> list[Fact]:
        facts = decide(self.state, command)
        for fact in facts:
            self.push(fact)
        return facts

    def push(self, fact: Fact) -> None:
        place = len(self.events) + 1
        event = Event(f"ev_{place}", format_ms(place), "rt_1", fact, place)
        self.events.append(event)
        self.state = evolve(self.state, event)

    @property
    def now(self) -> ThreadRecord:
        assert self.state is not None
        return self.state


TURNS = st.sampled_from(["turn_1", "turn_2", "turn_3"])
COMMANDS: st.SearchStrategy[ThreadCommand] = st.one_of(
    st.just(OPEN),
    TURNS.map(submit),
    TURNS.map(lambda turn: EndTurn(turn, "task_1", DONE)),
    TURNS.map(lambda turn: FailTurn(turn, "task_1", FAILURE)),
    TURNS.map(lambda turn: submit(turn, "se_2")),
    st.sampled_from([HELD_BACK, OTHERWISE, None]).map(resolve),
)


@pytest.mark.requirement("ID-3", "ID-4")
def test_turns_sit_on_their_thread_in_order() -> None:
    stream = Stream(OPEN, submit("turn_1"), submit("turn_2"))
    both = stream.now
    stream.apply(EndTurn("turn_1", "task_1", DONE))
    one = stream.now
    stream.apply(FailTurn("turn_2", "task_1", FAILURE))
    none = stream.now
    assert [len(state.active_turns) for state in (both, one, none)] == [2, 1, 0]
    assert [state.status for state in (both, one, none)] == ["running", "running", "idle"]
    assert (both.turns, none.turns) == (2, 2)
    assert (one.last_outcome, none.last_outcome) == ("completed", "peer_failed")
    submitted = [e.fact.scope for e in stream.events if e.type == "turn.submitted"]
    assert [scope.turn_id for scope in submitted] == ["turn_1", "turn_2"]
    assert {(scope.session_id, scope.thread_id) for scope in submitted} == {("se_1", "th_1")}


@pytest.mark.requirement("ID-3")
def test_context_cannot_be_attached_to_another_session() -> None:
    stream = Stream(OPEN)
    before = stream.now
    with pytest.raises(InvalidInput, match="sessionId"):
        stream.apply(submit("turn_1", "se_2"))
    with pytest.raises(InvalidInput, match="contextId"):
        stream.apply(OpenThread("se_2", "th_1", OPEN.started))
    assert stream.now == before


def test_turn_that_has_its_answer_is_ended_once() -> None:
    stream = Stream(OPEN, submit("turn_1"), EndTurn("turn_1", "task_1", DONE))
    assert stream.apply(EndTurn("turn_1", "task_1", DONE)) == []
    assert stream.apply(FailTurn("turn_1", "task_1", FAILURE)) == []
    assert stream.now.last_outcome == "completed"


@pytest.mark.requirement("EVC-8")
def test_tools_of_a_turn_are_recorded_only_if_they_changed() -> None:
    stream = Stream(OPEN, submit("turn_1"))
    resolved = [None, HELD_BACK, HELD_BACK, OTHERWISE, None, None]
    told = [[fact.payload for fact in stream.apply(resolve(one))] for one in resolved]
    free = ToolCatalogResolved("ada")
    assert told == [[], [HELD_BACK], [], [OTHERWISE], [free], []]


def test_thread_that_does_not_exist_takes_nothing() -> None:
    for command in (submit("turn_1"), EndTurn("turn_1", "task_1", DONE)):
        with pytest.raises(NotFound):
            decide(None, command)


@pytest.mark.requirement("A2A-4")
def test_each_agent_has_its_latest_context() -> None:
    stream = Stream(OPEN, submit("turn_1"))
    scope = Scope("se_1", "th_1", "turn_1", "task_1", "run_1")
    stream.push(Fact(scope, STARTED))
    stream.push(Fact(scope, ThreadUpdated(peer="other", remote_context_id="theirs")))
    assert stream.now.remotes == {"echo": "rctx_1", "other": "theirs"}
    stream.push(Fact(scope, ThreadUpdated(peer="echo", remote_context_id="its own")))
    assert stream.now.remotes == {"echo": "its own", "other": "theirs"}


def test_events_of_another_thread_and_old_ones_change_nothing() -> None:
    stream = Stream(OPEN, submit("turn_1"))
    before = stream.now
    stream.push(Fact(Scope("se_1", "th_2", "turn_9", "task_9"), DONE))
    assert stream.now == before
    for event in stream.events:
        assert evolve(before, event) == before


@given(commands=st.lists(COMMANDS, max_size=25))
def test_random_life_follows_the_table_and_replays_to_the_same_bytes(
    commands: list[ThreadCommand],
) -> None:
    stream = Stream(OPEN)
    for command in commands:
        before = stream.now
        try:
            stream.apply(command)
        except CallerError:
            assert stream.now == before
            continue
        assert stream.now.status in TABLE[type(command)][before.status]
        assert (stream.now.status is ThreadStatus.RUNNING) == bool(stream.now.active_turns)
        assert (stream.now.context_id, stream.now.session_id) == ("ctx_1", "se_1")
    replayed: ThreadRecord | None = None
    for event in stream.events:
        stored = b'{"sequence":%d,' % event.sequence + encode_event(event).body
        replayed = evolve(replayed, decode_event(stored))
    assert replayed is not None
    assert to_bytes(replayed) == to_bytes(stream.now)
    assert from_bytes(ThreadRecord, to_bytes(replayed)) == stream.now


_OPENED = "th_01" + "0" * 26
CLOSE = CloseContext(
    SubagentName(_OPENED, "echo"),
    Scope("se_1", "th_0", "turn_0", "task_0"),
    SubagentClosed("command", "ada"),
)


@pytest.mark.requirement("EVC-16")
def test_a_context_that_is_closed_is_followed_by_another_one() -> None:
    stream = Stream(replace(OPEN, thread_id=_OPENED), submit("turn_1"))
    with pytest.raises(NotFound):
        stream.apply(CLOSE)
    stream.push(Fact(Scope("se_1", _OPENED, "turn_1", "task_1", "run_1"), STARTED))
    told = stream.now.remotes["echo"]
    (fact,) = stream.apply(CLOSE)
    assert fact.scope.thread_id == "th_0"  # the scope of the parent, given in the command
    assert stream.now.remotes == {}
    assert stream.now.closed is not None
    (closed,) = stream.now.closed
    assert (closed.peer, closed.number, closed.native_id) == ("echo", 1, told)
    assert stream.apply(CLOSE) == []
    assert name_current(stream.now, "echo").number == 2
    with pytest.raises(NotFound):
        stream.apply(replace(CLOSE, name=SubagentName(_OPENED, "echo", 2)))
    assert from_bytes(ThreadRecord, to_bytes(stream.now)) == stream.now


@given(st.text(max_size=40))
def test_no_text_but_an_id_names_a_subagent(text: str) -> None:
    assert parse_subagent(text) is None or str(parse_subagent(text)) == text


@pytest.mark.parametrize("peer", ["echo", "a-b_c", "echo/acme", "echo/a~1~b.c"])
def test_an_id_of_a_subagent_contains_thread_agent_and_number(peer: str) -> None:
    name = SubagentName("th_" + "01" + "0" * 26, peer, 12)
    assert parse_subagent(str(name)) == name
    assert "/" not in str(name)
    assert parse_subagent(str(name).replace("~12~", "~012~")) is None

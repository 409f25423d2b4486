"""Rolled-back threads: their state is that of the remaining turns, and nothing else (PRS-5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.errors import CallerError, InvalidInput, UnsupportedOperation
from passerelle.core.events import Event, Fact, decode_event, encode_event
from passerelle.core.facts import CompactedTurns, ErrorCategory, ErrorDetail, Ref, Scope
from passerelle.core.payloads.context import CompactionCompleted, CompactionStarted
from passerelle.core.payloads.conversation import (
    ThreadStarted,
    ThreadUpdated,
    TurnCompleted,
    TurnSubmitted,
)
from passerelle.core.payloads.history import RollbackStarted, ThreadState
from passerelle.core.payloads.run import ArtifactChanged
from passerelle.core.payloads.task import TaskAttemptStarted
from passerelle.core.payloads.tool import ToolCatalogResolved
from passerelle.core.session.boundaries import KEPT_COMPACTIONS, Compact, RollBack, read_state
from passerelle.core.session.thread import (
    EndTurn,
    FailTurn,
    OpenThread,
    ResolveTools,
    SubmitMessage,
    ThreadCommand,
    ThreadRecord,
    decide,
    evolve,
)
from passerelle.core.session.turn_history import (
    MOST_TASKS,
    FilteredThread,
    TurnHistory,
    check_rollback,
)
from passerelle.core.wire.codec import to_bytes
from passerelle.core.wire.record import change
from passerelle.core.wire.times import format_ms
from tests.support.task_commands import STARTED

OPEN = OpenThread("se_1", "th_1", ThreadStarted("ctx_1", "pr_1", "default", "ada"))
PEERS = ("echo", "other", "third")
NAMES = ("report", "table")

Said: TypeAlias = "ThreadCommand | Fact"
Act: TypeAlias = (
    "tuple[Literal['begin', 'again', 'made', 'end', 'fail', 'back', 'moved', 'sum'], int, int]"
)
ACTS: st.SearchStrategy[Act] = st.tuples(
    st.sampled_from(
        ["begin", "begin", "again", "made", "end", "end", "fail", "back", "moved", "sum"]
    ),
    st.integers(0, 30),
    st.integers(0, 3),
)


def artifact(number: int, name: str, version: int) -> ArtifactChanged:
    return ArtifactChanged(f"art_{number}", "theirs", version, "0" * 64, 3, 1, name=name)


@dataclass(slots=True)
class Conversation:
    """A session with one thread that is rolled back and continued, and another one."""

    events: list[Event] = field(default_factory=list[Event])
    state: ThreadRecord | None = None
    said: list[tuple[str, Said]] = field(default_factory=list[tuple[str, Said]])
    """By task, the events of the thread: replayed for another thread, they give the same state."""
    turns: dict[str, str] = field(default_factory=dict[str, str])
    """Task by turn."""
    gone: set[str] = field(default_factory=set[str])
    """Turns that are rolled back."""
    contexts: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """By task, the contexts in which an agent received it."""
    count: int = 0

    def __post_init__(self) -> None:
        beside = ThreadStarted("ctx_2", "pr_1", "default", "ada")
        self.push(Fact(Scope("se_1", "th_2"), beside))
        self.apply("", OPEN)

    def push(self, fact: Fact) -> None:
        place = len(self.events) + 1
        event = Event(f"ev_{place}", format_ms(place), "rt_1", fact, place)
        self.events.append(event)
        if fact.scope.thread_id == "th_1":
            self.state = evolve(self.state, event)

    def apply(self, task: str, said: Said) -> None:
        facts = [said] if isinstance(said, Fact) else decide(self.state, said)
        self.said.append((task, said))
        for fact in facts:
            self.push(fact)

    @property
    def now(self) -> ThreadRecord:
        assert self.state is not None
        return self.state

    def scope(self, turn: str) -> Scope:
        return Scope("se_1", "th_1", turn, self.turns[turn], f"run_{turn}")

    def begin(self, number: int, tools: int, task: str | None = None) -> str:
        self.count += 1
        turn, peer = f"turn_{self.count}", PEERS[number % len(PEERS)]
        task = task or f"task_{self.count}"
        self.turns[turn] = task
        message = TurnSubmitted(f"m-{turn}", peer, "a2a", "hi")
        self.apply(task, SubmitMessage("se_1", turn, task, message))
        catalog = ToolCatalogResolved("ada", digest=f"sha256:{tools}") if tools else None
        self.apply(task, ResolveTools(self.scope(turn), "ada", catalog))
        context = self.now.remotes.get(peer, f"rctx_{self.count}")
        self.contexts.setdefault(task, set()).add(context)
        worker = change(STARTED.worker, peer=peer)
        started: TaskAttemptStarted = change(STARTED, worker=worker, remote_context_id=context)
        self.apply(task, Fact(self.scope(turn), started))
        return turn

    def produce(self, turn: str, name: str) -> None:
        known = self.now.artifacts.get(name)
        made = artifact(len(self.events), name, known.version + 1 if known else 1)
        self.apply(self.turns[turn], Fact(self.scope(turn), made))

    def end(self, turn: str, outcome: str = "completed") -> None:
        task = self.turns[turn]
        self.apply(task, EndTurn(turn, task, TurnCompleted("task", outcome)))

    def fail(self, turn: str, *, refused: bool) -> None:
        task, error = self.turns[turn], ErrorDetail(f"e-{turn}", ErrorCategory.PEER, "it broke")
        self.apply(task, FailTurn(turn, task, error, refused=refused))

    def read(self) -> TurnHistory:
        history = TurnHistory("th_1")
        for event in self.events:
            history.add(event)
        return history

    def go_back(self, turn: str) -> tuple[ThreadState, tuple[str, ...]]:
        """As the command does it."""
        history = self.read()
        boundary = history.find(turn)
        check_rollback(boundary)
        standing = FilteredThread("th_1", history.list_gone() | boundary.left)
        for event in self.events:
            standing.add(event)
        told = history.list_peers(boundary.tasks)
        renewed = tuple(sorted(peer for peer in self.now.remotes if peer in told))
        started = RollbackStarted(
            f"bd_{len(self.events)}", turn, boundary.turns, "ada", None, boundary.tasks
        )
        last = len(self.events)
        command = RollBack(started, boundary.covers, last, standing.state, renewed)
        for fact in decide(self.state, command):
            self.push(fact)
        self.gone |= set(boundary.turns)
        return standing.state, boundary.turns

    def sum_up(self, turn: str) -> CompactedTurns:
        """As the command does it."""
        boundary, known = self.read().find(turn), self.now.compactions or ()
        covers = boundary.summed_up
        name, before = f"bd_{len(self.events)}", known[-1].covers if known else 0
        summary = Ref(blob="0" * 64, size=3)
        started = CompactionStarted(name, "command", before + 1, covers, turn, "ada")
        completed = CompactionCompleted(
            name, f"se_1@{covers}", "0" * 64, covers + 1, to_turn=turn, summarized_by="ada"
        )
        self.apply(self.turns[turn], Compact(started, completed, summary))
        return CompactedTurns(name, turn, covers, summary, "ada")

    def replay_remaining(self) -> ThreadState:
        """The state of a thread that never had the rolled-back turns."""
        gone = {self.turns[turn] for turn in self.gone}
        other = Conversation()
        for task, said in self.said[1:]:
            if task not in gone:
                other.apply(task, said)
        return read_state(other.now)


def play(acts: list[Act]) -> Conversation:
    talk = Conversation()
    for what, number, choice in acts:
        active = talk.now.active_turns
        turn = active[number % len(active)] if active else None
        match what:
            case "begin":
                talk.begin(number, choice)
            case "again" if turn is not None:
                talk.begin(number, choice, talk.turns[turn])
            case "made" if turn is not None:
                talk.produce(turn, NAMES[choice % len(NAMES)])
            case "end" if turn is not None:
                talk.end(turn, ("completed", "input_required")[choice % 2])
            case "fail" if turn is not None:
                talk.fail(turn, refused=bool(choice % 2))
            case "moved" if turn is not None:
                peer, theirs = PEERS[number % len(PEERS)], f"theirs-{len(talk.events)}"
                talk.contexts[talk.turns[turn]].add(theirs)
                moved = ThreadUpdated(peer=peer, remote_context_id=theirs)
                talk.apply(talk.turns[turn], Fact(talk.scope(turn), moved))
            case "sum" if talk.turns:
                try_to_sum_up(talk, [*talk.turns][number % len(talk.turns)])
            case "back" if talk.turns:
                try_to_go_back(talk, [*talk.turns][number % len(talk.turns)])
            case _:
                pass
    return talk


def try_to_go_back(talk: Conversation, turn: str) -> None:
    before, active = talk.now, talk.now.active_turns
    standing = [one for one in talk.turns if one not in talk.gone]
    kept = standing[: standing.index(turn) + 1] if turn in standing else []
    behind = standing[len(kept) :]
    tasks = [{talk.turns[one] for one in part} for part in (kept, behind)]
    allowed = bool(kept) and not active and not tasks[0] & tasks[1]
    try:
        state, turns = talk.go_back(turn)
    except CallerError:
        assert not allowed
        assert talk.now == before
        return
    assert allowed
    assert list(turns) == behind
    assert read_state(talk.now) == state == talk.replay_remaining()


def try_to_sum_up(talk: Conversation, turn: str) -> None:
    before, active = talk.now, set(talk.now.active_turns)
    standing = [one for one in talk.turns if one not in talk.gone]
    kept = standing[: standing.index(turn) + 1] if turn in standing else []
    known = before.compactions or ()
    ends = {
        event.fact.scope.turn_id: event.sequence
        for event in talk.events
        if event.type in {"turn.completed", "turn.failed"}
    }
    covers = max((ends.get(one, 0) for one in kept), default=0)
    allowed = bool(kept) and not active & set(kept) and covers > (known[-1].covers if known else 0)
    try:
        compacted = talk.sum_up(turn)
    except CallerError:
        assert not allowed
        assert talk.now == before
        return
    assert allowed
    assert compacted.covers == covers
    assert talk.now.compactions == (*known, compacted)[-KEPT_COMPACTIONS:]
    assert read_state(change(talk.now, compactions=before.compactions)) == read_state(before)


@given(acts=st.lists(ACTS, max_size=40))
@pytest.mark.requirement("PRS-5", "EXT-11")
def test_a_thread_keeps_only_the_state_of_turns_that_are_not_rolled_back(
    acts: list[Act],
) -> None:
    talk = play(acts)
    assert read_state(talk.now) == talk.replay_remaining()
    assert talk.now.turns == len(talk.turns) - len(talk.gone)
    # No context with rolled-back turns is used for an agent again.
    gone = {talk.turns[turn] for turn in talk.gone}
    known = {context for task in gone for context in talk.contexts[task]}
    assert not known & set(talk.now.remotes.values())
    replayed: ThreadRecord | None = None
    for event in talk.events[1:]:
        stored = b'{"sequence":%d,' % event.sequence + encode_event(event).body
        replayed = evolve(replayed, decode_event(stored))
    assert replayed is not None
    assert to_bytes(replayed) == to_bytes(talk.now)


def one_after_the_other(count: int) -> tuple[Conversation, list[ThreadState]]:
    talk, states = Conversation(), list[ThreadState]()
    for number in range(count):
        turn = talk.begin(number, number % 2)
        talk.produce(turn, NAMES[number % 2])
        talk.end(turn)
        states.append(read_state(talk.now))
    return talk, states


@pytest.mark.requirement("PRS-5", "EXT-11")
def test_a_rollback_restores_the_state_at_its_boundary() -> None:
    talk, states = one_after_the_other(5)
    for number in (3, 1):
        talk.go_back(f"turn_{number}")
        assert read_state(talk.now) == states[number - 1]
    assert talk.now.rolled_back is not None
    assert talk.now.rolled_back.to_turn == "turn_1"
    again = talk.begin(0, 0)
    talk.end(again)
    talk.go_back("turn_1")
    assert read_state(talk.now) == states[0]


@pytest.mark.requirement("PRS-5", "A2A-4")
def test_agents_of_rolled_back_turns_get_a_new_context() -> None:
    talk, _ = one_after_the_other(3)
    first, other, third = (talk.now.remotes[peer] for peer in PEERS)
    talk.go_back("turn_2")
    assert talk.now.remotes == {"echo": first, "other": other}
    talk.end(talk.begin(PEERS.index("third"), 0))
    assert talk.now.remotes["third"] != third


@pytest.mark.requirement("PRS-5", "EXT-11")
def test_invalid_rollback_boundary_is_refused_and_names_the_field() -> None:
    talk, _ = one_after_the_other(3)
    talk.go_back("turn_2")
    open_task = talk.begin(0, 0)
    for turn, reason in (
        ("turn_9", "not a turn of the thread"),
        ("turn_3", "already rolled back"),
        (open_task, "no answer yet"),
    ):
        with pytest.raises(InvalidInput, match=rf"toTurn.*{reason}"):
            talk.go_back(turn)
    talk.end(open_task, "input_required")
    further = talk.begin(0, 0, talk.turns[open_task])
    with pytest.raises(UnsupportedOperation, match="under way"):
        talk.go_back("turn_1")
    talk.end(further)
    with pytest.raises(InvalidInput, match=rf"toTurn.*continues after it, up to {further}"):
        talk.go_back(open_task)
    talk.go_back("turn_1")


@pytest.mark.requirement("EVC-13", "PRS-5")
def test_a_rollback_drops_later_summaries_and_restores_older_ones() -> None:
    talk, _ = one_after_the_other(KEPT_COMPACTIONS + 4)
    made = [talk.sum_up(f"turn_{n}") for n in range(1, KEPT_COMPACTIONS + 4)]
    assert talk.now.compactions == tuple(made[-KEPT_COMPACTIONS:])
    with pytest.raises(InvalidInput, match=r"toTurn.*already summarized"):
        talk.sum_up("turn_2")
    talk.go_back("turn_2")
    assert talk.now.compactions == tuple(made[:2])


def test_more_than_one_append_takes_is_left_behind_in_steps() -> None:
    talk, _ = one_after_the_other(MOST_TASKS + 2)
    with pytest.raises(InvalidInput, match=r"toTurn.*in steps"):
        check_rollback(talk.read().find("turn_1"))
    check_rollback(talk.read().find("turn_2"))

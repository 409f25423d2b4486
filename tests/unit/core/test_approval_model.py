"""Random lives of a question against a short reference model, and the stream replayed from every point."""

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from passerelle.core.approval.commands import (
    ActionCommand,
    BeginReturn,
    CancelAction,
    Expire,
    FailReturn,
    FinishReturn,
    RetryReturn,
    SettleAction,
    SupersedeAction,
)
from passerelle.core.approval.machine import decide, evolve
from passerelle.core.approval.record import ActionRecord
from passerelle.core.errors import ActionClosed, CallerError, StaleAnswer
from passerelle.core.events import decode_event, encode_event
from passerelle.core.payloads.approval import ActionResolved, PermissionResolved
from passerelle.core.wire.codec import from_bytes, to_bytes
from tests.support.approvals import (
    HOUR_MS,
    NOW_MS,
    OTHER_DEVICE,
    OWNER,
    Stream,
    make_answer,
    make_id,
    make_request,
)

OUTCOME = {"allow": "allowed", "reject": "rejected"}


class ApprovalLife(RuleBasedStateMachine):
    """The reference is two words: how it was closed, and where the answer is."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = Stream()
        self.first = self.stream.open()
        self.closed: str | None = None
        self.returned = "none"
        self.decisions = 0

    def expect(self, command: ActionCommand, *, allowed: bool) -> bool:
        """Sends it and compares the result with what the reference allows."""
        if allowed:
            self.stream.tell(command)
            return True
        before = self.stream.now
        with pytest.raises(CallerError) as refusal:
            self.stream.tell(command)
        assert self.stream.now is before
        if isinstance(refusal.value, ActionClosed):
            assert refusal.value.winner["outcome"] == self.closed
        return False

    @rule(
        option=st.sampled_from(["allow", "reject"]),
        who=st.sampled_from([OWNER, OTHER_DEVICE]),
        moves=st.sampled_from([0, 0, 0, 1]),
    )
    def answer(self, option: str, who: object, moves: int) -> None:
        self.decisions += 1
        answer = make_answer(
            self.first,
            option,
            who=who,
            decision_id=make_id("dec", self.decisions),
            rev=self.first.rev + moves,
        )
        if moves and self.closed is None:
            with pytest.raises(StaleAnswer):
                self.stream.tell(answer)
        elif self.expect(answer, allowed=self.closed is None):
            self.closed, self.returned = OUTCOME[option], "owed"

    @precondition(lambda self: self.closed in OUTCOME.values())
    @rule()
    def repeat_the_winning_answer(self) -> None:
        won = self.stream.now.decision
        assert won is not None
        if won.source != "answer":
            return
        who = replace(OWNER, device=won.device, device_name=won.device_name)
        repeat = make_answer(self.first, won.option_id, who=who, decision_id=won.decision_id)
        assert self.stream.tell(repeat) == []

    @rule(late=st.booleans())
    def expire(self, late: object) -> None:
        self.stream.now_ms = max(self.stream.now_ms, NOW_MS + HOUR_MS if late else 0)
        due = self.stream.now_ms >= NOW_MS + HOUR_MS
        if self.expect(Expire(), allowed=due and self.closed is None):
            self.closed, self.returned = "expired", "owed"

    @rule(allows=st.booleans())
    def settle(self, allows: object) -> None:
        if self.expect(SettleAction(allows is True, "rule"), allowed=self.closed is None):
            self.closed, self.returned = "allowed" if allows else "rejected", "owed"

    @rule()
    def cancel(self) -> None:
        if self.expect(CancelAction("task_cancelled"), allowed=self.closed is None):
            self.closed = "cancelled"

    @rule()
    def supersede(self) -> None:
        if self.expect(SupersedeAction(make_id("act", 2)), allowed=self.closed is None):
            self.closed = "superseded"

    @rule()
    def begin_return(self) -> None:
        if self.expect(BeginReturn(), allowed=self.returned in {"owed", "returning"}):
            self.returned = "returning"

    @rule()
    def finish_return(self) -> None:
        if self.expect(FinishReturn("working"), allowed=self.returned == "returning"):
            self.returned = "returned"

    @rule()
    def fail_return(self) -> None:
        if self.expect(FailReturn("stale"), allowed=self.returned in {"owed", "returning"}):
            self.returned = "undeliverable"

    @rule()
    def retry_return(self) -> None:
        if self.expect(RetryReturn(), allowed=self.returned == "undeliverable"):
            self.returned = "owed"

    @rule()
    def lose_every_connection(self) -> None:
        """No command exists for this, so nothing happens (I6)."""
        self.stream.now_ms += 1

    @invariant()
    def the_record_is_what_the_reference_says(self) -> None:
        record = self.stream.now
        assert (record.state, record.return_state) == (self.closed or "pending", self.returned)
        assert record.rev == (1 if self.closed is None else 2)

    @invariant()
    def at_most_one_terminal_fact_stands(self) -> None:
        payloads = [event.fact.payload for event in self.stream.events]
        closings = sum(isinstance(payload, ActionResolved) for payload in payloads)
        assert closings == sum(isinstance(payload, PermissionResolved) for payload in payloads)
        assert closings == (self.closed is not None)

    @invariant()
    def a_replay_gives_the_same_bytes(self) -> None:
        record: ActionRecord | None = None
        for event in self.stream.events:
            stored = b'{"sequence":%d,' % event.sequence + encode_event(event).body
            record = evolve(record, decode_event(stored))
        assert record is not None
        assert to_bytes(record) == to_bytes(self.stream.now)
        assert from_bytes(ActionRecord, to_bytes(record)) == self.stream.now


@pytest.mark.requirement("I6", "I7", "CMD-14", "CHN-8")
def test_every_sequence_of_commands_matches_a_short_reference_model() -> None:
    run_state_machine_as_test(ApprovalLife)


def live_a_whole_life() -> Stream:
    stream = Stream()
    record = stream.open(make_request(subject={"content": {"n": 42.0, "rows": ["ä", None]}}))
    stream.tell(make_answer(record, comment="go"))
    for command in (
        BeginReturn(),
        BeginReturn(),
        FailReturn("stale"),
        RetryReturn(),
        BeginReturn(),
        FinishReturn("TASK_STATE_WORKING"),
    ):
        stream.tell(command)
    return stream


@pytest.mark.requirement("I4")
def test_any_prefix_of_a_stream_folds_and_goes_on_to_the_same_record() -> None:
    stream = live_a_whole_life()
    for cut in range(len(stream.events) + 1):
        record: ActionRecord | None = None
        for event in stream.events[:cut]:
            record = evolve(record, event)
        # A reader that starts from a snapshot sees some events twice.
        for event in stream.events:
            record = evolve(record, event)
        assert record == stream.now


@pytest.mark.requirement("I4")
def test_any_suffix_of_a_stream_folds_without_error() -> None:
    stream = live_a_whole_life()
    for start in range(1, len(stream.events) + 1):
        record: ActionRecord | None = None
        for event in stream.events[start:]:
            record = evolve(record, event)
        assert record is None


def test_of_two_decisions_on_the_same_record_only_one_is_folded() -> None:
    stream = Stream()
    record = stream.open()
    left = decide(record, make_answer(record, "allow"), NOW_MS)
    right = decide(record, make_answer(record, "reject", decision_id=make_id("dec", 2)), NOW_MS)
    for fact in (*left, *right):
        stream.push(fact)
    assert (stream.now.state, stream.now.rev) == ("allowed", 2)

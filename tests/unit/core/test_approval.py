"""The approval machine, row by row: what is allowed, what follows, and the error of each refusal."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, get_args

import pytest

from passerelle.core.approval.commands import (
    ActionCommand,
    AnswerAction,
    BeginReturn,
    CancelAction,
    ConsumeAction,
    Escalate,
    Expire,
    FailReturn,
    FinishReturn,
    OpenAction,
    RetryReturn,
    SeeAction,
    SettleAction,
    SupersedeAction,
    WithdrawVotes,
)
from passerelle.core.approval.guards import MAX_LIFETIME_MS
from passerelle.core.approval.machine import (
    TABLE,
    decide,
    evolve,
    find_not_after,
    find_replay,
    folds_action,
    render_table,
)
from passerelle.core.approval.record import ActionRecord, ActionState, ReturnState
from passerelle.core.errors import (
    ActionClosed,
    CallerError,
    Forbidden,
    InvalidContent,
    InvalidInput,
    NotFound,
    StaleAnswer,
    UnknownOption,
    UnsupportedOperation,
)
from passerelle.core.events import Fact, OpaquePayload, VendorPayload, encode_event
from passerelle.core.facts import Scope
from passerelle.core.payloads.approval import (
    ActionRequired,
    ActionResolved,
    AudienceStep,
    ChannelPermissionForwarded,
    ChannelPermissionReturned,
    Origin,
    PermissionEvaluated,
    PermissionRequested,
    PermissionResolved,
    Quorum,
)
from passerelle.core.payloads.run import RunStatus
from passerelle.core.principal import AccessScope, Principal
from tests.support.approvals import (
    CANCEL,
    HOUR_MS,
    NOW_MS,
    OTHER_DEVICE,
    OWNER,
    REPLY,
    SCOPE,
    Stream,
    make_answer,
    make_id,
    make_input,
    make_request,
)

JUDGED = PermissionEvaluated(
    make_id("eval"),
    "ask",
    "default",
    "somebody decides",
    "tool_call <- build",
    "sha256:p",
    "medium",
)
COMMANDS: Mapping[type[ActionCommand], Callable[[ActionRecord], ActionCommand]] = {
    OpenAction: lambda record: OpenAction(record.request, SCOPE),
    AnswerAction: lambda record: make_answer(record, decision_id=make_id("dec", 99)),
    WithdrawVotes: lambda _record: WithdrawVotes(frozenset({"dev-1"})),
    SeeAction: lambda record: SeeAction(OWNER, record.rev),
    Escalate: lambda _record: Escalate(1),
    SettleAction: lambda _record: SettleAction(allows=False, cause="rule"),
    ConsumeAction: lambda record: ConsumeAction(JUDGED, record.request.digest),
    Expire: lambda _record: Expire(),
    CancelAction: lambda _record: CancelAction("task_cancelled"),
    SupersedeAction: lambda _record: SupersedeAction(make_id("act", 2)),
    BeginReturn: lambda _record: BeginReturn(),
    FinishReturn: lambda _record: FinishReturn("TASK_STATE_WORKING"),
    FailReturn: lambda _record: FailReturn("stale"),
    RetryReturn: lambda _record: RetryReturn(),
}
TURN = make_id("turn", 7)
RETURNING = (BeginReturn, FinishReturn, FailReturn, RetryReturn)


def reach(state: str, returned: str = "none") -> Stream:
    """A stream whose record has the states ``state`` and ``returned``."""
    stream = Stream()
    waits = make_request().remote if returned != "none" else None
    if state == "answered":
        stream.open(make_input(remote=waits))
        stream.tell(make_answer(stream.now, "answer", content={"text": "42"}))
    elif state == "answered_by_caller":
        stream.open(make_input(remote=waits, kind="auth", on_timeout="cancel_task"))
        said = make_answer(stream.now, "answer", decision_id=TURN, content={"text": "secret"})
        stream.tell(replace(said, turn_id=TURN))
        assert stream.now.decision is not None
        assert stream.now.decision.content is None
    elif state == "cancelled" and returned != "none":
        stream.open(make_input(remote=waits))
        stream.tell(make_answer(stream.now, "cancel"))
    else:
        stream.open(make_request(remote=waits))
        stream.now_ms += HOUR_MS
        closing: dict[str, ActionCommand] = {
            "allowed": make_answer(stream.now, "allow"),
            "rejected": make_answer(stream.now, "reject"),
            "expired": Expire(),
            "cancelled": CancelAction("task_cancelled"),
            "superseded": SupersedeAction(make_id("act", 2)),
        }
        if state in closing:
            stream.tell(closing[state])
    path: dict[str, list[ActionCommand]] = {
        "returning": [BeginReturn()],
        "returned": [BeginReturn(), FinishReturn("TASK_STATE_WORKING")],
        "undeliverable": [BeginReturn(), FailReturn("stale")],
    }
    for command in path.get(returned, []):
        stream.tell(command)
    assert (stream.now.state, stream.now.return_state) == (state, returned)
    return stream


STATES = (
    "pending",
    "allowed",
    "rejected",
    "answered",
    "answered_by_caller",
    "expired",
    "cancelled",
    "superseded",
)
RETURNED = ("owed", "returning", "returned", "undeliverable")
PLACES = [(state, "none") for state in STATES] + [
    (state, returned)
    for state in ("allowed", "rejected", "answered", "expired", "cancelled")
    for returned in RETURNED
]


def test_the_table_speaks_of_every_command_and_of_no_unknown_state() -> None:
    assert set(TABLE) == set(get_args(ActionCommand)) == set(COMMANDS)
    # get_args of a nested literal union: the states are spelled out here, so that none slips in unseen.
    known = {None, *STATES, *get_args(ReturnState)}
    for rows in TABLE.values():
        assert set(rows) <= known
        assert {target for targets in rows.values() for target in targets} <= known
    assert ActionState is not None


@pytest.mark.requirement("CMD-14", "I7")
@pytest.mark.parametrize("kind", list(COMMANDS))
@pytest.mark.parametrize(("state", "returned"), PLACES)
def test_every_pair_is_a_row_of_the_table_or_a_typed_refusal(
    state: str, returned: str, kind: type[ActionCommand]
) -> None:
    stream = reach(state, returned)
    before = stream.now
    stand = before.return_state if kind in RETURNING else before.state
    targets = TABLE[kind].get(stand)
    command = COMMANDS[kind](before)
    stream.now_ms = NOW_MS + HOUR_MS
    # A plain question has neither votes nor a further step: to take these, it has to be made with them.
    if kind is ConsumeAction and state == "allowed":
        # Its time is over by now, or a peer acts on it.
        with pytest.raises(UnsupportedOperation):
            stream.tell(command)
        return
    if targets is None or kind in (WithdrawVotes, Escalate):
        with pytest.raises(CallerError) as refusal:
            stream.tell(command)
        assert stream.now is before
        late = kind not in (*RETURNING, OpenAction) and state != "pending"
        assert isinstance(refusal.value, ActionClosed) is late
        return
    stream.tell(command)
    after = stream.now
    assert (after.return_state if kind in RETURNING else after.state) in targets
    assert after.rev == before.rev + (kind not in (*RETURNING, SeeAction))


@pytest.mark.parametrize("kind", [kind for kind in COMMANDS if kind is not OpenAction])
def test_a_question_that_does_not_exist_takes_nothing_but_its_opening(
    kind: type[ActionCommand],
) -> None:
    example = Stream().open()
    with pytest.raises(NotFound):
        decide(None, COMMANDS[kind](example), NOW_MS)
    assert (set(TABLE[kind]) & {None}) == set()


def test_a_question_is_opened_once() -> None:
    stream = Stream()
    record = stream.open()
    assert (record.state, record.rev, record.first_seq, record.return_state) == (
        "pending",
        1,
        1,
        "none",
    )
    with pytest.raises(InvalidInput, match="actionId"):
        stream.tell(OpenAction(record.request, SCOPE))


@pytest.mark.requirement("EVC-10", "EXT-1")
def test_a_permission_also_records_a_permission_request_and_plain_input_does_not() -> None:
    permission = [type(fact.payload) for fact in decide(None, OpenAction(make_request(), SCOPE), 0)]
    assert permission == [ActionRequired, PermissionRequested]
    plain = [type(fact.payload) for fact in decide(None, OpenAction(make_input(), SCOPE), 0)]
    assert plain == [ActionRequired]


@pytest.mark.requirement("CMD-14", "I7", "EXT-1", "CHN-6")
def test_one_answer_gives_every_fact_of_the_closing_exactly_once() -> None:
    stream = Stream()
    stream.open()
    facts = stream.tell(make_answer(stream.now, "allow", comment="go"))
    kinds = [type(fact.payload) for fact in facts]
    assert kinds == [PermissionResolved, ActionResolved, ChannelPermissionReturned]
    assert {fact.scope.action_id for fact in facts} == {stream.now.request.action_id}
    permission, resolved, said = (fact.payload for fact in facts)
    assert isinstance(permission, PermissionResolved)
    assert (permission.state, permission.cause, permission.source) == ("allowed", "human", "answer")
    assert isinstance(resolved, ActionResolved)
    assert resolved.returns
    decision = resolved.decision
    assert (decision.decided_by, decision.device, decision.device_name) == ("ada", "dev-1", "phone")
    assert (decision.rev, decision.digest, decision.comment) == (1, "sha256:0f", "go")
    assert isinstance(said, ChannelPermissionReturned)
    assert (said.direction, said.source, said.accepted) == ("answer", "answer", True)
    assert (said.outcome, said.channel_id) == ("owed", "dev-1")
    assert (stream.now.state, stream.now.rev, stream.now.return_state) == ("allowed", 2, "owed")


def test_an_answer_in_words_resolves_no_permission() -> None:
    stream = Stream()
    stream.open(make_input())
    facts = stream.tell(make_answer(stream.now, "answer", content={"text": "42"}))
    assert [type(fact.payload) for fact in facts] == [ActionResolved, ChannelPermissionReturned]
    assert stream.now.state == "answered"


def test_an_answer_in_words_needs_no_option_name() -> None:
    stream = Stream()
    stream.open(make_input())
    stream.tell(make_answer(stream.now, None, content={"text": "42"}))
    assert stream.now.decision is not None
    assert stream.now.decision.option_id == "answer"


def test_no_answer_is_pending_if_no_agent_waits() -> None:
    stream = Stream()
    stream.open(make_request(remote=None))
    stream.tell(make_answer(stream.now))
    assert stream.now.return_state == "none"
    unanswerable = Stream()
    remote = make_request().remote
    assert remote is not None
    unanswerable.open(make_request(remote=replace(remote, answerable=False)))
    unanswerable.tell(make_answer(unanswerable.now))
    assert unanswerable.now.return_state == "none"


@pytest.mark.requirement("CMD-14", "CHN-8", "I7")
@pytest.mark.parametrize("option", ["allow", "reject"])
def test_second_answer_is_refused_and_names_the_winner(option: str) -> None:
    stream = Stream()
    record = stream.open()
    stream.tell(make_answer(record, "allow"))
    late = make_answer(record, option, who=OTHER_DEVICE, decision_id=make_id("dec", 2))
    with pytest.raises(ActionClosed) as refusal:
        stream.tell(late)
    assert refusal.value.stable_code == "already_resolved"
    assert refusal.value.winner == {
        "outcome": "allowed",
        "optionId": "allow",
        "decidedBy": "ada",
        "deviceName": "phone",
        "decidedAt": "2027-01-15T08:00:00.000Z",
    }


@pytest.mark.requirement("CMD-14")
def test_a_repeat_of_the_winning_answer_returns_its_decision_and_changes_nothing() -> None:
    stream = Stream()
    record = stream.open()
    winning = make_answer(record, "allow")
    assert find_replay(stream.record, winning) is None
    stream.tell(winning)
    closed = stream.now
    assert stream.tell(winning) == []
    assert stream.now is closed
    assert find_replay(stream.record, winning) is closed.decision


@pytest.mark.parametrize(
    "changes",
    [
        {"option_id": "reject"},
        {"decision_id": make_id("dec", 2)},
        {"content": {"text": "other"}},
    ],
)
def test_an_answer_that_differs_from_the_winner_is_no_repeat(changes: dict[str, object]) -> None:
    stream = Stream()
    record = stream.open()
    stream.tell(make_answer(record, "allow"))
    with pytest.raises(ActionClosed):
        stream.tell(make_answer(record, "allow", **changes))


def test_another_principal_repeats_nothing() -> None:
    stream = Stream()
    record = stream.open()
    stream.tell(make_answer(record, "allow"))
    stranger = make_answer(record, "allow", who=replace(OWNER, id="bob"))
    assert find_replay(stream.record, stranger) is None


def test_an_answer_after_a_cancel_by_a_person_is_refused_as_already_resolved() -> None:
    stream = reach("cancelled", "owed")
    late = make_answer(stream.now, "answer", content={"text": "42"}, decision_id=make_id("dec", 2))
    with pytest.raises(ActionClosed) as refusal:
        stream.tell(late)
    assert refusal.value.stable_code == "already_resolved"
    assert refusal.value.winner["outcome"] == "cancelled"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (CancelAction("peer_moved_on"), "cancelled"),
        (SupersedeAction(make_id("act", 2)), "superseded"),
        (Expire(), "expired"),
    ],
)
def test_a_late_answer_is_refused_with_the_reason_of_the_close(
    command: ActionCommand, code: str
) -> None:
    stream = Stream()
    record = stream.open()
    stream.now_ms += HOUR_MS
    stream.tell(command)
    with pytest.raises(ActionClosed) as refusal:
        stream.tell(make_answer(record))
    assert refusal.value.stable_code == code
    assert refusal.value.winner["decidedBy"] == "gateway"
    assert refusal.value.winner.get("supersededBy") == (
        make_id("act", 2) if code == "superseded" else None
    )


@pytest.mark.parametrize(
    ("allows", "state", "source"),
    [(True, "allowed", "policy_allow"), (False, "rejected", "policy_deny")],
)
def test_a_decision_of_policy_is_recorded_with_policy_as_its_source(
    allows: object, state: str, source: str
) -> None:
    stream = Stream()
    stream.open()
    stream.tell(SettleAction(allows is True, "rule"))
    decision = stream.now.decision
    assert decision is not None
    assert (stream.now.state, stream.now.return_state) == (state, "owed")
    assert (decision.source, decision.cause, decision.decided_by) == (source, "rule", "gateway")
    assert decision.assurance == ()
    assert stream.now.was_settled
    assert not stream.now.cancels_task


def test_policy_that_denies_a_question_for_words_cancels_the_task() -> None:
    stream = Stream()
    stream.open(make_input())
    with pytest.raises(UnsupportedOperation):
        stream.tell(SettleAction(allows=True, cause="rule"))
    stream.tell(SettleAction(allows=False, cause="mode"))
    assert stream.now.state == "cancelled"
    assert stream.now.cancels_task


def test_approval_is_consumed_once_in_time_and_for_the_same_digest() -> None:
    stream = Stream()
    stream.open(make_request(remote=None))
    stream.tell(make_answer(stream.now, "allow"))
    use = ConsumeAction(JUDGED, stream.now.request.digest)
    with pytest.raises(StaleAnswer):
        stream.tell(replace(use, digest="sha256:another"))
    with pytest.raises(UnsupportedOperation, match="now denies it"):
        stream.tell(replace(use, evaluation=replace(JUDGED, decision="deny")))
    [fact] = stream.tell(use)
    assert isinstance(fact.payload, PermissionEvaluated)
    assert fact.payload.consumes
    assert stream.now.consumed_at is not None
    with pytest.raises(UnsupportedOperation, match="already used"):
        stream.tell(use)
    late = Stream()
    late.open(make_request(remote=None))
    late.tell(make_answer(late.now, "allow"))
    late.now_ms += HOUR_MS
    with pytest.raises(UnsupportedOperation, match="expired"):
        late.tell(use)
    refused = Stream()
    refused.open(make_request(remote=None))
    refused.tell(make_answer(refused.now, "reject"))
    with pytest.raises(ActionClosed):
        refused.tell(use)


HOST = Principal("host", scopes=frozenset({AccessScope.HOST}))


@pytest.mark.requirement("CMD-21")
def test_policy_of_a_host_decides_for_whomever_and_never_what_others_were_named_for() -> None:
    stream = Stream()
    answer = make_answer(stream.open(), who=HOST, is_host=True)
    for other in (
        replace(HOST, kind="agent"),
        replace(HOST, scopes=frozenset({AccessScope.DECIDE})),
    ):
        with pytest.raises(Forbidden):
            stream.tell(replace(answer, who=other))
    with pytest.raises(NotFound):
        stream.tell(replace(answer, who=replace(HOST, tenant="other")))
    with pytest.raises(NotFound):
        stream.tell(replace(answer, is_host=False))
    several = Stream()
    named = make_request(quorum=Quorum(need=2), audience=(AudienceStep(("eve", "bob")),))
    many = make_answer(several.open(named), who=HOST, is_host=True)
    with pytest.raises(Forbidden):
        several.tell(many)
    stream.tell(answer)
    assert stream.now.decision is not None
    assert (stream.now.decision.cause, stream.now.decision.decided_by) == ("host_policy", "host")


def test_delivery_that_is_not_due_again_is_refused_in_words_for_people() -> None:
    stream = Stream()
    stream.open()
    with pytest.raises(UnsupportedOperation, match="cannot be delivered again"):
        stream.tell(RetryReturn())


@pytest.mark.requirement("I6")
def test_no_command_records_a_lost_connection() -> None:
    assert {kind.__name__ for kind in get_args(ActionCommand)} == {
        "OpenAction",
        "AnswerAction",
        "WithdrawVotes",
        "SeeAction",
        "Escalate",
        "SettleAction",
        "ConsumeAction",
        "Expire",
        "CancelAction",
        "SupersedeAction",
        "BeginReturn",
        "FinishReturn",
        "FailReturn",
        "RetryReturn",
    }


@pytest.mark.requirement("CHN-6")
def test_a_timeout_never_allows_and_is_recorded_as_a_timeout() -> None:
    stream = Stream()
    stream.open()
    with pytest.raises(UnsupportedOperation):
        stream.tell(Expire())
    stream.now_ms += HOUR_MS
    facts = stream.tell(Expire())
    decision = stream.now.decision
    assert decision is not None
    assert (decision.outcome, decision.cause, decision.decided_by) == (
        "expired",
        "timeout",
        "gateway",
    )
    said = facts[-1].payload
    assert isinstance(said, ChannelPermissionReturned)
    assert (said.direction, said.source) == ("answer", "timeout")
    assert stream.now.return_state == "owed"


@pytest.mark.parametrize(
    ("request_", "option", "cancels"),
    [
        (make_request(), None, False),
        (make_input(), None, True),
        (make_request(on_timeout="cancel_task"), None, True),
        (make_input(), "cancel", True),
        (make_request(), "reject", False),
    ],
)
def test_an_answer_cancels_the_task_only_by_choice_or_by_timeout(
    request_: object, option: str | None, cancels: object
) -> None:
    stream = Stream()
    stream.open(request_)  # type: ignore[arg-type]  # parametrize has no types
    stream.now_ms += HOUR_MS
    stream.tell(Expire() if option is None else make_answer(stream.now, option))
    assert stream.now.cancels_task is cancels


def test_a_closed_question_leaves_no_pending_answer_and_no_cancel() -> None:
    for command in (CancelAction("task_cancelled"), SupersedeAction(make_id("act", 2))):
        stream = Stream()
        stream.open()
        assert not stream.now.cancels_task
        facts = stream.tell(command)
        assert ChannelPermissionReturned not in {type(fact.payload) for fact in facts}
        assert (stream.now.return_state, stream.now.cancels_task) == ("none", False)


def test_a_decision_without_a_decider_has_the_same_id_at_every_try() -> None:
    record = Stream().open()
    first, second = (
        decide(record, CancelAction("asker_lost"), now) for now in (NOW_MS, NOW_MS + 5)
    )
    ids = {
        fact.payload.decision.decision_id
        for fact in (*first, *second)
        if isinstance(fact.payload, ActionResolved)
    }
    assert len(ids) == 1


class TestAudience:
    @pytest.mark.parametrize(
        "stranger",
        [replace(OWNER, id="bob"), replace(OWNER, tenant="elsewhere")],
    )
    def test_another_owners_question_looks_like_none(self, stranger: Principal) -> None:
        record = Stream().open()
        with pytest.raises(NotFound):
            decide(record, make_answer(record, who=stranger), NOW_MS)

    @pytest.mark.requirement("CMD-14", "CHN-8")
    @pytest.mark.parametrize(
        "credential",
        [
            replace(OWNER, kind="agent"),
            replace(OWNER, kind="gateway"),
            replace(OWNER, scopes=frozenset({AccessScope.CALL, AccessScope.READ_APPROVALS})),
        ],
    )
    def test_an_asking_credential_never_decides(self, credential: Principal) -> None:
        record = Stream().open()
        with pytest.raises(Forbidden):
            decide(record, make_answer(record, who=credential), NOW_MS)

    @pytest.mark.requirement("CMD-14", "VAL-4")
    @pytest.mark.parametrize(
        ("asker", "who"),
        [
            (Origin("local", "worker", "build"), {"id": "build"}),
            (Origin("outbound", "peer", "build"), {"serves": frozenset({"build"})}),
            (Origin("outbound", "peer", "build/acme"), {"serves": frozenset({"build"})}),
            (Origin("outbound", "peer", "build"), {"serves": None, "kind": "service"}),
        ],
    )
    def test_the_credential_that_a_question_comes_from_never_decides_it(
        self, asker: Origin, who: dict[str, Any]
    ) -> None:
        owner = replace(OWNER, **{**who, "scopes": frozenset(AccessScope)})
        mine = {"owner": owner.key, "principal": owner.id, "origin": asker}
        record = Stream().open(make_request(**mine))
        for option in ("allow", "reject"):
            for is_host in (False, True):
                answer = make_answer(record, option, who=owner, is_host=is_host)
                with pytest.raises(Forbidden) as refused:
                    decide(record, answer, NOW_MS)
                assert refused.value.details["why"] == "asker"

    @pytest.mark.parametrize(
        ("asker", "who"),
        [
            (Origin("local", "worker", "build"), {}),
            (Origin("control", "principal", OWNER.id), {}),
            (Origin("outbound", "gateway", "build"), {"serves": frozenset({"build"})}),
            (Origin("outbound", "peer", "build"), {"serves": frozenset({"other"})}),
            (Origin("outbound", "peer", "build"), {"serves": None}),
        ],
    )
    def test_a_credential_that_serves_an_agent_decides_questions_of_others(
        self, asker: Origin, who: dict[str, Any]
    ) -> None:
        owner = replace(OWNER, **{**who, "scopes": frozenset(AccessScope)})
        record = Stream().open(make_request(origin=asker))
        assert decide(record, make_answer(record, who=owner), NOW_MS)

    def test_a_principal_that_may_not_decide_does_not_learn_the_winner(self) -> None:
        stream = Stream()
        record = stream.open()
        stream.tell(make_answer(record))
        with pytest.raises(Forbidden):
            stream.tell(make_answer(record, who=replace(OWNER, kind="agent")))

    def test_any_device_of_the_owner_may_answer(self) -> None:
        record = Stream().open()
        assert decide(record, make_answer(record, who=OTHER_DEVICE), NOW_MS)

    def test_a_service_that_decides_is_recorded_as_policy_not_as_a_person(self) -> None:
        stream = Stream()
        record = stream.open()
        stream.tell(make_answer(record, who=replace(OWNER, kind="service")))
        decision = stream.now.decision
        assert decision is not None
        assert (decision.cause, decision.decided_kind) == ("host_policy", "service")


class TestWriting:
    """Messages to the task, by its owner."""

    TURN = make_id("turn", 7)
    SAID: ClassVar[dict[str, object]] = {
        "content": {"text": "yes"},
        "turn_id": TURN,
        "decision_id": TURN,
    }
    AGENT = replace(OWNER, kind="agent", scopes=frozenset({AccessScope.CALL}))

    @pytest.mark.requirement("ST-6", "EVC-10")
    def test_a_message_of_the_owner_answers_a_question_in_words(self) -> None:
        stream = Stream()
        record = stream.open(make_input())
        answer = make_answer(record, None, who=self.AGENT, **self.SAID)
        stream.tell(answer)
        decision = stream.now.decision
        assert decision is not None
        assert (decision.content, decision.decision_id) == ({"text": "yes"}, self.TURN)
        assert (decision.outcome, decision.decided_kind) == ("answered", "agent")
        assert stream.tell(answer) == []

    @pytest.mark.requirement("ANS-7")
    def test_a_message_answers_a_request_for_a_credential_that_offers_no_answer(self) -> None:
        stream = Stream()
        wanted = make_input(kind="auth", options=(CANCEL,), on_timeout="cancel_task")
        record = stream.open(wanted)
        answer = make_answer(record, None, who=self.AGENT, **self.SAID)
        stream.tell(answer)
        decision = stream.now.decision
        assert decision is not None
        assert (decision.outcome, decision.option_id) == ("answered_by_caller", None)
        assert decision.content is None

    @pytest.mark.requirement("ANS-7")
    def test_nothing_but_a_message_answers_a_request_for_a_credential_that_offers_no_answer(
        self,
    ) -> None:
        record = Stream().open(make_input(kind="auth", options=(CANCEL,), on_timeout="cancel_task"))
        for option in (None, "message"):
            with pytest.raises(UnknownOption, match="optionId"):
                decide(record, make_answer(record, option, content={"text": "secret"}), NOW_MS)

    @pytest.mark.requirement("CHN-7", "VAL-4")
    @pytest.mark.parametrize("option", [None, "allow"])
    @pytest.mark.parametrize(("who", "refusal"), [(AGENT, Forbidden), (OWNER, InvalidInput)])
    def test_a_message_approves_nothing(
        self, who: Principal, refusal: type[CallerError], option: str | None
    ) -> None:
        record = Stream().open()
        with pytest.raises(refusal):
            decide(record, make_answer(record, option, who=who, **self.SAID), NOW_MS)

    @pytest.mark.requirement("CHN-7")
    def test_a_message_without_words_chooses_no_option(self) -> None:
        silent = {**self.SAID, "content": None}
        for record, option in ((Stream().open(), "allow"), (Stream().open(make_input()), "cancel")):
            with pytest.raises(InvalidInput, match="optionId"):
                decide(record, make_answer(record, option, **silent), NOW_MS)

    def test_a_message_of_another_principal_finds_no_question(self) -> None:
        record = Stream().open(make_input())
        bob = replace(self.AGENT, id="bob")
        with pytest.raises(NotFound):
            decide(record, make_answer(record, None, who=bob, **self.SAID), NOW_MS)

    @pytest.mark.parametrize(
        "changes",
        [{"turn_id": None}, {"decision_id": make_id("dec")}, {"turn_id": make_id("turn")}],
    )
    def test_no_other_answer_can_pose_as_a_turn(self, changes: dict[str, object]) -> None:
        record = Stream().open(make_input())
        with pytest.raises(InvalidInput, match="decisionId"):
            decide(record, make_answer(record, None, **{**self.SAID, **changes}), NOW_MS)


class TestBinding:
    @pytest.mark.parametrize("rev", [0, 2, 100, True])
    def test_another_revision_is_stale(self, rev: int) -> None:
        record = Stream().open()
        with pytest.raises((StaleAnswer, InvalidInput), match="rev"):
            decide(record, make_answer(record, rev=rev), NOW_MS)

    def test_another_digest_is_no_answer_to_this(self) -> None:
        record = Stream().open()
        with pytest.raises(StaleAnswer) as refusal:
            decide(record, make_answer(record, digest="sha256:other"), NOW_MS)
        assert refusal.value.stable_code == "digest_mismatch"

    @pytest.mark.parametrize("option", ["", "yes", "ALLOW", None])
    def test_only_what_was_offered_is_an_option(self, option: str | None) -> None:
        record = Stream().open()
        with pytest.raises(UnknownOption, match="optionId"):
            decide(record, make_answer(record, option), NOW_MS)

    @pytest.mark.parametrize("content", [None, {}, {"text": ""}, {"text": " \n"}, {"text": None}])
    def test_an_empty_answer_answers_nothing(self, content: dict[str, object] | None) -> None:
        record = Stream().open(make_input())
        with pytest.raises(InvalidContent, match="content"):
            decide(record, make_answer(record, "answer", content=content), NOW_MS)

    def test_an_answer_that_would_not_fit_into_a_fact_is_refused(self) -> None:
        record = Stream().open(make_input())
        with pytest.raises(InvalidContent, match="8192"):
            decide(record, make_answer(record, "answer", content={"text": "x" * 8192}), NOW_MS)

    def test_an_answer_with_digits_that_get_lost_is_refused(self) -> None:
        record = Stream().open(make_input())
        with pytest.raises(InvalidContent, match="content"):
            decide(record, make_answer(record, "answer", content={"text": 2**53}), NOW_MS)

    def test_a_permission_takes_no_content(self) -> None:
        record = Stream().open()
        with pytest.raises(InvalidContent, match="content"):
            decide(record, make_answer(record, content={"confirmed": "false"}), NOW_MS)

    def test_content_must_fit_the_schema(self) -> None:
        schema = {"type": "object", "properties": {"sure": {"type": "boolean"}}}
        record = Stream().open(make_input(response_schema=schema))
        with pytest.raises(InvalidContent, match=r"content\.sure"):
            decide(record, make_answer(record, "answer", content={"sure": "false"}), NOW_MS)
        assert decide(record, make_answer(record, "answer", content={"sure": False}), NOW_MS)

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"decision_id": ""}, "decisionId"),
            ({"decision_id": "d" * 129}, "decisionId"),
            ({"comment": "c" * 2001}, "comment"),
        ],
    )
    def test_the_comment_of_an_answer_has_limits(
        self, changes: dict[str, object], field: str
    ) -> None:
        record = Stream().open()
        with pytest.raises(InvalidInput, match=field):
            decide(record, make_answer(record, **changes), NOW_MS)

    def test_the_store_judges_lateness_not_this_clock(self) -> None:
        record = Stream().open()
        answer = make_answer(record)
        assert find_not_after(record, answer) == NOW_MS + HOUR_MS
        assert find_not_after(record, Expire()) is None
        assert find_not_after(None, answer) is None
        assert decide(record, answer, NOW_MS + 2 * HOUR_MS)


class TestOpening:
    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"action_id": "call_7"}, "actionId"),
            ({"title": ""}, "title"),
            ({"title": "t" * 121}, "title"),
            ({"title": "two\nlines"}, "title"),
            ({"owner": ""}, "owner"),
            ({"digest": ""}, "digest"),
            ({"expires_ms": NOW_MS}, "expiresMs"),
            ({"expires_ms": NOW_MS + MAX_LIFETIME_MS + 1}, "expiresMs"),
            ({"on_timeout": "keep_waiting"}, "onTimeout"),
            ({"options": ()}, "options"),
            ({"options": (CANCEL, CANCEL)}, "options"),
            ({"options": (REPLY,)}, "options"),
            ({"response_schema": {"type": "array"}}, "responseSchema"),
        ],
    )
    def test_a_question_that_could_not_be_answered_or_never_ends_is_refused(
        self, changes: dict[str, object], field: str
    ) -> None:
        with pytest.raises(InvalidInput, match=field):
            decide(None, OpenAction(make_request(**changes), SCOPE), NOW_MS)

    def test_words_do_not_allow(self) -> None:
        request = make_input(options=make_request().options)
        with pytest.raises(InvalidInput, match="options"):
            decide(None, OpenAction(request, SCOPE), NOW_MS)

    def test_a_question_belongs_to_a_turn(self) -> None:
        with pytest.raises(InvalidInput, match="turn_id"):
            decide(None, OpenAction(make_request(), replace(SCOPE, turn_id=None)), NOW_MS)


class TestReturn:
    def test_each_attempt_is_counted_and_the_end_is_recorded(self) -> None:
        stream = reach("allowed", "owed")
        rev = stream.now.rev
        stream.now_ms += 10
        stream.tell(BeginReturn())
        stream.tell(BeginReturn())
        assert (stream.now.return_state, stream.now.return_attempts) == ("returning", 2)
        assert stream.now.last_seq == len(stream.events)
        [told] = stream.tell(FinishReturn("TASK_STATE_WORKING"))
        assert isinstance(told.payload, ChannelPermissionReturned)
        assert (told.payload.direction, told.payload.attempts) == ("delivery", 2)
        assert told.payload.native_status == "TASK_STATE_WORKING"
        assert (stream.now.return_state, stream.now.rev) == ("returned", rev)

    def test_an_undeliverable_answer_has_a_reason_and_can_be_retried(self) -> None:
        stream = reach("rejected", "undeliverable")
        assert stream.now.return_error == "stale"
        stream.tell(RetryReturn())
        again = stream.now
        assert (again.return_state, again.return_error, again.return_attempts) == ("owed", None, 1)


class TestFold:
    def test_unknown_events_do_not_change_the_record(self) -> None:
        stream = Stream()
        record = stream.open()
        scope = replace(SCOPE, action_id=record.request.action_id)
        stale = ChannelPermissionReturned("delivery", "answer", accepted=True, outcome="stale")
        early = ChannelPermissionReturned("delivery", "answer", accepted=True, outcome="returned")
        said = ChannelPermissionReturned("answer", "answer", accepted=False, outcome="not_needed")
        forwarded = ChannelPermissionForwarded(
            "ws", "sent", 1, "payments", "session", channel_scoped=False
        )
        for payload in (
            OpaquePayload("action.resolved", {}),
            VendorPayload("x.vote", {}),
            RunStatus(text="working"),
            forwarded,
            said,
            stale,
            early,
            ActionRequired(make_request()),
        ):
            stream.push(Fact(scope, payload))
        assert stream.now is record

    def test_facts_of_another_action_do_not_count(self) -> None:
        stream, other = Stream(), Stream()
        record = stream.open()
        other.open(make_request(2))
        for fact in other.tell(make_answer(other.now)):
            stream.push(fact)
        assert stream.now is record

    def test_nothing_is_folded_before_the_opening(self) -> None:
        stream = reach("allowed")
        for event in stream.events[1:]:
            assert evolve(None, event) is None

    def test_an_event_that_is_contained_already_is_not_folded_again(self) -> None:
        stream = reach("allowed", "owed")
        for _ in range(3):
            stream.tell(BeginReturn())
        record = stream.now
        for event in stream.events:
            assert evolve(record, event) is record

    def test_without_numbers_every_event_is_folded(self) -> None:
        record: ActionRecord | None = None
        for event in reach("allowed", "returned").events:
            record = evolve(record, event.at(0))
        assert record is not None
        assert (record.state, record.return_state) == ("allowed", "returned")

    def test_without_numbers_a_second_closing_still_changes_nothing(self) -> None:
        stream = reach("allowed")
        record = replace(stream.now, last_seq=0)
        resolved = next(e for e in stream.events if isinstance(e.fact.payload, ActionResolved))
        assert evolve(record, resolved.at(0)) == record

    @pytest.mark.requirement("ENV-6")
    def test_only_events_that_change_the_record_are_folded(self) -> None:
        stream = reach("allowed", "returned")
        for event in stream.events:
            encode_event(event)
        names = [event.type for event in stream.events if folds_action(event)]
        assert names == [
            "action.required",
            "action.resolved",
            "channel.permission_returned",
            "channel.permission_returned",
        ]


def test_the_drawn_table_has_every_row() -> None:
    text = render_table()
    assert "[*] --> pending : OpenAction" in text
    for command, rows in TABLE.items():
        for source, targets in rows.items():
            assert (
                f"| {command.__name__} | {source or 'none yet'} | {', '.join(sorted(targets))} |"
                in text
            )


def test_a_record_keeps_the_ids_that_it_was_asked_under() -> None:
    record = Stream().open()
    assert record.describe_winner() == {}
    assert record.closed_as is None
    assert record.scope == replace(SCOPE, action_id=record.request.action_id)
    assert isinstance(record.scope, Scope)


def test_to_have_seen_something_is_kept_once_for_each_and_decides_nothing() -> None:
    stream = Stream()
    stream.open()
    stream.tell(SeeAction(OWNER, 1))
    assert stream.tell(SeeAction(OWNER, 1)) == []
    stream.tell(SeeAction(replace(OWNER, id="bob"), 1))
    record = stream.now
    assert (record.state, record.rev, record.seen) == ("pending", 1, ("ada", "bob"))
    with pytest.raises(StaleAnswer):
        stream.tell(SeeAction(OWNER, 2))
    folded: ActionRecord | None = None
    for event in stream.events:
        folded = evolve(folded, event)
    assert folded == record

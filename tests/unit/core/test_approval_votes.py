"""A quorum must agree, the requester may not vote, and an audience grows in steps."""

from dataclasses import replace

import pytest

from passerelle.core.approval.audience import list_paired_readers, may_read
from passerelle.core.approval.commands import Escalate, Expire, WithdrawVotes
from passerelle.core.approval.machine import decide, evolve
from passerelle.core.approval.record import ActionRecord
from passerelle.core.approval.votes import count_agreeing
from passerelle.core.errors import Forbidden, InvalidInput, NotFound
from passerelle.core.payloads.approval import AudienceStep, DecisionSignature, Option, Quorum
from passerelle.core.payloads.device import DeviceRights
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.wire.codec import from_bytes, to_bytes
from tests.support.approvals import (
    ALLOW,
    HOUR_MS,
    NOW_MS,
    OTHER_DEVICE,
    OWNER,
    REJECT,
    Stream,
    make_answer,
    make_id,
    make_input,
    make_request,
)

BOB = replace(OWNER, id="bob", device="dev-b", device_name="desk")
CLEO = replace(OWNER, id="cleo", device="dev-c", device_name="tablet")
EVERYBODY = (AudienceStep(("ada", "bob", "cleo")),)
SIGNATURE = DecisionSignature("key_1", "c2ln", NOW_MS)


def ask(need: int = 2, *, audience: tuple[AudienceStep, ...] = EVERYBODY, **quorum: bool) -> Stream:
    stream = Stream()
    stream.open(make_request(quorum=Quorum(need, **quorum), audience=audience, risk="critical"))
    return stream


def say(
    stream: Stream, who: Principal, option: str = "allow", number: int = 1, **more: object
) -> None:
    stream.tell(
        make_answer(stream.now, option, who=who, decision_id=make_id("dec", number), **more)
    )


@pytest.mark.requirement("CHN-8", "CMD-14")
def test_two_principals_allow_together_and_neither_alone() -> None:
    stream = ask()
    say(stream, OWNER)
    assert (stream.now.state, stream.now.rev, len(stream.now.votes)) == ("pending", 1, 1)
    assert count_agreeing(stream.now) == 1
    say(stream, BOB, number=2)
    assert (stream.now.state, stream.now.rev) == ("allowed", 2)
    assert count_agreeing(stream.now) == 2, "the vote that decides counts"
    assert stream.now.decision is not None
    assert stream.now.decision.decided_by == "bob"


@pytest.mark.requirement("CHN-8")
def test_two_devices_of_one_principal_are_one_vote() -> None:
    stream = ask()
    say(stream, OWNER)
    say(stream, OTHER_DEVICE, number=2)
    assert stream.now.is_open
    assert [(vote.principal, vote.device) for vote in stream.now.votes] == [("ada", "dev-2")]


def test_a_repeated_vote_records_nothing() -> None:
    stream = ask()
    say(stream, OWNER)
    assert stream.tell(make_answer(stream.now, who=OWNER, decision_id=make_id("dec", 1))) == []


def test_one_no_is_a_veto() -> None:
    stream = ask()
    say(stream, OWNER)
    say(stream, BOB, "reject", 2)
    assert stream.now.state == "rejected"
    assert count_agreeing(stream.now) == 1


def test_without_a_veto_as_many_must_refuse_as_must_agree() -> None:
    stream = ask(veto=False)
    say(stream, OWNER, "reject")
    assert stream.now.is_open
    say(stream, BOB, number=2)
    assert stream.now.is_open
    say(stream, CLEO, "reject", 3)
    assert stream.now.state == "rejected"


def test_votes_for_different_options_do_not_agree() -> None:
    stream = Stream()
    other = Option("allow_all", "Allow all", "allow_always")
    stream.open(make_request(quorum=Quorum(2), audience=EVERYBODY, options=(ALLOW, other, REJECT)))
    say(stream, OWNER)
    say(stream, BOB, "allow_all", 2)
    assert stream.now.is_open
    assert count_agreeing(stream.now) == 1


def test_a_later_vote_takes_the_place_of_the_earlier_one() -> None:
    stream = ask(veto=False)
    say(stream, OWNER, "reject")
    say(stream, OWNER, "allow", 2)
    say(stream, BOB, "allow", 3)
    assert stream.now.state == "allowed"


def test_the_requester_may_not_decide_under_four_eyes() -> None:
    stream = ask(1, allow_self=False)
    with pytest.raises(Forbidden) as refusal:
        say(stream, OWNER)
    assert refusal.value.stable_code == "self_approval"
    say(stream, BOB)
    assert stream.now.state == "allowed"


def test_an_owner_outside_the_audience_may_not_decide() -> None:
    stream = ask(1, audience=(AudienceStep(("bob",)),))
    with pytest.raises(Forbidden) as refusal:
        say(stream, OWNER)
    assert refusal.value.stable_code == "not_in_audience"


def test_a_stranger_to_the_audience_learns_nothing() -> None:
    stream = ask(1, audience=(AudienceStep(("bob",)),))
    with pytest.raises(NotFound):
        say(stream, CLEO)


def test_the_audience_grows_and_those_before_it_stay() -> None:
    steps = (AudienceStep(("bob",)), AudienceStep(("cleo",), HOUR_MS // 2))
    stream = ask(1, audience=steps)
    with pytest.raises(NotFound):
        say(stream, CLEO)
    stream.tell(Escalate(1))
    assert (stream.now.step, stream.now.rev) == (1, 1)
    with pytest.raises(Exception, match="no such later step"):
        stream.tell(Escalate(1))
    say(stream, BOB, "allow")
    assert stream.now.state == "allowed"


def test_a_vote_of_a_revoked_device_is_taken_back_and_void_before_that() -> None:
    stream = ask()
    say(stream, OWNER)
    say(stream, BOB, number=2, void=frozenset({"dev-1"}))
    assert stream.now.is_open
    stream.tell(WithdrawVotes(frozenset({"dev-1"})))
    assert [vote.principal for vote in stream.now.votes] == ["bob"]
    say(stream, CLEO, number=3)
    assert stream.now.state == "allowed"


def test_votes_never_turn_a_timeout_into_a_yes() -> None:
    stream = ask()
    say(stream, OWNER)
    stream.now_ms += HOUR_MS
    stream.tell(Expire())
    assert stream.now.state == "expired"


@pytest.mark.parametrize(
    ("quorum", "audience"),
    [
        (Quorum(2), ()),
        (Quorum(1, allow_self=False), ()),
        (Quorum(3, allow_self=False), EVERYBODY),
        (Quorum(), (AudienceStep(("bob",), 5),)),
        (Quorum(), (AudienceStep(("bob",)), AudienceStep(("cleo",), 9), AudienceStep(("x",), 5))),
    ],
)
def test_a_question_without_a_possible_approver_is_not_opened(
    quorum: Quorum, audience: tuple[AudienceStep, ...]
) -> None:
    with pytest.raises(InvalidInput):
        Stream().open(make_request(quorum=quorum, audience=audience))


def test_words_have_one_author() -> None:
    with pytest.raises(InvalidInput, match="quorum"):
        Stream().open(make_input(quorum=Quorum(2), audience=EVERYBODY))


def test_a_device_with_limited_rights_may_reject_all_and_allow_little() -> None:
    watch = DeviceRights(("allow_once",), "medium")
    stream = ask(1)
    with pytest.raises(Forbidden) as refusal:
        say(stream, OWNER, rights=watch)
    assert refusal.value.stable_code == "device_scope"
    say(stream, OWNER, "reject", rights=watch)
    assert stream.now.state == "rejected"


def test_a_yes_that_must_be_signed_is_refused_without_and_a_no_is_not() -> None:
    stream = ask(1)
    with pytest.raises(Forbidden) as refusal:
        say(stream, OWNER, must_sign=True)
    assert refusal.value.stable_code == "signature_required"
    say(stream, OWNER, must_sign=True, signature=SIGNATURE)
    assert stream.now.decision is not None
    assert stream.now.decision.assurance == ("bearer", "signature")
    refused = ask(1)
    say(refused, OWNER, "reject", must_sign=True)
    assert refused.now.state == "rejected"


def test_a_grave_yes_takes_a_right_of_its_own_and_a_no_does_not() -> None:
    narrow = replace(OWNER, scopes=frozenset({AccessScope.DECIDE}))
    for risk, needed in (("low", False), ("medium", False), ("high", True), ("critical", True)):
        stream = Stream()
        stream.open(make_request(risk=risk))
        if needed:
            with pytest.raises(Forbidden) as refusal:
                say(stream, narrow)
            assert refusal.value.details["scope"] == AccessScope.DECIDE_HIGH
            say(stream, narrow, "reject")
        else:
            say(stream, narrow)
        assert not stream.now.is_open


def test_a_replay_gives_the_votes_again_byte_for_byte() -> None:
    stream = ask(3)
    say(stream, OWNER, signature=SIGNATURE)
    say(stream, BOB, number=2)
    stream.tell(WithdrawVotes(frozenset({"dev-b"})))
    record: ActionRecord | None = None
    for event in stream.events:
        record = evolve(record, event)
    assert record is not None
    assert to_bytes(record) == to_bytes(stream.now)
    assert from_bytes(ActionRecord, to_bytes(record)) == record
    assert decide(record, make_answer(record, "reject", who=CLEO), NOW_MS)


@pytest.mark.requirement("CHN-8")
def test_a_step_for_paired_devices_is_readable_only_on_them() -> None:
    steps = (AudienceStep(("bob",), devices="paired"), AudienceStep(("bob",), HOUR_MS))
    stream = ask(1, audience=steps)
    paired = replace(BOB, paired=True)
    assert (may_read(stream.now, BOB), may_read(stream.now, paired)) == (False, True)
    assert list_paired_readers(stream.now) == {BOB.key}
    with pytest.raises(NotFound):
        say(stream, BOB)
    stream.tell(Escalate(1))
    assert (may_read(stream.now, BOB), list_paired_readers(stream.now)) == (True, frozenset())
    say(stream, BOB)
    assert stream.now.state == "allowed"


def test_the_owner_sees_from_everywhere_what_it_decides_from_paired_devices() -> None:
    stream = ask(1, audience=(AudienceStep(("ada",), devices="paired"),))
    assert list_paired_readers(stream.now) == frozenset()
    with pytest.raises(Forbidden) as refused:
        say(stream, OWNER)
    assert refused.value.details["why"] == "not_in_audience"
    say(stream, replace(OWNER, paired=True))
    assert stream.now.state == "allowed"


@pytest.mark.requirement("CHN-8")
def test_same_name_in_another_tenant_is_not_asked() -> None:
    stream = ask()
    assert may_read(stream.now, BOB)
    twin = replace(BOB, tenant="another")
    assert not may_read(stream.now, twin)
    with pytest.raises(NotFound):
        say(stream, twin)

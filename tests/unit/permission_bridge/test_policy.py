"""The defaults by direction, and that each evaluation explains itself."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.events import Event, Fact, encode_event
from passerelle.core.payloads.approval import ActionType, Risk
from passerelle.permission_bridge.approvers import RISKS, judge_risk
from passerelle.permission_bridge.cases import Case, InboundCall, OutboundDelegation, PeerAsks
from passerelle.permission_bridge.policy import PolicyFacts, evaluate
from passerelle.permission_bridge.rules import DEFAULT_POLICY, Effect
from tests.support.approvals import NOW_MS, SCOPE, make_id

FACTS = PolicyFacts(make_id("eval"), may_call=True, is_configured=True)
UNKNOWN = PolicyFacts(make_id("eval"))


@pytest.mark.requirement("EXT-1")
@pytest.mark.parametrize(
    ("subject", "facts", "verdict"),
    [
        (InboundCall("ada", "echo"), FACTS, "allow"),
        (InboundCall("ada", "echo"), UNKNOWN, "deny"),
        (OutboundDelegation("echo"), FACTS, "allow"),
        (OutboundDelegation("echo"), UNKNOWN, "deny"),
        (PeerAsks("payments", "tool_call"), FACTS, "ask"),
        (PeerAsks("payments", "tool_call"), UNKNOWN, "ask"),
    ],
)
def test_each_direction_has_its_default(subject: Case, facts: PolicyFacts, verdict: Effect) -> None:
    evaluation = evaluate(subject, facts, NOW_MS)
    assert (evaluation.decision, evaluation.source) == (verdict, "default")
    assert [(step.source, step.verdict) for step in evaluation.trail] == [("default", verdict)]
    assert evaluation.reason
    assert evaluation.policy_version == DEFAULT_POLICY.version


@pytest.mark.requirement("CHN-14", "EXT-1")
def test_an_allow_is_recorded_like_any_other_evaluation() -> None:
    payload = evaluate(OutboundDelegation("echo"), FACTS, NOW_MS).to_payload()
    assert (payload.decision, payload.evaluation_id) == ("allow", FACTS.evaluation_id)
    assert payload.subject == "delegation -> echo"
    encoded = encode_event(
        Event(make_id("ev"), "2027-01-15T08:00:00.000Z", "rt", Fact(SCOPE, payload))
    )
    assert encoded.type == "permission.evaluated"


def test_no_word_of_a_peer_lets_it_decide_for_itself() -> None:
    for action_type in get_args(ActionType):
        for declared in (None, *RISKS):
            subject = PeerAsks("payments", action_type, declared=declared)
            assert evaluate(subject, FACTS, NOW_MS).decision == "ask"


@pytest.mark.parametrize(
    ("action_type", "destructive", "tags", "risk"),
    [
        ("free_input", False, frozenset[str](), "low"),
        ("inbound_call", False, frozenset[str](), "low"),
        ("tool_call", False, frozenset[str](), "medium"),
        ("tool_call", True, frozenset[str](), "high"),
        ("credential", False, frozenset[str](), "high"),
        ("tool_call", False, frozenset({"payments"}), "critical"),
        ("free_input", False, frozenset({"payments"}), "low"),
    ],
)
def test_risk_follows_from_what_is_asked_for(
    action_type: ActionType, destructive: object, tags: frozenset[str], risk: Risk
) -> None:
    found, reasons = judge_risk(action_type, destructive=destructive is True, tags=tags)
    assert found == risk
    assert reasons


@given(
    st.sampled_from(get_args(ActionType)),
    st.booleans(),
    st.sampled_from(RISKS),
    st.frozensets(st.sampled_from(["payments", "standard"])),
)
def test_a_peer_can_raise_a_risk_and_never_lower_it(
    action_type: ActionType, destructive: object, declared: Risk, tags: frozenset[str]
) -> None:
    alone, _ = judge_risk(action_type, destructive=destructive is True, tags=tags)
    said, _ = judge_risk(action_type, destructive=destructive is True, tags=tags, declared=declared)
    assert RISKS.index(said) == max(RISKS.index(alone), RISKS.index(declared))

"""Rules edited at run time: a further layer over the configuration, and never the stronger one."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, get_args

import pytest

from passerelle.core.errors import InvalidInput
from passerelle.core.payloads.approval import Quorum
from passerelle.core.payloads.governance import StatedRule
from passerelle.core.policy.edited_rules import RULE_LIMIT, SCHEMA, EditedRules
from passerelle.core.wire.times import format_ms
from passerelle.permission_bridge.approvers import Tier, make_step
from passerelle.permission_bridge.cases import (
    About,
    ControlCommand,
    InboundCall,
    OutboundDelegation,
    PeerAsks,
)
from passerelle.permission_bridge.edited_rules import lay, read_rules
from passerelle.permission_bridge.governing.rulebook import Rulebook
from passerelle.permission_bridge.policy import Evaluation, PolicyFacts, evaluate
from passerelle.permission_bridge.policy_view import show_policy
from passerelle.permission_bridge.rules import DEFAULT_POLICY, Effect, PolicyMode, Rule, make_policy
from tests.support.approvals import NOW_MS, make_id

if TYPE_CHECKING:
    from passerelle.permission_bridge.cases import Case
    from passerelle.permission_bridge.rules import Policy

EFFECTS: tuple[Effect, ...] = get_args(Effect)
MODES: tuple[PolicyMode, ...] = get_args(PolicyMode)
STRICTNESS = ("allow", "ask", "deny")
PAY = PeerAsks("payments", "tool_call", caller="ada", tool="pay")
CASES: tuple[Case, ...] = (
    PAY,
    InboundCall("ada", "payments"),
    OutboundDelegation("payments", "ada"),
    ControlCommand("ada", "cancel_task", "cancel_task"),
)


def judge(policy: Policy, case: Case = PAY) -> Evaluation:
    facts = PolicyFacts(make_id("eval"), may_call=True, is_configured=True)
    return evaluate(case, facts, NOW_MS, policy)


def record(*rules: StatedRule, revision: int = 2) -> EditedRules:
    return EditedRules(SCHEMA, format_ms(NOW_MS), 2, 2, revision, "ada", rules)


@pytest.mark.requirement("PRS-3")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("there", list(product((True, False), repeat=6)))
def test_edited_rules_never_weaken_what_the_configuration_denies_or_asks(
    there: tuple[bool, ...], mode: PolicyMode
) -> None:
    own: list[Effect] = [
        effect for effect, is_there in zip(EFFECTS, there[:3], strict=True) if is_there
    ]
    put: list[Effect] = [
        effect for effect, is_there in zip(EFFECTS, there[3:], strict=True) if is_there
    ]
    configured = make_policy(tuple(Rule(effect, effect) for effect in own), mode)
    before = judge(configured)
    edited = read_rules([StatedRule(effect, effect, when="true", grantable=True) for effect in put])
    after = judge(lay(configured, edited))
    if before.source == "rule" and before.decision != "allow":
        assert STRICTNESS.index(after.decision) >= STRICTNESS.index(before.decision)
    if before.source == "mode" and before.decision == "deny" and mode == "plan":
        assert after.decision == "deny"
    if "deny" in put:
        assert (after.decision, after.source) == ("deny", "rule")
    alone = judge(make_policy((*configured.rules, *edited), mode))
    assert (after.decision, after.source) == (alone.decision, alone.source)


def test_edited_rule_is_no_answer_to_an_ask_that_grants_must_not_answer() -> None:
    configured = make_policy((Rule("each-time", "ask"),))
    edited = read_rules([StatedRule("each-time", "ask", grantable=True)])
    assert not judge(lay(configured, edited)).offers_grant


def test_record_marks_edited_rules_and_they_set_no_approvers() -> None:
    tier = Tier("low", Quorum(need=2), (make_step(["ada", "eve"], {}),))
    configured = make_policy((Rule("same", "ask", about=frozenset({"calls"}), tier=tier),))
    policy = lay(
        configured, read_rules([StatedRule("same", "ask"), StatedRule("o", "ask", owner="ada")])
    )
    found = judge(policy)
    assert found.rules == ("edited:same", "edited:ada/o")
    assert policy.find_tier(found.rules, found.risk) is None
    shown = show_policy(policy, "bob")
    assert [(rule.name, rule.origin) for rule in shown.rules] == [
        ("same", "configuration"),
        ("same", "edited"),
    ]


def test_version_changes_with_each_edit_and_comes_back_with_the_rules() -> None:
    def name(*rules: StatedRule) -> str:
        return lay(DEFAULT_POLICY, read_rules(rules)).version

    rules = [StatedRule("a", "deny"), StatedRule("a", "ask"), StatedRule("a", "deny", when="true")]
    assert len({name(), *map(name, rules)}) == 4
    assert name() == DEFAULT_POLICY.version
    assert name(rules[0]) == name(rules[0])


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        (
            [StatedRule("a", "deny"), StatedRule("b", "deny", when="peer.nome == 'x'")],
            "rules.1.when",
        ),
        ([StatedRule("a", "deny", when="1 + 1")], "rules.0.when"),
        ([StatedRule("a", "deny", when="")], "rules.0.when"),
        ([StatedRule("a", "deny"), StatedRule("B", "deny")], "rules.1.name"),
        ([StatedRule("a\n", "deny")], "rules.0.name"),
        ([StatedRule("a", "deny", about=())], "rules.0.about"),
        ([StatedRule("a", "deny", reason="x" * 201)], "rules.0.reason"),
        ([StatedRule("a", "deny", owner="")], "rules.0.owner"),
        ([StatedRule("a", "deny"), StatedRule("a", "ask")], "rules.1.name"),
        ([StatedRule(f"r{n}", "deny") for n in range(RULE_LIMIT + 1)], "rules"),
        ([StatedRule(f"r{n}", "deny", argv=("x" * 1_000,)) for n in range(70)], "rules"),
    ],
)
def test_one_rule_that_is_none_refuses_all_and_is_named(
    rules: list[StatedRule], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_rules(rules)
    assert refused.value.field == field


def test_same_name_for_two_callers_is_two_rules() -> None:
    read = read_rules([StatedRule("a", "deny"), StatedRule("a", "deny", owner="ada")])
    assert [rule.ref for rule in read] == ["edited:a", "edited:ada/a"]


@pytest.mark.requirement("EXT-1")
@pytest.mark.parametrize("case", CASES)
def test_while_stored_rules_cannot_be_read_everything_is_denied(case: Case) -> None:
    book = Rulebook(make_policy((Rule("yes", "allow", about=frozenset(get_args(About))),), "auto"))
    assert judge(book.find_rules(), case).decision == "allow"
    book.distrust("schema: is of another version")
    found = judge(book.find_rules(), case)
    assert (found.decision, found.source) == ("deny", "integrity")
    assert "the edited rules cannot be read: schema" in found.reason
    policy = book.find_rules()
    assert policy.judges_sends
    assert all(policy.speaks_about(about) for about in get_args(About))
    book.configure(DEFAULT_POLICY)
    assert judge(book.find_rules(), case).decision == "deny"
    book.take(None)
    assert book.find_rules() is DEFAULT_POLICY


def test_stored_rules_that_this_version_does_not_understand_deny_until_they_are_replaced() -> None:
    book = Rulebook()
    book.take(record(StatedRule("new", "allow", when="peer.mood == 'good'")))
    assert book.fault is not None
    assert "rules.0.when" in book.fault
    assert judge(book.find_rules()).source == "integrity"
    assert book.revision == 2
    book.take(record(StatedRule("old", "allow", when="true"), revision=3))
    assert book.revision == 3
    assert judge(book.find_rules()).decision == "allow"


def test_another_configuration_keeps_the_edited_rules() -> None:
    book = Rulebook()
    book.take(record(StatedRule("no", "deny")))
    before = book.find_rules().version
    book.configure(make_policy((Rule("yes", "allow"),)))
    assert judge(book.find_rules()).rules == ("yes", "edited:no")
    assert judge(book.find_rules()).decision == "deny"
    assert book.find_rules().version != before


def test_stored_rule_that_allows_without_a_condition_counts_for_nothing() -> None:
    book = Rulebook()
    lost, kept = StatedRule("lost", "allow", owner="ada"), StatedRule("kept", "deny")
    book.take(record(lost, kept))
    assert (book.fault, book.skipped) == (None, ("ada/lost",))
    assert [rule.ref for rule in book.find_rules().rules] == ["edited:kept"]
    assert "ada/lost" in str(book.warning)
    book.take(record(lost))
    assert judge(book.find_rules()).decision == "ask"
    book.take(record(StatedRule("lost", "allow", when="true", owner="ada")))
    assert (book.skipped, book.warning) == ((), None)


@pytest.mark.parametrize("about", get_args(About))
def test_edit_that_allows_without_a_condition_is_named(about: About) -> None:
    stated = StatedRule("wide", "allow", about=(about,))
    with pytest.raises(InvalidInput, match=r"rules\.0\.when.*write when"):
        read_rules([stated])
    assert read_rules([StatedRule("git", "allow", argv=("git", "status"))])
    assert read_rules([StatedRule("wide", "allow", when="true", about=(about,))])

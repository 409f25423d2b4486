"""Every combination of sources against the promised order: deny beats ask beats allow, whichever source decides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Final, Literal, TypeAlias

import pytest

from passerelle.core.payloads.approval import Risk
from passerelle.core.payloads.governance import Grant
from passerelle.permission_bridge.cases import (
    About,
    Case,
    ControlCommand,
    InboundCall,
    OutboundDelegation,
    PeerAsks,
    digest_subject,
)
from passerelle.permission_bridge.conditions import read_condition
from passerelle.permission_bridge.grants import Where, find_grant
from passerelle.permission_bridge.policy import Evaluation, PolicyFacts, SourceVerdict, evaluate
from passerelle.permission_bridge.rules import PolicyMode, Rule, make_policy
from tests.support.approvals import HOUR_MS, NOW_MS, make_id

PAY: Final = PeerAsks("payments", "tool_call", tool="pay", args={"amount": 40.0}, card_hash="c1")
HERE: Final = Where(make_id("task"), make_id("th"), make_id("sess"))
GRANT: Final = Grant(
    grant_id=make_id("gr"),
    action_id=make_id("act"),
    minted_by="ada",
    scope="session",
    place=HERE.session,
    action_type="tool_call",
    created_ms=NOW_MS,
    expires_ms=NOW_MS + HOUR_MS,
    policy_version="sha256:p",
    title="payments asks for permission to run a tool",
    peer="payments",
    card_hash="c1",
    subject_digest=digest_subject(PAY),
)
Asking: TypeAlias = Literal["no", "yes", "grantable"]
Hook: TypeAlias = Literal["none", "allow", "ask", "deny"]
Doubt: TypeAlias = Literal["none", "safe", "doubts"]


@dataclass(frozen=True)
class Sources:
    """The verdict of each source."""

    denies: bool
    asks: Asking
    grant: bool
    allows: bool
    hook: Hook
    mode: PolicyMode
    bypass: bool
    classifier: Doubt
    can_ask: bool

    def judge(self, case: PeerAsks = PAY) -> Evaluation:
        rules = (
            *((Rule("yes", "allow"),) if self.allows else ()),
            *(
                (Rule("ask", "ask", grantable=self.asks == "grantable"),)
                if self.asks != "no"
                else ()
            ),
            *((Rule("no", "deny"),) if self.denies else ()),
        )
        heard = (
            *(
                (SourceVerdict("hook", self.hook, "said so", "watch"),)
                if self.hook != "none"
                else ()
            ),
            *(
                (
                    SourceVerdict(
                        "classifier", "ask" if self.classifier == "doubts" else "allow", "", "c"
                    ),
                )
                if self.classifier != "none"
                else ()
            ),
        )
        facts = PolicyFacts(
            make_id("eval"),
            opinions=heard,
            grants=(GRANT,) if self.grant else (),
            where=HERE,
            bypass=self.bypass,
            can_ask=self.can_ask,
        )
        return evaluate(case, facts, NOW_MS, make_policy(rules, self.mode))

    def expect(self) -> tuple[str, str]:
        """The promise, in the words of the documentation."""
        if self.denies:
            return "deny", "rule"
        if self.hook == "deny":
            return "deny", "hook"
        if self.mode == "plan":
            return "deny", "mode"
        found = self._ask() or self._allow() or ("ask", "default")
        if found[0] == "allow" and self.classifier == "doubts":
            found = ("ask", "classifier")
        if found[0] == "ask" and self.mode == "no_ask":
            return "deny", "mode"
        if found[0] == "ask" and not self.can_ask:
            return "deny", "unavailable"
        return found

    def _ask(self) -> tuple[str, str] | None:
        if self.hook == "ask":
            return "ask", "hook"
        if self.asks == "yes" or (self.asks == "grantable" and not self.grant):
            return "ask", "rule"
        return None

    def _allow(self) -> tuple[str, str] | None:
        if self.grant:
            return "allow", "grant"
        if self.allows:
            return "allow", "rule"
        if self.hook == "allow":
            return "allow", "hook"
        return ("allow", "mode") if self.mode == "auto" or self.bypass else None


YES_NO: Final = (False, True)


@pytest.mark.requirement("PRS-3", "EXT-1")
@pytest.mark.parametrize("mode", ["normal", "no_ask", "plan", "auto"])
@pytest.mark.parametrize("hook", ["none", "allow", "ask", "deny"])
def test_every_combination_of_sources_follows_the_order(mode: PolicyMode, hook: Hook) -> None:
    asks: tuple[Asking, ...] = ("no", "yes", "grantable")
    doubts: tuple[Doubt, ...] = ("none", "safe", "doubts")
    for denies, ask, grant, allows, bypass, doubt, can_ask in product(
        YES_NO, asks, YES_NO, YES_NO, YES_NO, doubts, YES_NO
    ):
        sources = Sources(denies, ask, grant, allows, hook, mode, bypass, doubt, can_ask)
        found = sources.judge()
        assert (found.decision, found.source) == sources.expect(), sources
        assert (found.grant_id == GRANT.grant_id) == (found.source == "grant")


@pytest.mark.requirement("PRS-3", "VAL-8")
def test_a_rule_that_denies_beats_bypass_and_hook_and_all_of_them_are_recorded() -> None:
    everything = Sources(
        denies=True,
        asks="yes",
        grant=True,
        allows=True,
        hook="allow",
        mode="auto",
        bypass=True,
        classifier="doubts",
        can_ask=True,
    )
    found = everything.judge()
    assert (found.decision, found.source, found.reason) == ("deny", "rule", "the rule no")
    trail = [(step.source, step.verdict) for step in found.to_payload().trail]
    assert trail == [
        ("rule", "allow"),
        ("rule", "ask"),
        ("rule", "deny"),
        ("hook", "allow"),
        ("classifier", "ask"),
        ("grant", "allow"),
        ("mode", "allow"),
        ("mode", "allow"),
        ("default", "ask"),
    ]


def test_unreadable_input_is_denied_before_any_rule() -> None:
    facts = PolicyFacts(make_id("eval"), unsound="a number beyond 2^53", grants=(GRANT,))
    found = evaluate(PAY, facts, NOW_MS, make_policy((Rule("yes", "allow"),), "auto"))
    assert (found.decision, found.source) == ("deny", "integrity")
    assert [step.source for step in found.trail] == ["integrity"]


@pytest.mark.parametrize(
    ("risk", "destructive", "decision"),
    [
        ("low", False, "allow"),
        ("high", False, "allow"),
        ("critical", False, "ask"),
        ("low", True, "ask"),
    ],
)
def test_bypass_is_not_for_what_is_critical_or_destroys(
    risk: Risk, destructive: object, decision: str
) -> None:
    case = replace(PAY, declared=risk, destructive=destructive is True)
    found = evaluate(case, PolicyFacts(make_id("eval"), bypass=True), NOW_MS)
    assert found.decision == decision
    assert ("mode", "bypass") in [(step.source, step.ref) for step in found.trail] or (
        decision == "ask"
    )


def test_a_classifier_raises_the_risk_and_never_lowers_it() -> None:
    policy = make_policy(mode="auto")
    high = SourceVerdict("classifier", "silent", "", "c", risk="high")
    found = evaluate(PAY, PolicyFacts(make_id("eval"), opinions=(high,)), NOW_MS, policy)
    assert (found.decision, found.risk, found.risk_reasons) == ("ask", "high", ("c rates it high",))
    low = replace(high, verdict="allow", risk="low")
    grave = replace(PAY, declared="high")
    found = evaluate(grave, PolicyFacts(make_id("eval"), opinions=(low,)), NOW_MS, policy)
    assert (found.decision, found.risk) == ("ask", "high")
    assert ("classifier", "allow") in [(step.source, step.verdict) for step in found.trail]


def test_rules_of_an_owner_apply_to_its_own_work_only() -> None:
    rules = (Rule("mine", "deny", owner="ada"), Rule("all", "allow"))
    policy = make_policy(rules)
    facts = PolicyFacts(make_id("eval"))
    adas = evaluate(replace(PAY, caller="ada"), facts, NOW_MS, policy)
    assert (adas.decision, adas.rules) == ("deny", ("all", "ada/mine"))
    bobs = evaluate(replace(PAY, caller="bob"), facts, NOW_MS, policy)
    assert (bobs.decision, bobs.rules) == ("allow", ("all",))


def test_a_rule_applies_only_to_its_kinds_of_cases() -> None:
    facts = PolicyFacts(make_id("eval"), may_call=True, is_configured=True)
    cases: dict[About, Case] = {
        "calls": InboundCall("ada", "echo"),
        "delegations": OutboundDelegation("echo", args={"text": "pay"}),
        "commands": ControlCommand("ada", "cancel_task", "cancel_task"),
        "asks": PAY,
    }
    for about, name in product(cases, cases):
        policy = make_policy((Rule("no", "deny", about=frozenset({about})),))
        found = evaluate(cases[name], facts, NOW_MS, policy)
        assert (found.decision == "deny") == (about == name), (about, name)


def test_rule_about_delegations_reads_the_sent_text() -> None:
    rule = Rule(
        "secrets",
        "ask",
        read_condition("action.args.text.contains('IBAN') && direction == 'outbound'"),
        about=frozenset({"delegations"}),
    )
    facts = PolicyFacts(make_id("eval"), is_configured=True)
    for text, decision in (("my IBAN is", "ask"), ("hello", "allow")):
        case = OutboundDelegation("echo", args={"text": text})
        assert evaluate(case, facts, NOW_MS, make_policy((rule,))).decision == decision


@pytest.mark.parametrize(
    ("grant", "fits"),
    [
        (GRANT, True),
        (replace(GRANT, place=make_id("sess", 2)), False),
        (replace(GRANT, scope="task", place=HERE.task), True),
        (replace(GRANT, scope="peer", place=""), True),
        (replace(GRANT, scope="owner", place="", peer=None, card_hash=None), True),
        (replace(GRANT, peer="other"), False),
        (replace(GRANT, card_hash="c2"), False),
        (replace(GRANT, expires_ms=NOW_MS), False),
        (replace(GRANT, max_uses=1, uses=1), False),
        (replace(GRANT, revoked_at="2027-01-15T08:00:00.000Z"), False),
        (replace(GRANT, action_type="command"), False),
        (replace(GRANT, subject_digest="sha256:other"), False),
        (replace(GRANT, subject_digest=None, tool="pay"), True),
        (replace(GRANT, subject_digest=None, tool="look"), False),
        (replace(GRANT, subject_digest=None, tool=""), False),
    ],
)
def test_a_grant_fits_what_it_was_given_for_and_nothing_wider(grant: Grant, fits: object) -> None:
    assert (find_grant((grant,), PAY, HERE, NOW_MS) is not None) == fits


def test_one_changed_value_is_another_subject_and_one_float_is_its_integer() -> None:
    same = digest_subject(replace(PAY, args={"amount": 40}))
    assert same == digest_subject(PAY)
    assert digest_subject(replace(PAY, args={"amount": 41})) != same
    assert digest_subject(replace(PAY, args={"amount": 2**60})) is None

"""The section ``policy``: what it becomes, and the fault of a rule that cannot be used."""

from pathlib import Path

import pytest

from passerelle.gateway.settings.layers import Sources
from passerelle.gateway.settings.policy import read_policy
from passerelle.gateway.settings.source import load_settings
from passerelle.permission_bridge.rules import DEFAULT_POLICY
from tests.unit.gateway.test_settings_source import faults, load, write


def test_rules_are_in_the_policy_as_written(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
policy:
  mode: auto
  rules:
    - name: small
      effect: allow
      when: action.args.amount <= 20
      reason: pocket money
    - {name: git, effect: deny, argv: [git, push]}
""",
    )
    policy = read_policy(load(tmp_path).policy)
    assert policy.mode == "auto"
    small, git = policy.rules
    assert small.condition is not None
    assert (small.name, small.effect, small.condition.text, small.reason) == (
        "small",
        "allow",
        "action.args.amount <= 20",
        "pocket money",
    )
    assert (git.effect, git.argv) == ("deny", ("git", "push"))
    assert read_policy(load(tmp_path).policy).version == policy.version


def test_no_section_is_the_default_policy(tmp_path: Path) -> None:
    assert read_policy(load(tmp_path).policy) == DEFAULT_POLICY


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            "{name: a, effect: allow, when: action.tol == 'x'}",
            "policy.rules.0.when: 1:7: undeclared reference to 'action.tol'",
        ),
        ("{name: a, effect: allow, when: action.tool}", "policy.rules.0.when: must return true"),
        ("{name: a, effect: allow}", "policy.rules.0: an allow rule needs a condition"),
        ("{name: a, effect: allow, when: null}", 'write when: "true" to allow everything'),
        ("{name: a, effect: allow, about: [calls]}", 'write when: "true" to allow everything'),
        ("{name: a, effect: permit}", "policy.rules.0.effect: "),
        ("{name: a, effect: deny, wen: 'true'}", "did you mean when?"),
    ],
)
def test_rule_that_cannot_be_used_is_named_with_its_line(
    tmp_path: Path, rule: str, said: str
) -> None:
    [fault] = faults(tmp_path, f"policy:\n  rules:\n    - {rule}\n")
    assert fault.startswith("3: ")
    assert said in fault


def test_two_rules_of_one_name_are_refused(tmp_path: Path) -> None:
    text = "policy:\n  rules:\n    - {name: a, effect: deny}\n    - {name: a, effect: ask}\n"
    assert faults(tmp_path, text) == ["4: policy.rules.1.name: 'a' is a duplicate name"]


@pytest.mark.requirement("PRS-12")
def test_rule_of_an_owner_that_allows_wants_a_condition_too(tmp_path: Path) -> None:
    text = "policy:\n  owners:\n    ada:\n      rules:\n        - {name: a, effect: allow}\n"
    [fault] = faults(tmp_path, text)
    assert fault.startswith("5: policy.owners.ada.rules.0: an allow rule needs a condition")


def test_everything_is_allowed_where_it_is_written_out(tmp_path: Path) -> None:
    write(tmp_path, "policy:\n  rules:\n    - {name: a, effect: allow, when: 'true'}\n")
    [rule] = read_policy(load(tmp_path).policy).rules
    assert rule.condition is not None


_PEOPLE = f"clients:\n- {{name: ada, key_hash: '{'ab' * 32}', may_call: []}}\n"


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (
            "  approvers: [{risk: low, who: [adda]}]\n",
            "5: policy.approvers.0.who.0: no principal is named 'adda'",
        ),
        (
            "  approvers: [{risk: low, who: [ada], escalate: [{after: 5m, to: [bob]}]}]\n",
            "5: policy.approvers.0.escalate.0.to.0: no principal is named 'bob'",
        ),
        ("  roles: {ops: [ada, bob]}\n", "5: policy.roles.ops.1: no principal is named 'bob'"),
        (
            "  rules: [{name: r, effect: ask, approvers: {who: [bob]}}]\n",
            "5: policy.rules.0.approvers.who.0: no principal is named 'bob'",
        ),
        (
            "  owners: {ada: {rules: [{name: r, effect: ask, approvers: {who: [bob]}}]}}\n",
            "5: policy.owners.ada.rules.0.approvers.who.0: no principal is named 'bob'",
        ),
        ("  approvers: [{risk: low, who: ['corp:eve']}]\n", "no principal is named 'corp:eve'"),
    ],
)
def test_unknown_approver_is_a_fault_with_its_line(tmp_path: Path, section: str, said: str) -> None:
    [fault] = faults(tmp_path, f"{_PEOPLE}policy:\n  mode: normal\n{section}")
    assert said in fault


def test_approver_of_an_identity_provider_is_a_notice(tmp_path: Path) -> None:
    issuer = "issuers:\n- {name: corp, issuer: 'https://id.example', audience: [a], may_call: []}\n"
    known = "  approvers: [{risk: low, who: [ada, owner, '@caller', 'corp:eve']}]\n"
    config = write(tmp_path, f"{_PEOPLE}{issuer}policy:\n  mode: normal\n{known}")
    settings, notices = load_settings(Sources({}, tmp_path, config))
    assert settings.policy.approvers
    [notice] = notices
    assert "policy.approvers.0.who.3: 'corp:eve'" in notice
    assert ":7: " in notice

"""The section ``policy``: what it becomes, and what is said of a rule that cannot be used."""

from pathlib import Path

import pytest

from passerelle.gateway.settings_policy import read_policy
from passerelle.permission_bridge.rules import DEFAULT_POLICY
from tests.unit.gateway.test_settings_source import faults, load, write


def test_rules_stand_in_the_policy_as_they_were_written(tmp_path: Path) -> None:
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
        ("{name: a, effect: allow, when: action.tool}", "policy.rules.0.when: must give true"),
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
    assert faults(tmp_path, text) == ["4: policy.rules.1.name: 'a' is there twice"]

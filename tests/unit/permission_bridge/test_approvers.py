"""The approvers, by risk."""

import re

import pytest
from pydantic import ValidationError

from passerelle.core.payloads.approval import AudienceStep, Quorum
from passerelle.gateway.settings.policy import PolicySettings, read_policy
from passerelle.permission_bridge.approvers import CALLER, Tier, choose_tier

HIGH = Tier("high", Quorum(2), (AudienceStep(("bob", "cleo")),))
CRITICAL = Tier("critical", Quorum(1), (AudienceStep((CALLER, "bob")),))


def test_the_tier_of_the_highest_risk_that_is_reached_counts() -> None:
    tiers = (CRITICAL, HIGH)
    assert choose_tier(tiers, "medium") is None
    assert choose_tier(tiers, "high") is HIGH
    assert choose_tier(tiers, "critical") is CRITICAL


def test_the_caller_is_in_the_audience_once_if_it_is_named() -> None:
    assert CRITICAL.list_audience("ada") == (AudienceStep(("ada", "bob")),)
    assert CRITICAL.list_audience("bob") == (AudienceStep(("bob",)),)


@pytest.mark.parametrize(
    ("need", "allow_self", "who", "fails"),
    [
        (1, True, (CALLER,), False),
        (1, False, (CALLER,), True),
        (1, False, ("bob",), True),
        (1, False, ("bob", "cleo"), False),
        (2, True, (CALLER, "bob"), True),
        (2, True, ("bob", "cleo"), False),
        (3, True, ("bob", "cleo"), True),
    ],
)
def test_a_tier_in_which_some_caller_could_not_be_decided_for_is_no_tier(
    need: int, allow_self: object, who: tuple[str, ...], fails: object
) -> None:
    tier = Tier("low", Quorum(need, allow_self=allow_self is True), (AudienceStep(who),))
    assert (tier.find_fault() is not None) is fails


def test_approvers_are_a_part_of_the_version_of_a_policy() -> None:
    plain = read_policy(PolicySettings())
    stated = {
        "approvers": [
            {"risk": "high", "who": ["bob"], "escalate": [{"after": "1h", "to": ["cleo"]}]}
        ]
    }
    policy = read_policy(PolicySettings.model_validate(stated))
    assert policy.version != plain.version
    (tier,) = policy.tiers
    assert tier.steps == (AudienceStep(("bob",)), AudienceStep(("cleo",), 3_600_000))


def test_a_role_is_replaced_by_its_members_once_and_named_in_the_step() -> None:
    stated = {
        "roles": {"oncall": ["bob", "cleo"], "leads": ["cleo", "keycloak:4711"]},
        "approvers": [
            {
                "risk": "high",
                "who": ["@oncall", "bob", "@caller"],
                "devices": "paired",
                "escalate": [
                    {"after": "2h", "to": ["dan"], "devices": "any"},
                    {"after": "1h", "to": ["@leads"]},
                ],
            }
        ],
    }
    (tier,) = read_policy(PolicySettings.model_validate(stated)).tiers
    assert tier.list_audience("bob") == (
        AudienceStep(("bob", "cleo"), 0, ("oncall",), "paired"),
        AudienceStep(("cleo", "keycloak:4711"), 3_600_000, ("leads",), "paired"),
        AudienceStep(("dan",), 7_200_000),
    )


@pytest.mark.parametrize(
    ("roles", "who", "why"),
    [
        ({}, ["@oncall"], "approvers[0]: there is no role oncall"),
        ({"oncall": []}, ["bob"], "the role oncall has no principals"),
        (
            {"oncall": ["@leads"], "leads": ["bob"]},
            ["bob"],
            "oncall: a role contains principals, not roles",
        ),
        ({"caller": ["bob"]}, ["bob"], "caller means the caller of the task and cannot be a role"),
        ({"oncall": ["bob"]}, ["@oncall"], "approvers[0]: 2 approvals are needed"),
    ],
)
def test_a_role_without_members_is_refused_with_its_place(
    roles: dict[str, list[str]], who: list[str], why: str
) -> None:
    tier = {"risk": "high", "who": who, "need": 2 if roles == {"oncall": ["bob"]} else 1}
    with pytest.raises(ValidationError, match=re.escape(why)):
        PolicySettings.model_validate({"roles": roles, "approvers": [tier]})


@pytest.mark.parametrize(
    "changed",
    [{"roles": {"oncall": ["bob", "cleo"]}}, {"approvers": [{"devices": "paired"}]}],
)
def test_roles_and_devices_are_a_part_of_the_version_of_a_policy(
    changed: dict[str, list[dict[str, str]]],
) -> None:
    tier = {"risk": "high", "who": ["@oncall"]}
    before = {"roles": {"oncall": ["bob"]}, "approvers": [tier]}
    after = {**before, **changed}
    if "approvers" in changed:
        after["approvers"] = [{**tier, **changed["approvers"][0]}]
    versions = [read_policy(PolicySettings.model_validate(one)).version for one in (before, after)]
    assert versions[0] != versions[1]


def test_rules_and_the_tier_of_the_risk_never_make_it_easier_for_each_other() -> None:
    rules = [Tier("low", Quorum(need), (AudienceStep((f"rule-{need}",)),)) for need in (1, 2)]
    one, two = rules
    alone = Tier("low", Quorum(2, allow_self=False), (AudienceStep(("bob", "cleo", "dan")),))
    assert choose_tier((HIGH, CRITICAL), "low", [one]) is one
    assert choose_tier((HIGH, CRITICAL), "high", [one]) is HIGH
    assert choose_tier((HIGH, CRITICAL), "high", [one, two]) is two
    assert choose_tier((HIGH, CRITICAL), "critical", [one]) is one
    assert choose_tier((HIGH, CRITICAL), "high", [two, alone]) is alone


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (
            {"effect": "allow", "when": "true", "approvers": {"who": ["bob"]}},
            "only a rule with the effect ask may have them",
        ),
        (
            {"effect": "ask", "approvers": {"who": ["@ops"]}},
            "rule pay: approvers: there is no role",
        ),
        ({"effect": "ask", "approvers": {"who": ["bob"], "need": 2}}, "2 approvals are needed"),
    ],
)
def test_approvers_of_a_rule_are_checked_when_it_is_read(rule: dict[str, object], why: str) -> None:
    for stated in (
        {"rules": [{"name": "pay", **rule}]},
        {"owners": {"ada": {"rules": [{"name": "pay", **rule}]}}},
    ):
        with pytest.raises(ValidationError, match=re.escape(why)):
            PolicySettings.model_validate(stated)

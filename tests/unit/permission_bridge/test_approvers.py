"""Who decides, by risk."""

import pytest

from passerelle.core.payloads.approval import AudienceStep, Quorum
from passerelle.gateway.settings_policy import PolicySettings, read_policy
from passerelle.permission_bridge.approvers import CALLER, Tier, choose_tier

HIGH = Tier("high", Quorum(2), (AudienceStep(("bob", "cleo")),))
CRITICAL = Tier("critical", Quorum(1), (AudienceStep((CALLER, "bob")),))


def test_the_tier_of_the_highest_risk_that_is_reached_counts() -> None:
    tiers = (CRITICAL, HIGH)
    assert choose_tier(tiers, "medium") is None
    assert choose_tier(tiers, "high") is HIGH
    assert choose_tier(tiers, "critical") is CRITICAL


def test_the_caller_stands_in_the_audience_where_it_is_named_and_once() -> None:
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

"""Why an open question is withdrawn from a device: each right that it may lose, and what it keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from passerelle.core.approval.audience import find_withdrawal
from passerelle.core.payloads.approval import AudienceStep
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.vocabulary import WithdrawalReason
from tests.support.approvals import OWNER, Stream, make_request

BOTH = frozenset({AccessScope.READ_APPROVALS, AccessScope.DECIDE})
ADA = replace(OWNER, scopes=BOTH)
BOB = Principal("bob", ADA.tenant, "person", BOTH, paired=True)


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (BOTH, BOTH, None),
        (BOTH, frozenset({AccessScope.READ_APPROVALS}), "scope"),
        (BOTH, frozenset({AccessScope.DECIDE}), None),
        (BOTH, frozenset[AccessScope](), "scope"),
        (
            frozenset({AccessScope.READ_APPROVALS}),
            frozenset({AccessScope.READ_APPROVALS, AccessScope.CALL}),
            None,
        ),
        (frozenset({AccessScope.READ_APPROVALS}), frozenset[AccessScope](), "scope"),
        (frozenset({AccessScope.CALL}), frozenset[AccessScope](), None),
        (BOTH | {AccessScope.DECIDE_HIGH}, BOTH, None),
    ],
)
def test_a_right_that_is_lost_takes_what_it_showed_or_let_answer(
    before: frozenset[AccessScope], now: frozenset[AccessScope], why: WithdrawalReason | None
) -> None:
    record = Stream().open()
    assert find_withdrawal(record, replace(ADA, scopes=before), replace(ADA, scopes=now)) == why


def test_an_agent_gets_no_withdrawal() -> None:
    agent = replace(ADA, kind="agent")
    assert find_withdrawal(Stream().open(), agent, replace(agent, scopes=frozenset())) is None


def test_an_unpaired_device_loses_questions_for_paired_devices() -> None:
    key = replace(BOB, paired=False)
    paired = Stream().open(make_request(audience=(AudienceStep(("bob",), 0, devices="paired"),)))
    anywhere = Stream().open(make_request(audience=(AudienceStep(("bob",), 0),)))
    assert find_withdrawal(paired, BOB, key) == "pairing"
    assert find_withdrawal(paired, BOB, replace(key, scopes=frozenset())) == "pairing"
    assert find_withdrawal(paired, key, BOB) is None
    owners = Stream().open(make_request(audience=(AudienceStep((ADA.id,), 0, devices="paired"),)))
    assert find_withdrawal(owners, replace(ADA, paired=True), ADA) == "pairing"
    assert find_withdrawal(anywhere, BOB, key) is None
    assert find_withdrawal(anywhere, BOB, replace(key, scopes=frozenset())) == "scope"


def test_a_withdrawal_goes_only_to_approvers_that_lost_the_question() -> None:
    record = Stream().open(make_request(audience=(AudienceStep(("bob",), 0),)))
    assert find_withdrawal(record, BOB, replace(BOB, id="cleo")) == "audience"
    assert (
        find_withdrawal(record, replace(BOB, id="cleo"), replace(BOB, scopes=frozenset())) is None
    )
    # The owner looks on and never decided here, so the right to decide was nothing to it.
    assert find_withdrawal(record, ADA, replace(ADA, scopes=BOTH - {AccessScope.DECIDE})) is None

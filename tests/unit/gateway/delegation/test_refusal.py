"""Why a peer did not take a message: a typed error for the caller, the same for the record, nothing of the peer."""

from __future__ import annotations

import pytest

from passerelle.core.errors import InvalidAgentResponse, PeerRefused, PeerUnavailable
from passerelle.core.facts import ErrorCategory
from passerelle.core.peer import Malformed, Refused, Unreached
from passerelle.gateway.control.failures import explain_failure, make_error
from passerelle.gateway.delegation.refusal import explain
from tests.unit.gateway.delegation.pump import CONTEXT, REMOTE, TASK, Pump, make_running


@pytest.mark.requirement("A2A-12")
def test_refusal_names_our_ids_where_the_peer_named_its_own() -> None:
    pump = make_running()
    refusal = explain(
        Refused(-32602, f"Task {REMOTE} in {CONTEXT} is busy"), pump.sight, pump.record
    )
    assert isinstance(refusal.error, PeerRefused)
    assert REMOTE not in str(refusal.error)
    assert TASK.id in str(refusal.error)
    assert refusal.failure.category is ErrorCategory.PEER
    assert refusal.failure.native == "-32602"


@pytest.mark.requirement("A2A-12")
def test_text_with_an_id_that_nobody_knows_is_replaced_as_a_whole() -> None:
    pump = Pump()
    told = explain(Refused(-32001, "no 8f14e45fceea167a here"), pump.sight, pump.record)
    assert "8f14e45f" not in str(told.error)
    assert "8f14e45f" not in told.failure.message


def test_callers_own_message_id_may_be_read_again() -> None:
    pump = Pump()
    pump.sight.accepted[:] = [{"messageId": "order-20261120", "parts": []}]
    told = explain(Refused(-32602, "order-20261120 is not for us"), pump.sight, pump.record)
    assert "order-20261120" in str(told.error)


@pytest.mark.parametrize(
    ("outcome", "error", "category"),
    [
        (Unreached("connection refused"), PeerUnavailable, ErrorCategory.TRANSPORT),
        (Malformed("not JSON", b"<html>"), InvalidAgentResponse, ErrorCategory.PROTOCOL),
        (Refused(-32603, "oops"), InvalidAgentResponse, ErrorCategory.PEER),
    ],
)
def test_error_that_is_recorded_is_the_one_that_is_raised_again_later(
    outcome: Unreached | Malformed | Refused,
    error: type[PeerUnavailable | InvalidAgentResponse],
    category: ErrorCategory,
) -> None:
    pump = Pump()
    told = explain(outcome, pump.sight, pump.record)
    assert isinstance(told.error, error)
    assert told.failure.category is category
    assert told.failure.source == "echo"
    again = make_error(told.failure)
    assert type(again) is type(told.error)
    assert str(again) == str(told.error)


def test_turn_without_a_recorded_error_has_no_answer() -> None:
    assert isinstance(explain_failure(None), PeerUnavailable)

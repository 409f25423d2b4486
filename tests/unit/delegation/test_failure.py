"""Why an agent refused a message: a typed error for the caller and the record, without text of the agent."""

from __future__ import annotations

import pytest

from passerelle.a2a_mapping.envelopes import ERROR_INFO
from passerelle.core.errors import InvalidAgentResponse, PeerRefused, PeerUnavailable
from passerelle.core.facts import ErrorCategory, ErrorDetail
from passerelle.core.peer import Malformed, RefusedByPeer, Unreached
from passerelle.core.wire.codec import from_wire, to_wire
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs.failure import explain
from passerelle.runtime.records.refusals import explain_failure, make_error
from tests.unit.delegation.pump import CONTEXT, REMOTE, TASK, Pump, make_running


@pytest.mark.requirement("A2A-12")
def test_refusal_names_our_ids_where_the_peer_named_its_own() -> None:
    pump = make_running()
    refusal = explain(
        RefusedByPeer(-32602, f"Task {REMOTE} in {CONTEXT} is busy"), pump.context, pump.record
    )
    assert isinstance(refusal.error, PeerRefused)
    assert REMOTE not in str(refusal.error)
    assert TASK.id in str(refusal.error)
    assert refusal.failure.category is ErrorCategory.PEER
    assert refusal.failure.native == "-32602"


@pytest.mark.requirement("A2A-12")
def test_text_with_an_unknown_id_is_replaced_as_a_whole() -> None:
    pump = Pump()
    told = explain(RefusedByPeer(-32001, "no 8f14e45fceea167a here"), pump.context, pump.record)
    assert "8f14e45f" not in str(told.error)
    assert "8f14e45f" not in told.failure.message


def test_callers_own_message_id_may_be_read_again() -> None:
    pump = Pump()
    pump.context.accepted[:] = [{"messageId": "order-20261120", "parts": []}]
    told = explain(RefusedByPeer(-32602, "order-20261120 is not for us"), pump.context, pump.record)
    assert "order-20261120" in str(told.error)


@pytest.mark.parametrize(
    ("outcome", "error", "category"),
    [
        (Unreached("connection refused"), PeerUnavailable, ErrorCategory.TRANSPORT),
        (Malformed("not JSON", b"<html>"), InvalidAgentResponse, ErrorCategory.PROTOCOL),
        (RefusedByPeer(-32603, "oops"), PeerRefused, ErrorCategory.PEER),
        (RefusedByPeer(-32603, "HTTP 401", 401, is_bare=True), PeerRefused, ErrorCategory.PEER),
    ],
)
def test_recorded_error_is_raised_again_as_the_same_error(
    outcome: Unreached | Malformed | RefusedByPeer,
    error: type[PeerUnavailable | InvalidAgentResponse | PeerRefused],
    category: ErrorCategory,
) -> None:
    pump = Pump()
    told = explain(outcome, pump.context, pump.record)
    assert isinstance(told.error, error)
    assert told.failure.category is category
    assert told.failure.source == "echo"
    again = make_error(told.failure)
    assert type(again) is type(told.error)
    assert str(again) == str(told.error)
    if isinstance(told.error, PeerRefused):
        assert again.details == told.error.details


def test_details_of_the_agent_outlast_a_restart() -> None:
    info: JsonObject = {"@type": ERROR_INFO, "reason": "NO_CREDIT", "domain": "agent.example"}
    pump = Pump()
    told = explain(RefusedByPeer(-32050, "no credit", details=(info,)), pump.context, pump.record)
    stored = from_wire(ErrorDetail, to_wire(told.failure))
    again = make_error(stored)
    assert isinstance(again, PeerRefused)
    assert (again.native_code, again.given) == (-32050, (info,))


def test_turn_without_a_recorded_error_has_no_answer() -> None:
    assert isinstance(explain_failure(None), PeerUnavailable)

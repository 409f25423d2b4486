"""The end of a gRPC call as an outcome: certain only if the agent itself has answered."""

from __future__ import annotations

import pytest

from passerelle.core.peer import Malformed, PeerOutcome, RefusedByPeer, Unknown
from passerelle.core.wire.json import JsonObject
from passerelle.peers.answers import judge_send
from passerelle.peers.grpc.status import read_end

WAIT: JsonObject = {"details": [{"retryDelay": "7.5s"}]}


@pytest.mark.parametrize(
    ("code", "rich", "outcome"),
    [
        ("NOT_FOUND", {"details": [{"reason": "TASK_NOT_FOUND"}]}, RefusedByPeer(-32001, "no")),
        (
            "FAILED_PRECONDITION",
            {"details": [{"reason": "VERSION_NOT_SUPPORTED"}]},
            RefusedByPeer(-32009, "no"),
        ),
        ("INVALID_ARGUMENT", None, RefusedByPeer(-32602, "no")),
        ("UNIMPLEMENTED", None, RefusedByPeer(-32603, "no", 404)),
        ("UNAUTHENTICATED", None, RefusedByPeer(-32603, "no", 401)),
        ("PERMISSION_DENIED", None, RefusedByPeer(-32603, "no", 403)),
        ("UNAVAILABLE", WAIT, RefusedByPeer(-32603, "no", 503, 7)),
        ("RESOURCE_EXHAUSTED", WAIT, RefusedByPeer(-32603, "no", 429, 7)),
        ("INTERNAL", {"details": []}, RefusedByPeer(-32603, "no")),
        ("UNAVAILABLE", None, Unknown("gRPC UNAVAILABLE")),
        ("INTERNAL", None, Unknown("gRPC INTERNAL")),
        ("CANCELLED", None, Unknown("gRPC CANCELLED")),
        ("DEADLINE_EXCEEDED", None, Unknown("no answer in time")),
    ],
)
def test_each_grpc_status_is_the_agents_refusal_or_unknown(
    code: str, rich: JsonObject | None, outcome: PeerOutcome
) -> None:
    assert read_end(code, "no", rich) == outcome


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("RESOURCE_EXHAUSTED", RefusedByPeer(-32603, "later", 429, 7)),
        ("UNAVAILABLE", RefusedByPeer(-32603, "later", 503, 7)),
    ],
)
def test_busy_agent_of_0_3_is_busy_also_where_its_text_names_a_class(
    code: str, outcome: PeerOutcome
) -> None:
    """A gateway that is an agent of another one writes both."""
    assert read_end(code, "InternalError: later", WAIT) == outcome
    assert read_end("INTERNAL", "InternalError: no", None) == RefusedByPeer(-32603, "no")


def test_exception_in_the_agent_is_reported_as_its_error() -> None:
    text = "Unexpected <class 'RuntimeError'>: the tool broke"
    raised = read_end("UNKNOWN", text, None)
    assert raised == Unknown("gRPC UNKNOWN", 500, text)
    assert judge_send(raised) == RefusedByPeer(-32603, text, 500)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No status received",
        "Stream removed",
        "Received http2 header with status: 408",
    ],
)
def test_unknown_end_that_no_agent_wrote_stays_unknown(text: str) -> None:
    """The library for gRPC reports this itself if no status came."""
    outcome = read_end("UNKNOWN", text, None)
    assert judge_send(outcome) == outcome == Unknown("gRPC UNKNOWN")


def test_message_over_our_own_limit_is_malformed() -> None:
    text = "CLIENT: Received message larger than max (20 vs. 10)"
    assert isinstance(read_end("RESOURCE_EXHAUSTED", text, None), Malformed)

"""Errors of the gateway as gRPC statuses."""

from __future__ import annotations

from passerelle.core.errors import Limited
from passerelle.peers.grpc.status import DETAILS_KEY, parse_status, render_refusal


def test_limit_has_the_retry_time_in_grpc_details() -> None:
    refusal = render_refusal(Limited("rate_limit", "too many", 7))
    trailing = dict(refusal.trailing)
    assert (refusal.code.name, trailing["retry-after"]) == ("RESOURCE_EXHAUSTED", "7")
    packed = trailing[DETAILS_KEY]
    assert isinstance(packed, bytes)
    details = parse_status(packed)["details"]
    assert isinstance(details, list)
    assert details[0] == {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "RATE_LIMITED",
        "domain": "passerelle",
        "metadata": {"limit": "rate_limit"},
    }
    assert details[-1] == {
        "@type": "type.googleapis.com/google.rpc.RetryInfo",
        "retryDelay": "7s",
    }

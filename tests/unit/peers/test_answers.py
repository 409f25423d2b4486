"""The meaning of an agent's HTTP response. The question behind every row: may the agent have taken the request?"""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.peer import Answered, Malformed, RefusedByPeer, Unknown
from passerelle.peers.answers import NotJson, parse_json, read_response
from passerelle.peers.jsonrpc import JsonRpc

ERROR = orjson.dumps(
    {"jsonrpc": "2.0", "id": 7, "error": {"code": -32001, "message": "not found", "data": []}}
)
RESULT = orjson.dumps({"jsonrpc": "2.0", "id": 7, "result": {"task": {"id": "t"}}})


@pytest.mark.parametrize(
    "status", [301, 302, 307, 308, 400, 401, 403, 404, 405, 409, 413, 429, 501, 503, 505]
)
def test_status_for_not_served_is_a_refusal(status: int) -> None:
    outcome = read_response(status, None, b"<html>", 7)
    assert isinstance(outcome, RefusedByPeer)
    assert outcome.http_status == status


@pytest.mark.parametrize("status", [408, 499, 500, 502, 504, 507, 520, 599])
def test_status_that_may_hide_a_served_request_is_unknown(status: int) -> None:
    assert read_response(status, None, b"", 7) == Unknown(f"HTTP {status}", status)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 300, 303, 304])
def test_status_of_success_without_an_answer_is_malformed(status: int) -> None:
    assert isinstance(read_response(status, None, b"", 7), Malformed)


@pytest.mark.parametrize("status", [200, 400, 404, 500, 503])
def test_error_of_the_peer_counts_whatever_the_status(status: int) -> None:
    assert read_response(status, "3", ERROR, 7) == RefusedByPeer(-32001, "not found", status, 3)


@pytest.mark.parametrize("opening", [b'"id": null, ', b""])
def test_response_without_an_id_is_the_answer_to_the_only_request(opening: bytes) -> None:
    body = b'{"jsonrpc": "2.0", %b"error": {"code": -32700, "message": "parse"}}' % opening
    assert read_response(200, None, body, 7) == RefusedByPeer(-32700, "parse")
    body = b'{"jsonrpc": "2.0", %b"result": {"task": {"id": "t"}}}' % opening
    assert read_response(200, None, body, 7) == Answered({"task": {"id": "t"}})


@pytest.mark.parametrize("answered", [7, 8, "7", None, "an id of its own"])
def test_event_answers_the_request_of_its_stream_whatever_its_id(answered: object) -> None:
    body = orjson.dumps({"jsonrpc": "2.0", "id": answered, "result": {"task": {"id": "t"}}})
    assert JsonRpc().read_event(body) == Answered({"task": {"id": "t"}})


@pytest.mark.parametrize("status", [200, 201, 202, 203, 299])
def test_result_under_any_status_of_success_is_the_answer(status: int) -> None:
    assert read_response(status, None, RESULT, 7) == Answered({"task": {"id": "t"}})


@pytest.mark.parametrize("status", [300, 400, 500, 503])
def test_result_under_an_error_status_is_not_believed(status: int) -> None:
    assert not isinstance(read_response(status, None, RESULT, 7), Answered)


@pytest.mark.parametrize("answered", [8, "7", [7], {"a": 1}])
def test_result_of_another_request_is_malformed(answered: object) -> None:
    body = orjson.dumps({"jsonrpc": "2.0", "id": answered, "result": {}})
    assert isinstance(read_response(200, None, body, 7), Malformed)


def test_response_with_result_and_error_is_malformed() -> None:
    body = orjson.dumps(
        {"jsonrpc": "2.0", "id": 7, "result": {}, "error": {"code": 1, "message": "x"}}
    )
    assert isinstance(read_response(200, None, body, 7), Malformed)


@pytest.mark.parametrize(
    ("given_text", "wait_s"),
    [
        ("0", 0),
        (" 12 ", 12),
        ("86401", 86_400),
        ("9" * 400, 86_400),
        ("-1", None),
        ("1.5", None),
        ("²", None),
        ("", None),
        ("Fri, 20 Nov 2026 17:00:00 GMT", None),
    ],
)
def test_wait_is_whole_seconds_within_a_day(given_text: str, wait_s: int | None) -> None:
    outcome = read_response(503, given_text, b"", 7)
    assert isinstance(outcome, RefusedByPeer)
    assert outcome.retry_after_s == wait_s


def test_long_error_text_and_long_garbage_are_cut() -> None:
    body = orjson.dumps({"jsonrpc": "2.0", "id": 7, "error": {"code": 1, "message": "x" * 9999}})
    refused = read_response(200, None, body, 7)
    assert isinstance(refused, RefusedByPeer)
    assert len(refused.message) == 2000
    malformed = read_response(200, None, b"y" * 9999, 7)
    assert isinstance(malformed, Malformed)
    assert len(malformed.raw) == 4096


@given(depth=st.integers(0, 100), opening=st.sampled_from([b"[", b'{"a":']), bushy=st.booleans())
def test_depth_is_judged_exactly(depth: int, opening: bytes, *, bushy: bool) -> None:
    closing = b"]" if opening == b"[" else b"}"
    deep = opening * depth + b"1" + closing * depth
    body = b"[" + deep + (b",[[],{}]" * 40 if bushy else b"") + b"]"
    try:
        parse_json(body)
        accepted = True
    except NotJson:
        accepted = False
    assert accepted is (depth + 1 <= 64)


@given(st.binary(max_size=200), st.integers(100, 599))
def test_no_bytes_make_it_raise_and_garbage_is_never_an_answer(raw: bytes, status: int) -> None:
    assert not isinstance(read_response(status, None, raw, 7), Answered)

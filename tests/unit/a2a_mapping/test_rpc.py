"""The JSON-RPC envelope, the body limits and the protocol version."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping.errors import InvalidRequest
from passerelle.a2a_mapping.members import read_json, read_object
from passerelle.a2a_mapping.rpc import Method, read_method, read_rpc, render_result
from passerelle.a2a_mapping.version import judge_version
from passerelle.core.errors import (
    InvalidInput,
    MalformedBody,
    PasserelleError,
    UnknownMethod,
    VersionNotSupported,
)


def _body(**members: object) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {}} | members)


@pytest.mark.parametrize("rpc_id", ["a", 7, -1, None, ""])
def test_an_envelope_gives_its_id_method_and_params(rpc_id: str | int | None) -> None:
    assert read_rpc(_body(id=rpc_id, params={"id": "t"})) == (rpc_id, "GetTask", {"id": "t"})


def test_absent_params_are_no_params() -> None:
    assert read_rpc(b'{"jsonrpc":"2.0","id":1,"method":"ListTasks"}') == (1, "ListTasks", {})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"[]", "body"),
        (b"[" + _body() + b"]", "body"),
        (b'"text"', "body"),
        (_body(jsonrpc="1.0"), "jsonrpc"),
        (_body(method=3), "method"),
        (_body(method=""), "method"),
        (_body(id=1.5), "id"),
        (_body(id=True), "id"),
        (_body(id=[1]), "id"),
        (b'{"jsonrpc":"2.0","method":"GetTask"}', "id"),
    ],
)
def test_invalid_request_is_refused_and_names_the_field(body: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_rpc(body)
    assert caught.value.field == field


def test_a_refused_envelope_still_gives_the_id_that_could_be_read() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_rpc(_body(id="seven", method=None))
    assert caught.value.rpc_id == "seven"


def test_params_by_position_are_refused_as_params() -> None:
    with pytest.raises(InvalidInput) as caught:
        read_rpc(_body(params=["t"]))
    assert caught.value.field == "params"
    assert not isinstance(caught.value, InvalidRequest)


@pytest.mark.parametrize("body", [b"", b"{", b"{'a':1}", b"\xff", b"nul", b'{"a":NaN}'])
def test_bytes_that_are_no_json_are_a_malformed_body(body: bytes) -> None:
    with pytest.raises(MalformedBody) as caught:
        read_rpc(body)
    assert not isinstance(caught.value, InvalidRequest)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        read_rpc(body)
    except PasserelleError:
        return


def test_nesting_is_bounded_at_sixty_four_levels() -> None:
    assert read_json(b"[" * 64 + b"]" * 64)
    with pytest.raises(MalformedBody):
        read_json(b"[" * 65 + b"]" * 65)
    with pytest.raises(MalformedBody):
        read_json(b'{"a":' * 500 + b"1" + b"}" * 500)


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert read_json(b"[" + b",".join([b"[]"] * 200) + b"]") == [[]] * 200
    assert read_json(b'{"a":{},"b":"' + b"[" * 200 + b'"}') == {"a": {}, "b": "[" * 200}


def test_an_empty_body_is_an_empty_object() -> None:
    assert read_object(b"") == read_object(b" \n") == {}
    with pytest.raises(MalformedBody):
        read_object(b"[]")


@pytest.mark.parametrize("method", list(Method))
def test_each_served_method_is_found_by_its_name(method: Method) -> None:
    assert read_method(method.value) is method


@pytest.mark.parametrize("name", ["message/send", "tasks/get", "message.send", "sendMessage", "x"])
def test_any_other_name_is_no_method(name: str) -> None:
    with pytest.raises(UnknownMethod):
        read_method(name)


def test_the_error_for_a_mistyped_method_suggests_the_right_name() -> None:
    with pytest.raises(UnknownMethod, match=r"'sendMessage'; did you mean SendMessage\?$"):
        read_method("sendMessage")


def test_a_result_is_wrapped_with_the_id_of_its_request() -> None:
    assert render_result("a", {"task": {}}) == {"jsonrpc": "2.0", "id": "a", "result": {"task": {}}}


@pytest.mark.parametrize(
    ("header", "query", "version"),
    [
        ("1.0", None, "1.0"),
        (None, "1.0", "1.0"),
        (" 1.0 ", "0.3", "1.0"),
        ("1.0.3", None, "1.0"),
        (None, None, "0.3"),
        ("", "", "0.3"),
        ("0.3", None, "0.3"),
        ("0.3.0", "1.0", "0.3"),
    ],
)
def test_version_is_read_from_header_or_query(
    header: str | None, query: str | None, version: str
) -> None:
    assert judge_version(header, query) == version


@pytest.mark.parametrize(
    ("header", "query"),
    [
        ("1", None),
        ("1.1", None),
        ("2.0", None),
        ("v1.0", None),
        ("1.0.0.0", None),
        ("１.0", None),  # noqa: RUF001 - a digit that is not ASCII
    ],
)
def test_any_other_version_is_refused(header: str | None, query: str | None) -> None:
    with pytest.raises(VersionNotSupported):
        judge_version(header, query)

"""Frames of the WebSocket binding: how they are read, and what is written next to a result."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping.cards import AgentAddress, PublicEdge, list_interfaces
from passerelle.a2a_mapping.extensions import RESUME
from passerelle.a2a_mapping.socket_frames import (
    BINDING,
    CallFrame,
    CancelFrame,
    RefusedFrame,
    read_frame,
    write_end,
    write_item,
)
from passerelle.core.wire.json import JsonObject

EVENT = b'{"jsonrpc":"2.0","id":7,"result":{"task":{}}}'


def read(**members: object) -> CallFrame | CancelFrame | RefusedFrame:
    return read_frame(orjson.dumps({"jsonrpc": "2.0", "id": 7, **members}).decode())


def test_a_request_without_parameters_of_its_own_passes_byte_for_byte() -> None:
    text = '{"jsonrpc":"2.0", "id":7,"method":"GetTask","params":{"id":"t","metadata":{"a":1}}}'
    assert read_frame(text) == CallFrame(7, text.encode())


def test_service_parameters_are_taken_out_and_others_are_left() -> None:
    said = {"A2A-Extensions": RESUME, "Idempotency-Key": "k", "Authorization": "Bearer x", "n": 1}
    frame = read(method="GetTask", params={"id": "t", "metadata": {"a2a-service-parameters": said}})
    assert isinstance(frame, CallFrame)
    assert frame.headers == {"a2a-extensions": RESUME, "idempotency-key": "k"}
    assert orjson.loads(frame.body)["params"] == {"id": "t"}
    kept = {"mine": 1, "a2a-service-parameters": {"traceparent": "00-1"}}
    frame = read(method="GetTask", params={"metadata": kept})
    assert isinstance(frame, CallFrame)
    assert orjson.loads(frame.body)["params"] == {"metadata": {"mine": 1}}


@pytest.mark.parametrize("value", ["a\r\nAuthorization: x", "€", 7, ["x"]])
@pytest.mark.parametrize("name", ["traceparent", "Idempotency-Key", "A2A-Extensions"])
def test_a_parameter_that_no_header_could_carry_is_refused(name: str, value: object) -> None:
    frame = read(method="GetTask", params={"metadata": {"a2a-service-parameters": {name: value}}})
    assert isinstance(frame, RefusedFrame)
    assert (frame.id, frame.error.field) == (7, f"metadata.a2a-service-parameters.{name}")


@pytest.mark.parametrize("said", [{}, {"Idempotency-Key": None}, {"Unknown": 7}, None])
def test_parameters_that_say_nothing_are_taken_out(said: object) -> None:
    frame = read(method="GetTask", params={"id": "t", "metadata": {"a2a-service-parameters": said}})
    assert isinstance(frame, CallFrame)
    assert (frame.headers, orjson.loads(frame.body)["params"]) == ({}, {"id": "t"})


@pytest.mark.parametrize(("after", "headers"), [("c.1.d", {"last-event-id": "c.1.d"}), (None, {})])
def test_the_cursor_of_a_subscriber_is_taken_out(after: object, headers: dict[str, str]) -> None:
    frame = read(method="SubscribeToTask", params={"id": "t", "after": after})
    assert isinstance(frame, CallFrame)
    assert frame.headers == headers
    assert orjson.loads(frame.body)["params"] == {"id": "t"}


@pytest.mark.parametrize("after", [7, "€", "a\nb"])
def test_a_cursor_that_is_no_text_of_a_header_is_refused(after: object) -> None:
    frame = read(method="SubscribeToTask", params={"id": "t", "after": after})
    assert isinstance(frame, RefusedFrame)
    assert frame.error.field == "after"


@pytest.mark.parametrize("other", ['"after":"x",', ""])
def test_a_frame_that_is_nested_too_deep_is_refused_by_its_id(other: str) -> None:
    frame = read_frame('{"id":7,"params":{' + other + '"deep":' + "[" * 300 + "]" * 300 + "}}")
    assert isinstance(frame, RefusedFrame)
    assert (frame.id, frame.error.stable_code) == (7, "malformed_body")


@pytest.mark.parametrize("rpc_id", [7, "x", None, True, [1]])
def test_cancel_stream_names_the_request_whose_stream_it_leaves(rpc_id: object) -> None:
    known = rpc_id if isinstance(rpc_id, str) or type(rpc_id) is int else None
    assert read(method="cancelStream", params={"id": rpc_id}) == CancelFrame(known)


@pytest.mark.parametrize("text", ["no json", "[1]", '"x"'])
def test_frame_that_is_no_request_passes_unchanged(text: str) -> None:
    assert read_frame(text) == CallFrame(None, text.encode())


@given(st.text(max_size=80))
def test_no_text_makes_the_reader_raise(text: str) -> None:
    assert isinstance(read_frame(text), CallFrame)


def test_an_item_has_a_cursor_only_for_callers_that_can_resume() -> None:
    assert write_item(EVENT, "c.1.d", {}, is_first=True) == EVENT.decode()
    active = {"a2a-extensions": RESUME, "a2a-stream-resumed": "gap"}
    first: JsonObject = orjson.loads(write_item(EVENT, "c.1.d", active, is_first=True))
    assert (first["cursor"], first["resumed"]) == ("c.1.d", "gap")
    later: JsonObject = orjson.loads(write_item(EVENT, "c.2.d", active, is_first=False))
    assert (later["cursor"], "resumed" in later) == ("c.2.d", False)
    fresh: JsonObject = orjson.loads(
        write_item(EVENT, "c.1.d", {"a2a-extensions": RESUME}, is_first=True)
    )
    assert "resumed" not in fresh


def test_the_end_of_a_stream_names_its_request() -> None:
    assert orjson.loads(write_end("x")) == {"jsonrpc": "2.0", "id": "x", "streamEnd": True}


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("https://gw.example/agents/echo", "wss://gw.example/agents/echo/ws"),
        ("http://127.0.0.1:8080/agents/echo/acme", "ws://127.0.0.1:8080/agents/echo/acme/ws"),
        ("/agents/echo", "/agents/echo/ws"),
    ],
)
def test_a_card_names_the_socket_of_an_agent_once_and_for_this_version_alone(
    base: str, url: str
) -> None:
    listed = list_interfaces(AgentAddress("echo", "http://peer", base), PublicEdge(sockets=True))
    sockets = [one for one in listed if isinstance(one, dict) and one["protocolBinding"] == BINDING]
    assert sockets == [{"url": url, "protocolBinding": BINDING, "protocolVersion": "1.0"}]

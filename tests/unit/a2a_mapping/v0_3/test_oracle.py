"""The gateway's conversions agree with the SDK's, in both directions and both spellings."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given, settings

from passerelle.a2a_mapping.rpc import Method
from passerelle.a2a_mapping.v0_3.calls import read_call, write_params
from passerelle.a2a_mapping.v0_3.forms import Form
from passerelle.a2a_mapping.v0_3.push import read_task_config, write_task_config
from passerelle.a2a_mapping.v0_3.responses import read_response, write_response
from passerelle.core.wire.json import Json, JsonObject
from tests.unit.a2a_mapping.v0_3 import oracle, shapes

FEW = settings(max_examples=60, deadline=None)
# ProtoJSON leaves out what has its default value, and a field that is a message of its own but is empty does not.
_DEFAULTS: tuple[Json, ...] = ("", False, UNSPECIFIED := "TASK_STATE_UNSPECIFIED")


def trim(value: Json, name: str = "") -> Json:
    """Without members at their default value, which ProtoJSON may leave out; content of users stays."""
    if name in {"metadata", "data"}:
        return _soften(value)
    if isinstance(value, list):
        return [trim(item) for item in value]
    if not isinstance(value, dict):
        return value
    trimmed = {key: trim(item, key) for key, item in value.items()}
    return {
        key: item
        for key, item in trimmed.items()
        if (
            not any(item is default or item == default for default in ("", UNSPECIFIED))
            and item is not False
        )
        or key in {"text", "raw", "data"}
    }


def _soften(value: Json) -> Json:
    """Whole doubles and integers are the same number; a protobuf knows only doubles."""
    if isinstance(value, list):
        return [_soften(item) for item in value]
    if isinstance(value, dict):
        return {key: _soften(item) for key, item in value.items()}
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def drop_final(response: JsonObject) -> JsonObject:
    """The SDK ends a turn of 0.3 at terminal states only; we end it where it asks, too, as agents of 0.3 did."""
    event = response.get("statusUpdate", response)
    assert isinstance(event, dict)
    status = event.get("status")
    state = status.get("state") if isinstance(status, dict) else None
    if state in {"input-required", "TASK_STATE_INPUT_REQUIRED"}:
        event.pop("final", None)
    return response


@FEW
@given(shapes.responses)
def test_responses_are_written_as_the_sdk_writes_them(response: JsonObject) -> None:
    kind = write_response(response, Form.KIND)
    assert trim(drop_final(kind)) == trim(drop_final(oracle.write_kind(response)))
    proto = write_response(response, Form.PROTO)
    assert trim(drop_final(proto)) == trim(drop_final(oracle.write_proto(response)))


@FEW
@given(shapes.responses)
def test_responses_are_read_as_the_sdk_reads_them(response: JsonObject) -> None:
    kind = write_response(response, Form.KIND)
    assert trim(read_response(kind, Form.KIND)) == trim(oracle.read_kind(kind))
    proto = write_response(response, Form.PROTO)
    assert trim(read_response(proto, Form.PROTO)) == trim(oracle.read_proto(proto))


@FEW
@given(shapes.responses)
@pytest.mark.parametrize("form", list(Form))
def test_responses_survive_the_way_there_and_back(form: Form, response: JsonObject) -> None:
    assert read_response(write_response(response, form), form) == response


@FEW
@given(shapes.sends)
def test_sends_are_written_and_read_as_the_sdk_does_it(params: JsonObject) -> None:
    written = write_params(Method.SEND_MESSAGE, params, Form.KIND)
    assert trim(written) == trim(oracle.write_send(params) | _blocking(params, written))
    read = read_call(Method.SEND_MESSAGE, written, Form.KIND).params
    assert trim(read) == trim(oracle.read_send(written))


def _blocking(params: JsonObject, written: JsonObject) -> JsonObject:
    """The gateway always states whether it blocks, the SDK only if the caller did."""
    return {} if "configuration" in params else {"configuration": written["configuration"]}


@FEW
@given(shapes.sends)
@pytest.mark.parametrize("form", list(Form))
def test_sends_survive_the_way_there_and_back(form: Form, params: JsonObject) -> None:
    there = write_params(Method.SEND_MESSAGE, params, form)
    back = read_call(Method.SEND_MESSAGE, there, form).params
    given_ = cast("JsonObject", params.get("configuration", {}))
    assert back == params | {"configuration": {"returnImmediately": False, **given_}}


@FEW
@given(shapes.configs)
def test_push_configs_are_written_and_read_as_the_sdk_does_it(config: JsonObject) -> None:
    written = write_task_config(config, Form.KIND)
    assert written == oracle.write_config(config)
    assert read_task_config(written) == oracle.read_config(written) == config


@FEW
@given(shapes.configs)
def test_push_configs_survive_their_resource_name(config: JsonObject) -> None:
    assert read_task_config(write_task_config(config, Form.PROTO)) == config

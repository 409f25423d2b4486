"""The error tables, the two envelopes, and the errors of peers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import cast

import pytest
from a2a.utils import errors as sdk

from passerelle.a2a_mapping.envelopes import (
    BAD_REQUEST,
    ERROR_INFO,
    list_details,
    render_rpc_error,
    render_status,
)
from passerelle.a2a_mapping.errors import (
    KINDS,
    ROWS,
    ErrorKind,
    InvalidRequest,
    classify,
    classify_native,
)
from passerelle.a2a_mapping.identity import make_relabel
from passerelle.a2a_mapping.peer_errors import (
    SENTENCES,
    NativeError,
    make_refusal,
)
from passerelle.a2a_mapping.v0_3.responses import TYPES
from passerelle.core import errors
from passerelle.core.wire.json import JsonObject

_IDS = make_relabel("task_2f0017", "ctx_2f0018", {"remote-0001": "task_2f0017"})


def _list_classes() -> Iterator[type[errors.PasserelleError]]:
    for _, member in inspect.getmembers(errors, inspect.isclass):
        if issubclass(member, errors.PasserelleError):
            yield member


def test_every_error_class_has_a_kind() -> None:
    assert set(_list_classes()) <= set(KINDS)


def test_every_kind_has_a_row() -> None:
    assert set(ROWS) == set(ErrorKind)


def test_every_kind_that_a_peer_can_cause_has_a_sentence() -> None:
    assert {classify_native(code) for code in range(-32768, 0)} == set(SENTENCES)


_SDK_NAMES = {
    "TaskNotFoundError": ErrorKind.TASK_NOT_FOUND,
    "TaskNotCancelableError": ErrorKind.TASK_NOT_CANCELABLE,
    "PushNotificationNotSupportedError": ErrorKind.PUSH_NOTIFICATION_NOT_SUPPORTED,
    "UnsupportedOperationError": ErrorKind.UNSUPPORTED_OPERATION,
    "ContentTypeNotSupportedError": ErrorKind.CONTENT_TYPE_NOT_SUPPORTED,
    "InvalidAgentResponseError": ErrorKind.INVALID_AGENT_RESPONSE,
    "ExtendedAgentCardNotConfiguredError": ErrorKind.EXTENDED_AGENT_CARD_NOT_CONFIGURED,
    "ExtensionSupportRequiredError": ErrorKind.EXTENSION_SUPPORT_REQUIRED,
    "VersionNotSupportedError": ErrorKind.VERSION_NOT_SUPPORTED,
    "InvalidParamsError": ErrorKind.INVALID_PARAMS,
    "InvalidRequestError": ErrorKind.INVALID_REQUEST,
    "InternalError": ErrorKind.INTERNAL,
}


@pytest.mark.parametrize(("name", "kind"), _SDK_NAMES.items())
def test_our_rows_are_those_of_the_sdk(name: str, kind: ErrorKind) -> None:
    theirs = cast("type[sdk.A2AError]", getattr(sdk, name))
    mapping = sdk.A2A_ERROR_MAPPING[theirs]
    row = ROWS[kind]
    assert (row.http, row.grpc, kind.value) == mapping
    assert row.jsonrpc == sdk.JSON_RPC_ERROR_CODE_MAP[theirs]


def test_parse_and_method_errors_have_the_codes_of_json_rpc() -> None:
    assert ROWS[ErrorKind.PARSE_ERROR].jsonrpc == -32700
    assert ROWS[ErrorKind.METHOD_NOT_FOUND].jsonrpc == -32601


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.NotFound("task", "t"), ErrorKind.TASK_NOT_FOUND),
        (errors.NotFound("agent", "a"), ErrorKind.NOT_FOUND),
        (errors.MalformedBody("body", "x"), ErrorKind.PARSE_ERROR),
        (InvalidRequest("id", "x"), ErrorKind.INVALID_REQUEST),
        (errors.InvalidInput("message", "x"), ErrorKind.INVALID_PARAMS),
        (errors.PeerRefused("no", -32001), ErrorKind.TASK_NOT_FOUND),
        (errors.PeerRefused("no", -32004), ErrorKind.UNSUPPORTED_OPERATION),
        (errors.PeerRefused("no", -32601), ErrorKind.UNSUPPORTED_OPERATION),
        (errors.PeerRefused("no", -32603), ErrorKind.INTERNAL),
        (errors.PeerRefused("no", 12), ErrorKind.INTERNAL),
        (errors.PeerRefused("no", -32006), ErrorKind.INVALID_AGENT_RESPONSE),
    ],
)
def test_an_error_shows_as_its_kind(error: errors.PasserelleError, kind: ErrorKind) -> None:
    assert classify(error) is kind


def test_an_unlisted_error_class_is_classified_as_its_base_class() -> None:
    class Newer(errors.NotCancelable):
        pass

    assert classify(Newer("late")) is ErrorKind.TASK_NOT_CANCELABLE


def test_a_json_rpc_error_is_http_200_and_names_the_field() -> None:
    answer = render_rpc_error(errors.InvalidInput("message.role", "must be ROLE_USER"), 7)
    assert answer.http_status == 200
    assert answer.body == {
        "jsonrpc": "2.0",
        "id": 7,
        "error": {
            "code": -32602,
            "message": "message.role: must be ROLE_USER",
            "data": [
                {
                    "@type": ERROR_INFO,
                    "reason": "INVALID_PARAMS",
                    "domain": "a2a-protocol.org",
                    "metadata": {"field": "message.role", "reason": "must be ROLE_USER"},
                },
                {
                    "@type": BAD_REQUEST,
                    "fieldViolations": [
                        {"field": "message.role", "description": "must be ROLE_USER"}
                    ],
                },
            ],
        },
    }


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.Unauthenticated("no"), 401),
        (errors.CredentialExpired("no"), 401),
        (errors.Forbidden("no"), 403),
        (errors.StoreUnavailable("down", "no"), 503),
        (errors.NotFound("task", "t"), 200),
        (errors.InvalidAgentResponse("no"), 200),
        (errors.TooLarge("body", 5), 200),
    ],
)
def test_only_transport_errors_change_the_http_status_of_json_rpc(
    error: errors.PasserelleError, status: int
) -> None:
    assert render_rpc_error(error, None).http_status == status


def test_an_unavailable_store_sets_retry_after() -> None:
    error = errors.StoreUnavailable("down", "no", retry_after_s=3)
    assert render_rpc_error(error, 1).headers == {"Retry-After": "3"}
    assert render_status(error).headers == {"Retry-After": "3"}
    assert render_status(errors.NotFound("task", "t")).headers == {}


@pytest.mark.parametrize("error_class", list(_list_classes()))
def test_a_status_has_the_code_of_its_http_answer(
    error_class: type[errors.PasserelleError],
) -> None:
    kind = KINDS[error_class]
    assert 400 <= ROWS[kind].http < 600
    answer = render_status(errors.NotFound("task", "t"))
    body = cast("JsonObject", answer.body["error"])
    assert body["code"] == answer.http_status == 404
    assert body["status"] == "NOT_FOUND"


def test_a_wrong_content_type_is_415_only_over_http_json() -> None:
    error = errors.ContentTypeNotSupported("text/html")
    assert render_status(error).http_status == 415
    assert render_rpc_error(error, 1).http_status == 200


def test_our_own_errors_have_our_domain() -> None:
    body = cast("JsonObject", render_status(errors.Forbidden("no")).body["error"])
    details = cast("list[JsonObject]", body["details"])
    assert details[0]["domain"] == "passerelle"


@pytest.mark.requirement("A2A-12")
def test_a_peer_error_names_our_task_and_not_the_remote_one() -> None:
    refusal = make_refusal("echo", NativeError(-32002, "task remote-0001 has ended"), _IDS)
    assert isinstance(refusal, errors.PeerRefused)
    assert refusal.message == "task task_2f0017 has ended"
    assert classify(refusal) is ErrorKind.TASK_NOT_CANCELABLE


def test_an_internal_error_of_a_peer_is_one_of_its_own() -> None:
    refusal = make_refusal("echo", NativeError(-32603, ""), _IDS)
    assert refusal.message == SENTENCES[ErrorKind.INTERNAL]
    assert classify(refusal) is ErrorKind.INTERNAL


@pytest.mark.parametrize(
    ("native", "shown"),
    [
        (-32603, -32603),
        (-32050, -32050),
        (-32099, -32099),
        (4711, 4711),
        (0, 0),
        (-32006, -32006),
        (-32001, -32001),
        # What these state about a request would be untrue of the caller's.
        (-32700, -32603),
        (-32601, -32004),
        (-32500, -32603),
    ],
)
def test_the_code_of_an_agent_is_passed_on_where_it_is_its_own(native: int, shown: int) -> None:
    body = render_rpc_error(errors.PeerRefused("no", native), 1).body
    assert cast("JsonObject", body["error"])["code"] == shown


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, "agent 'echo' refused the call with HTTP 400"),
        (401, "agent 'echo' did not accept the credential of the gateway (HTTP 401)"),
        (403, "agent 'echo' does not allow the call (HTTP 403)"),
        (500, "agent 'echo' failed with HTTP 500"),
    ],
)
def test_a_bare_status_has_a_sentence_of_its_own(status: int, text: str) -> None:
    native = NativeError(-32603, f"HTTP {status}", http_status=status)
    refusal = make_refusal("echo", native, _IDS)
    assert (refusal.message, refusal.details) == (text, {"http_status": status})


@pytest.mark.requirement("A2A-12")
def test_details_of_an_agent_pass_without_what_only_it_knows() -> None:
    info: JsonObject = {
        "@type": ERROR_INFO,
        "reason": "NO_MORE_CREDIT",
        "domain": "agent.example",
        "metadata": {"plan": "free", "task": "remote-0001", "host": "10.0.0.17:8080"},
    }
    bad: JsonObject = {
        "@type": BAD_REQUEST,
        "fieldViolations": [
            {"field": "message.parts", "description": "one too many"},
            {"field": "http://internal/x", "description": "hidden"},
        ],
    }
    other: JsonObject = {"@type": "type.googleapis.com/google.rpc.Help", "links": ["http://in"]}
    ours: JsonObject = {"@type": ERROR_INFO, "reason": "INTERNAL_ERROR", "domain": "x"}
    refusal = make_refusal("echo", NativeError(-32603, "no", (info, bad, other, ours)), _IDS)
    assert list_details(refusal)[1:] == [
        {**info, "metadata": {"plan": "free", "task": "task_2f0017"}},
        {
            "@type": BAD_REQUEST,
            "fieldViolations": [{"field": "message.parts", "description": "one too many"}],
        },
    ]


@pytest.mark.requirement("A2A-12")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Task 7f9c2d9e-4b52-4a44-9d0e-5a2c4d6b8a10 not found", "Task … not found"),
        ("see http://internal/errors", "see …"),
        ("worker agent-pool-0042 failed", "worker … failed"),
        ("remote-00012 is unknown", "… is unknown"),
        ("error at 10.0.0.17:8080", "error at …"),
        ("7f9c2d9e-4b52-4a44-9d0e-5a2c4d6b8a10", SENTENCES[ErrorKind.TASK_NOT_FOUND]),
    ],
)
def test_an_id_of_the_agent_is_hidden_in_an_error_text(text: str, shown: str) -> None:
    assert make_refusal("echo", NativeError(-32001, text), _IDS).message == shown


def test_error_text_may_contain_ids_that_the_caller_sent() -> None:
    native = NativeError(-32602, "message tck-000123 is bad")
    assert (
        make_refusal("echo", native, _IDS, own={"tck-000123"}).message
        == "message tck-000123 is bad"
    )


def test_every_kind_has_a_name_for_clients_of_0_3() -> None:
    assert {row.jsonrpc for row in ROWS.values()} == set(TYPES)

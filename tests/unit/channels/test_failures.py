"""Errors on the edge: each class of the gateway has a form as an answer and as the end of a connection."""

from __future__ import annotations

import inspect

import pytest

from passerelle.channels.calls import end_connection, refuse_call
from passerelle.core import errors
from passerelle.core.errors import (
    ActionClosed,
    CallerError,
    CredentialExpired,
    Forbidden,
    Limited,
    PasserelleError,
    RemoteError,
    StoreUnavailable,
    Unauthenticated,
)
from passerelle.core.wire.json import JsonObject
from passerelle.protocol.closing import CloseCode, fit_reason, is_retryable

CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, PasserelleError)
]


def make(kind: type[PasserelleError]) -> PasserelleError:
    """An instance without its own constructor, whose arguments differ from class to class."""
    error = kind.__new__(kind)
    PasserelleError.__init__(error, "it failed", field="x")
    if isinstance(error, RemoteError | Limited):
        error.retry_after_s = 7
    if isinstance(error, Limited):
        error.kind = "quota"
    if isinstance(error, ActionClosed):
        winner: JsonObject = {"optionId": "reject_once"}
        error.state, error.winner = "already_resolved", winner
    if isinstance(error, errors.StaleAnswer):
        error.why = "stale_revision"
    if isinstance(error, errors.GraphLimit):
        error.details["limit"] = "cycle"
    return error


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_gateway_error_has_a_form_on_a_channel(kind: type[PasserelleError]) -> None:
    error = make(kind)
    answer = refuse_call("8", error)
    assert (answer.id, answer.code) == ("8", error.stable_code)
    assert answer.retry_s == (7 if issubclass(kind, RemoteError | Limited) else None)
    code, notice = end_connection(error, "hello")
    assert notice.fatal
    assert is_retryable(code) is (
        kind in {Limited, CredentialExpired} or not issubclass(kind, CallerError)
    )


@pytest.mark.requirement("I7")
def test_the_answer_of_a_loser_names_the_winner() -> None:
    answer = refuse_call("8", make(ActionClosed))
    assert answer.data is not None
    assert answer.data["winner"] == {"optionId": "reject_once"}


def test_unauthenticated_and_forbidden_have_different_close_codes() -> None:
    assert end_connection(Unauthenticated("no"), "hello")[0] is CloseCode.BAD_CREDENTIALS
    assert end_connection(Forbidden("no"), "hello")[0] is CloseCode.FORBIDDEN
    unavailable = StoreUnavailable("x", "no", retry_after_s=2)
    code, notice = end_connection(unavailable, "hello")
    assert (code, notice.retry_s) == (CloseCode.STORE_UNAVAILABLE, 2)


@pytest.mark.parametrize("code", list(CloseCode))
def test_the_range_of_a_close_code_determines_whether_to_reconnect(code: CloseCode) -> None:
    assert is_retryable(code) is (4000 <= code < 4500)


@pytest.mark.parametrize(
    ("code", "again"),
    [(1000, False), (1001, False), (1006, True), (1009, False), (1011, True), (1012, True)],
)
def test_standard_codes_are_read_as_well(code: int, again: bool) -> None:  # noqa: FBT001
    assert is_retryable(code) is again


def test_a_close_reason_fits_its_frame_on_a_character_boundary() -> None:
    assert len(fit_reason("é" * 100).encode()) <= 123
    assert fit_reason("draining") == "draining"

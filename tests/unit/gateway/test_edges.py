"""Each edge has a row for every error class, and its rows agree with the public contract."""

from collections.abc import Iterator
from typing import Literal

import pytest

from passerelle.a2a_mapping import errors as a2a_errors
from passerelle.cli import exit_status
from passerelle.cli.exit_status import ExitStatus, find_exit_status
from passerelle.core import errors
from passerelle.gateway.http import problem


def every_class() -> list[type[errors.PasserelleError]]:
    return [errors.PasserelleError, *_below(errors.PasserelleError)]


def _below(kind: type[errors.PasserelleError]) -> Iterator[type[errors.PasserelleError]]:
    for child in kind.__subclasses__():
        if child.__module__ in {errors.__name__, a2a_errors.__name__}:
            yield child
            yield from _below(child)


@pytest.mark.parametrize("kind", every_class(), ids=lambda kind: kind.__name__)
def test_every_error_class_is_in_every_table(kind: type[errors.PasserelleError]) -> None:
    assert kind in problem.STATUSES
    assert kind in exit_status.STATUSES


def test_fault_of_the_caller_is_4xx_and_of_the_remote_5xx() -> None:
    ours = {errors.PasserelleError, errors.ConfigInvalid, errors.DirectoryInUse}
    # An agent that takes no more for now is passed on as it answered: 429 with Retry-After.
    passed_on = {errors.PeerBusy}
    for kind, status in problem.STATUSES.items():
        if kind not in ours | passed_on:
            assert status // 100 == (4 if issubclass(kind, errors.CallerError) else 5), kind


CLOSED: tuple[tuple[errors.ClosedState, int, ExitStatus], ...] = (
    ("already_resolved", 409, ExitStatus.ALREADY_RESOLVED),
    ("expired", 410, ExitStatus.CLOSED),
    ("cancelled", 410, ExitStatus.CLOSED),
    ("superseded", 410, ExitStatus.CLOSED),
)


@pytest.mark.parametrize(("state", "status", "ended"), CLOSED)
def test_late_answer_is_refused_by_how_the_question_was_closed(
    state: errors.ClosedState, status: int, ended: ExitStatus
) -> None:
    error = errors.ActionClosed(state, {"decidedBy": "ada"})
    assert problem.find_status(error) == status
    assert find_exit_status(error) == ended
    assert problem.describe(error)["winner"] == {"decidedBy": "ada"}


@pytest.mark.parametrize("why", ["stale_revision", "digest_mismatch"])
def test_stale_answer_is_a_failed_precondition(
    why: Literal["stale_revision", "digest_mismatch"],
) -> None:
    error = errors.StaleAnswer(why, "rev")
    assert problem.find_status(error) == 412
    assert error.stable_code == why


def test_class_without_a_row_has_the_status_of_its_ancestor() -> None:
    class Novel(errors.NotFound):
        pass

    error = Novel("thing", "x")
    assert problem.find_status(error) == 404
    assert find_exit_status(error) == ExitStatus.NOT_FOUND


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (errors.StoreUnavailable("loading", "no", 3), "3"),
        (errors.Draining("going"), "1"),
        (errors.PeerUnavailable("away", retry_after_s=7), "7"),
        (errors.PeerRefused("no", -32004), None),
        (errors.NotFound("task", "x"), None),
    ],
)
def test_retry_after_is_set_where_a_retry_can_help(
    error: errors.PasserelleError, seconds: str | None
) -> None:
    assert problem.render_problem(error).headers.get("Retry-After") == seconds


def test_problem_has_the_stable_code_and_the_field() -> None:
    answer = problem.render_problem(errors.InvalidInput("message.parts", "is required"))
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert bytes(answer.body) == (
        b'{"field":"message.parts","reason":"is required",'
        b'"type":"urn:passerelle:problem:invalid_input","title":"invalid input","status":400,'
        b'"code":"invalid_input","detail":"message.parts: is required"}'
    )

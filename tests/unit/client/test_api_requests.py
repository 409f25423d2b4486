"""The requests of the ``/v1`` client and how it reads answers, without a network."""

import httpx
import pytest

from passerelle.client import api_requests as requests
from passerelle.client.api_models import (
    ENDED_STATUSES,
    ApiError,
    read_approval,
    read_approval_page,
    read_task,
)
from passerelle.client.api_wire import make_arguments, may_try_again, pause_s, read_answer
from passerelle.client.items import Lost, Refused
from passerelle.core.task.status import ENDED
from passerelle.core.wire.json import JsonObject

APPROVAL: JsonObject = {
    "actionId": "act_1",
    "rev": 3,
    "digest": "sha256:d",
    "state": "pending",
    "delivery": "none",
    "options": [
        {"optionId": "no", "name": "No", "kind": "reject_once"},
        {"optionId": "pay", "name": "Pay", "kind": "allow_once"},
    ],
}


def test_statuses_that_end_a_task_are_those_of_the_gateway() -> None:
    assert {str(status) for status in ENDED} == ENDED_STATUSES


def test_ids_are_quoted_in_paths_and_absent_members_are_left_out() -> None:
    request = requests.change_task("a/b?c", "pause", None, "k")
    assert (request.path, request.body, request.key) == ("/v1/tasks/a%2Fb%3Fc/pause", {}, "k")
    listed = requests.list_tasks(None, "echo", 5, "")
    assert listed.query == {"pageSize": 5, "agent": "echo"}
    waits = requests.get_approval("act_1", 25, 3)
    assert make_arguments(waits)["timeout"] == 55.0


@pytest.mark.parametrize(
    ("option", "chosen"), [("allow", "pay"), ("deny", "no"), ("pay", "pay"), ("no", "no")]
)
def test_option_is_a_word_or_an_id(option: str, chosen: str) -> None:
    assert requests.choose_option(read_approval(APPROVAL), option) == chosen


def test_option_that_is_not_offered_is_named_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="offers no later; it offers no, pay"):
        requests.choose_option(read_approval(APPROVAL), "later")


def test_decision_names_what_was_read_and_its_id_is_the_key() -> None:
    asked = requests.decide_approval(read_approval(APPROVAL), "dec_1", "pay", None, "as agreed")
    assert asked.path == "/v1/approvals/act_1/decision"
    assert asked.body == {
        "rev": 3,
        "digest": "sha256:d",
        "decisionId": "dec_1",
        "optionId": "pay",
        "comment": "as agreed",
    }
    assert asked.key == "dec_1"


def test_decision_that_does_not_count_is_a_result_and_other_errors_are_raised() -> None:
    lost = ApiError(409, {"code": "already_resolved", "winner": {"decidedBy": "ada"}})
    assert requests.read_undecided(lost) == Lost({"decidedBy": "ada"})
    refused = ApiError(403, {"code": "self_approval", "detail": "this approval is for others"})
    assert requests.read_undecided(refused) == Refused(
        "self_approval", "this approval is for others"
    )
    with pytest.raises(ApiError):
        requests.read_undecided(ApiError(500, {}))


def test_error_has_code_text_and_retry_after() -> None:
    answer = httpx.Response(
        429, json={"code": "rate_limited", "detail": "too many"}, headers={"Retry-After": "7"}
    )
    with pytest.raises(ApiError) as caught:
        read_answer(requests.get_task("t"), answer)
    error = caught.value
    assert (error.status, error.code, error.retry_after_s, str(error)) == (
        429,
        "rate_limited",
        7.0,
        "too many",
    )
    with pytest.raises(ApiError, match="HTTP 502"):
        read_answer(requests.get_task("t"), httpx.Response(502, text="<html>"))
    with pytest.raises(ApiError):
        read_answer(requests.get_task("t"), httpx.Response(200, json=["no object"]))


@pytest.mark.parametrize(
    ("error", "helps"),
    [
        (ApiError(503, {}), True),
        (ApiError(429, {}), True),
        (ApiError(409, {}), False),
        (httpx.ConnectError("refused"), True),
        (httpx.ReadTimeout("late"), True),
    ],
)
def test_only_what_is_safe_and_can_help_is_sent_again(
    error: ApiError | httpx.TransportError, *, helps: bool
) -> None:
    assert may_try_again(requests.get_task("t"), error) is helps
    assert may_try_again(requests.cancel_task("t", None, "k"), error) is helps
    unkeyed = requests.ApiRequest("POST", "/v1/tickets", read_task)
    assert not may_try_again(unkeyed, error)


def test_pause_doubles_unless_the_gateway_sets_one() -> None:
    assert [pause_s(httpx.ConnectError(""), tries) for tries in (1, 2, 3, 9)] == [0.5, 1, 2, 30]
    assert pause_s(ApiError(429, {}, 3.0), 1) == 3.0
    assert pause_s(ApiError(429, {}, 9_000.0), 1) == 30.0


def test_pages_hold_pending_or_closed_approvals_and_their_token() -> None:
    page = read_approval_page({"pending": [APPROVAL], "nextPageToken": "t"})
    assert ([one.action_id for one in page.items], page.next_page_token) == (["act_1"], "t")
    assert len(read_approval_page({"closed": [APPROVAL, APPROVAL]}).items) == 2
    assert read_approval_page({"closed": []}).items == ()


def test_task_is_read_from_a_list_a_record_and_a_command() -> None:
    listed: JsonObject = {"taskId": "t", "status": "running", "agent": "echo", "version": 2}
    record: JsonObject = {"taskId": "t", "status": "running", "assignee": "echo", "version": 2}
    answers: list[JsonObject] = [listed, record, {"task": record, "version": 2}]
    for answer in answers:
        task = read_task(answer)
        assert (task.task_id, task.status, task.agent, task.version) == ("t", "running", "echo", 2)
        assert not task.is_ended
    assert read_task({"taskId": "t", "status": "timed_out"}).is_ended

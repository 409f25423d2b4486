"""Requests of ``/v1``: one for each call, with the reader of its response. Pure: this module sends nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar
from urllib.parse import quote

from passerelle.client.answers import compose_answer, read_result
from passerelle.client.api_models import (
    ApiApproval,
    ApiError,
    ApiTask,
    ListPage,
    SentTurn,
    read_approval,
    read_approval_page,
    read_sent_turn,
    read_task,
    read_task_page,
)
from passerelle.client.items import AnswerResult, Lost, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from passerelle.core.wire.json import Json, JsonObject

T = TypeVar("T")

_DECIDED = frozenset({403, 409, 410, 412, 422})
"""Statuses of a refused decision that are returned as a result."""


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[T]):
    """A request. ``key`` makes it safe to send again; ``wait_s`` is how long the gateway may delay the response."""

    method: str
    path: str
    read: Callable[[JsonObject], T]
    body: Mapping[str, Json] | None = None
    query: Mapping[str, str | int] = field(default_factory=dict[str, str | int])
    key: str | None = None
    wait_s: float = 0.0


def send_message(
    agent: str,
    text: str | None,
    message: JsonObject | None,
    task_id: str | None,
    session_id: str | None,
    context_id: str | None,
    key: str,
) -> ApiRequest[SentTurn]:
    """Sends a message to an agent: a text, or a whole A2A message."""
    body = _present(
        agent=agent,
        text=text,
        message=message,
        taskId=task_id,
        sessionId=session_id,
        contextId=context_id,
    )
    return ApiRequest("POST", "/v1/turns", read_sent_turn, body, key=key)


def create_task(
    agent: str, objective: str, title: str | None, priority: int | None, key: str
) -> ApiRequest[ApiTask]:
    """Creates a task without starting it."""
    body = _present(agent=agent, objective=objective, title=title, priority=priority)
    return ApiRequest("POST", "/v1/tasks", read_task, body, key=key)


def get_task(task_id: str) -> ApiRequest[ApiTask]:
    """Reads one task."""
    return ApiRequest("GET", _name("tasks", task_id), read_task)


def list_tasks(
    status: str | None, agent: str | None, page_size: int, page_token: str
) -> ApiRequest[ListPage[ApiTask]]:
    """Lists the caller's tasks, the latest change of status first."""
    query = _page(page_size, page_token, status=status, agent=agent)
    return ApiRequest("GET", "/v1/tasks", read_task_page, query=query)


def change_task(
    task_id: str, verb: str, version: int | None, key: str, **members: Json
) -> ApiRequest[ApiTask]:
    """A task command: start, pause, resume, retry."""
    body = _present(version=version, **members)
    return ApiRequest("POST", _name("tasks", task_id, verb), read_task, body, key=key)


def cancel_task(task_id: str, reason: str | None, key: str) -> ApiRequest[str]:
    """Cancels a task: ``requested``, ``already_cancelled``, ``already_done`` or ``not_found``."""
    path = _name("tasks", task_id, "cancel")
    return ApiRequest("POST", path, _read_outcome, _present(reason=reason), key=key)


def list_approvals(
    state: str, risk: str | None, task_id: str | None, page_size: int, page_token: str
) -> ApiRequest[ListPage[ApiApproval]]:
    """Lists approvals: pending ones, or those with an end state."""
    query = _page(page_size, page_token, state=state, risk=risk, taskId=task_id)
    return ApiRequest("GET", "/v1/approvals", read_approval_page, query=query)


def get_approval(action_id: str, wait_s: int, rev: int) -> ApiRequest[ApiApproval]:
    """Reads one approval, at once or after its next change."""
    query: dict[str, str | int] = {"wait": wait_s, "rev": rev} if wait_s else {}
    path = _name("approvals", action_id)
    return ApiRequest("GET", path, read_approval, query=query, wait_s=float(wait_s))


def decide_approval(
    approval: ApiApproval,
    decision_id: str,
    option_id: str,
    content: JsonObject | None,
    comment: str | None,
) -> ApiRequest[AnswerResult]:
    """Decides an approval as it was read."""
    path = _name("approvals", approval.action_id, "decision")
    composed = compose_answer(approval.raw, decision_id, option_id, content, comment)
    body = {name: value for name, value in composed.items() if name != "actionId"}
    return ApiRequest("POST", path, read_result, body, key=decision_id)


def choose_option(approval: ApiApproval, option: str) -> str:
    """Returns the id of an option: ``allow`` and ``deny`` select the first of that kind; other texts are ids.

    Raises:
        ValueError: the approval offers no such option.
    """
    match option:
        case "allow":
            found = approval.find_option("allow_once")
        case "deny":
            found = approval.find_option("reject_once", "reject_always", "cancel")
        case _:
            found = next((one for one in approval.options if one.option_id == option), None)
    if found is None:
        offered = ", ".join(one.option_id for one in approval.options)
        raise ValueError(f"the approval offers no {option}; it offers {offered}")
    return found.option_id


def read_undecided(error: ApiError) -> AnswerResult:
    """Converts the error of a refused decision to a result.

    Raises:
        ApiError: the error does not concern the decision itself.
    """
    winner = error.problem.get("winner")
    if isinstance(winner, dict):
        return Lost(winner)
    if error.status in _DECIDED:
        return Refused(error.code, str(error))
    raise error


def _read_outcome(answer: JsonObject) -> str:
    return str(answer.get("outcome", ""))


def _page(page_size: int, page_token: str, **filters: str | None) -> dict[str, str | int]:
    chosen = {name: value for name, value in filters.items() if value is not None}
    return {"pageSize": page_size, **({"pageToken": page_token} if page_token else {}), **chosen}


def _present(**members: Json) -> dict[str, Json]:
    return {name: value for name, value in members.items() if value is not None}


def _name(*steps: str) -> str:
    return "/".join(["/v1", *(quote(step, safe="") for step in steps)])

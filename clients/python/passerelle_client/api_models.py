"""Responses of ``/v1`` as values: tasks, turns, approvals, pages, and the error.

``raw`` is the whole response, including members that this version does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.wire.json import Json, JsonObject

T = TypeVar("T")

ENDED_STATUSES: Final = frozenset({"archived", "cancelled", "completed", "failed", "timed_out"})
"""Statuses of ended tasks. Only a retry changes them."""


class ApiError(Exception):
    """The gateway refused a request, or failed to execute it.

    ``status`` is the HTTP status, ``code`` the stable error code, ``field`` the invalid member, if any.
    ``retry_after_s``: seconds until a retry can help. ``problem`` is the whole response (RFC 9457).
    """

    def __init__(
        self, status: int, problem: Mapping[str, Json], retry_after_s: float | None = None
    ) -> None:
        self.status = status
        self.problem = problem
        self.code = str(problem.get("code", "unknown"))
        self.field = _text(problem, "field") or None
        self.retry_after_s = retry_after_s
        super().__init__(_text(problem, "detail") or f"HTTP {status}")


class WaitTimeout(Exception):
    """A task has not reached the wanted status in time; ``task`` is its current state. It continues."""

    def __init__(self, task: ApiTask) -> None:
        super().__init__(f"{task.task_id} is {task.status}")
        self.task = task


@dataclass(frozen=True, slots=True)
class SentTurn:
    """An accepted message. ``repeated``: the gateway had seen its idempotency key before."""

    session_id: str
    thread_id: str
    turn_id: str
    task_id: str
    context_id: str
    repeated: bool


@dataclass(frozen=True, slots=True)
class ApiTask:
    """A task. ``version`` counts its changes; pass it to a command that must fail if another change came first."""

    task_id: str
    status: str
    agent: str
    title: str
    version: int
    raw: JsonObject

    @property
    def is_ended(self) -> bool:
        """Returns whether the task has ended. Only a retry changes it."""
        return self.status in ENDED_STATUSES


@dataclass(frozen=True, slots=True)
class ApprovalOption:
    """One option of an approval; ``kind`` is for example allow_once, reject_once, answer, cancel."""

    option_id: str
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class ApiApproval:
    """An approval as it was read. A decision names its ``rev`` and ``digest``.

    ``state`` is the decision state, ``delivery`` the state of its delivery to the agent: none, pending, delivering,
    delivered, undeliverable.
    """

    action_id: str
    state: str
    delivery: str
    title: str
    risk: str
    agent: str
    task_id: str
    rev: int
    digest: str
    options: tuple[ApprovalOption, ...]
    raw: JsonObject

    def find_option(self, *kinds: str) -> ApprovalOption | None:
        """Returns the first option of one of the kinds, in the order of ``kinds``."""
        return next((one for kind in kinds for one in self.options if one.kind == kind), None)


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """Items of a list. ``next_page_token`` fetches the next page; it is empty on the last one."""

    items: tuple[T, ...]
    next_page_token: str


def read_sent_turn(answer: JsonObject) -> SentTurn:
    """Reads the response to a message."""
    return SentTurn(
        _text(answer, "sessionId"),
        _text(answer, "threadId"),
        _text(answer, "turnId"),
        _text(answer, "taskId"),
        _text(answer, "contextId"),
        answer.get("repeated") is True,
    )


def read_task(answer: JsonObject) -> ApiTask:
    """Reads a task, from a query or from the response to a command."""
    held = answer.get("task")
    task = held if isinstance(held, dict) and "taskId" in held else answer
    return ApiTask(
        _text(task, "taskId"),
        _text(task, "status"),
        _text(task, "agent") or _text(task, "assignee"),
        _text(task, "title"),
        _whole(task, "version"),
        task,
    )


def read_approval(answer: JsonObject) -> ApiApproval:
    """Reads an approval, from a query or from a list."""
    options = tuple(
        ApprovalOption(_text(one, "optionId"), _text(one, "name"), _text(one, "kind"))
        for one in read_list(answer, "options")
    )
    return ApiApproval(
        _text(answer, "actionId"),
        _text(answer, "state"),
        _text(answer, "delivery"),
        _text(answer, "title"),
        _text(answer, "risk"),
        _text(answer, "peer"),
        _text(answer, "taskId"),
        _whole(answer, "rev"),
        _text(answer, "digest"),
        options,
        answer,
    )


def read_task_page(answer: JsonObject) -> ListPage[ApiTask]:
    """Reads a page of tasks."""
    tasks = tuple(read_task(one) for one in read_list(answer, "tasks"))
    return ListPage(tasks, _text(answer, "nextPageToken"))


def read_approval_page(answer: JsonObject) -> ListPage[ApiApproval]:
    """Reads a page of approvals, pending or closed."""
    found = read_list(answer, "pending") or read_list(answer, "closed")
    return ListPage(tuple(read_approval(one) for one in found), _text(answer, "nextPageToken"))


def read_list(answer: Mapping[str, Json], name: str) -> list[JsonObject]:
    """Returns the objects of a list; empty if the member is missing."""
    found = answer.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _text(answer: Mapping[str, Json], name: str) -> str:
    found = answer.get(name)
    return found if isinstance(found, str) else ""


def _whole(answer: Mapping[str, Json], name: str) -> int:
    found = answer.get(name)
    return found if isinstance(found, int) else 0

"""The asynchronous client of ``/v1``. ``api_sync.py`` is generated from it (``python -m tools.generate``)."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Final, Self, TypeVar

import httpx

from passerelle.client import api_requests as requests
from passerelle.client.api_models import (
    ApiApproval,
    ApiError,
    ApiTask,
    ListPage,
    SentTurn,
    WaitTimeout,
)
from passerelle.client.api_wire import (
    TIMEOUT_S,
    make_arguments,
    may_try_again,
    pause_s,
    read_answer,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from ssl import SSLContext

    from passerelle.client.items import AnswerResult
    from passerelle.core.wire.json import JsonObject

T = TypeVar("T")

_LOOK_S: Final = 0.5


class ApiClient:
    """A client of one gateway. Use it as an async context manager.

    Each change has an idempotency key. A request is sent again if the connection failed, or if the gateway sets
    ``Retry-After``: at most ``tries`` times in all.
    """

    def __init__(
        self, url: str, *, token: str, tries: int = 3, verify: SSLContext | bool = True
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/"), headers=headers, timeout=TIMEOUT_S, verify=verify
        )
        self._tries = tries

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def send(
        self,
        agent: str,
        text: str | None = None,
        *,
        message: JsonObject | None = None,
        task_id: str | None = None,
        session_id: str | None = None,
        context_id: str | None = None,
        key: str | None = None,
    ) -> SentTurn:
        """Sends a message to an agent: a text or an A2A message. Returns once the gateway accepts it."""
        key = key or secrets.token_hex(16)
        return await self._do(
            requests.send_message(agent, text, message, task_id, session_id, context_id, key)
        )

    async def create_task(
        self,
        agent: str,
        objective: str,
        *,
        title: str | None = None,
        priority: int | None = None,
        key: str | None = None,
    ) -> ApiTask:
        """Creates a task; ``start_task`` sends it to its agent."""
        key = key or secrets.token_hex(16)
        return await self._do(requests.create_task(agent, objective, title, priority, key))

    async def get_task(self, task_id: str) -> ApiTask:
        """One task."""
        return await self._do(requests.get_task(task_id))

    async def list_tasks(
        self,
        *,
        status: str | None = None,
        agent: str | None = None,
        page_size: int = 50,
        page_token: str = "",
    ) -> ListPage[ApiTask]:
        """Returns a page of tasks, the latest change of status first."""
        return await self._do(requests.list_tasks(status, agent, page_size, page_token))

    async def iterate_tasks(
        self, *, status: str | None = None, agent: str | None = None
    ) -> AsyncIterator[ApiTask]:
        """Yields all tasks, page by page."""
        token = ""
        while True:
            page = await self.list_tasks(status=status, agent=agent, page_token=token)
            for task in page.items:
                yield task
            token = page.next_page_token
            if not token:
                return

    async def start_task(
        self, task_id: str, *, version: int | None = None, key: str | None = None
    ) -> ApiTask:
        """Sends a created task to its agent."""
        return await self._change(task_id, "start", version, key)

    async def pause_task(
        self, task_id: str, *, version: int | None = None, key: str | None = None
    ) -> ApiTask:
        """Pauses a task until it is resumed."""
        return await self._change(task_id, "pause", version, key)

    async def resume_task(
        self, task_id: str, *, version: int | None = None, key: str | None = None
    ) -> ApiTask:
        """Resumes a task that is paused, blocked or lost."""
        return await self._change(task_id, "resume", version, key)

    async def retry_task(
        self, task_id: str, *, version: int | None = None, key: str | None = None
    ) -> ApiTask:
        """Starts a new attempt of a failed task."""
        return await self._change(task_id, "retry", version, key)

    async def cancel_task(
        self, task_id: str, *, reason: str | None = None, key: str | None = None
    ) -> str:
        """Cancels a task: ``requested``, ``already_cancelled``, ``already_done`` or ``not_found``."""
        return await self._do(requests.cancel_task(task_id, reason, key or secrets.token_hex(16)))

    async def wait_for_task(
        self, task_id: str, *, timeout_s: float = 60.0, until: frozenset[str] = frozenset()
    ) -> ApiTask:
        """Waits until a task has ended or has a status of ``until``, such as ``waiting_permission``; returns the task.

        Raises:
            WaitTimeout: not reached within ``timeout_s``; the task continues.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            task = await self.get_task(task_id)
            if task.is_ended or task.status in until:
                return task
            if time.monotonic() >= deadline:
                raise WaitTimeout(task)
            await asyncio.sleep(_LOOK_S)

    async def list_approvals(
        self,
        *,
        state: str = "pending",
        risk: str | None = None,
        task_id: str | None = None,
        page_size: int = 50,
        page_token: str = "",
    ) -> ListPage[ApiApproval]:
        """Returns a page of approvals: pending ones, or those with an end state such as ``closed`` and ``expired``."""
        return await self._do(requests.list_approvals(state, risk, task_id, page_size, page_token))

    async def get_approval(self, action_id: str, *, wait_s: int = 0, rev: int = 0) -> ApiApproval:
        """Returns one approval. With ``wait_s`` (at most 25), waits for its next change."""
        return await self._do(requests.get_approval(action_id, wait_s, rev))

    async def decide(
        self,
        approval: ApiApproval,
        option: str,
        *,
        content: JsonObject | None = None,
        comment: str | None = None,
        decision_id: str | None = None,
    ) -> AnswerResult:
        """Decides an approval. ``option``: ``allow``, ``deny``, or the id of an option.

        Raises:
            ValueError: the approval offers no such option.
            ApiError: the request failed; it is safe to send it again with the same ``decision_id``.
        """
        chosen = requests.choose_option(approval, option)
        named = decision_id or secrets.token_hex(16)
        try:
            return await self._do(
                requests.decide_approval(approval, named, chosen, content, comment)
            )
        except ApiError as error:
            return requests.read_undecided(error)

    async def _change(
        self, task_id: str, verb: str, version: int | None, key: str | None
    ) -> ApiTask:
        return await self._do(
            requests.change_task(task_id, verb, version, key or secrets.token_hex(16))
        )

    async def _do(self, request: requests.ApiRequest[T]) -> T:
        """Sends a request; retries it if that is safe and can help.

        Raises:
            ApiError: the gateway refused it.
            httpx.TransportError: the gateway did not answer.
        """
        arguments = make_arguments(request)
        for tries in range(1, self._tries):
            try:
                return read_answer(request, await self._http.request(**arguments))
            except (ApiError, httpx.TransportError) as error:
                if not may_try_again(request, error):
                    raise
                await asyncio.sleep(pause_s(error, tries))
        return read_answer(request, await self._http.request(**arguments))

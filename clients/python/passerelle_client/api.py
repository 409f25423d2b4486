"""Clients of ``/v1``: tasks and approvals of a gateway, asynchronous and synchronous.

::

    async with ApiClient("http://127.0.0.1:8080", token=token) as gateway:
        turn = await gateway.send("payments", "40 EUR to the baker")
        task = await gateway.wait_for_task(turn.task_id, until=frozenset({"waiting_permission"}))
        for approval in (await gateway.list_approvals(task_id=task.task_id)).items:
            result = await gateway.decide(approval, "allow", comment="as agreed")

    with SyncApiClient("http://127.0.0.1:8080", token=token) as gateway:
        for task in gateway.iterate_tasks(status="running"):
            print(task.task_id, task.agent)

``ApiError`` reports a request that the gateway refused. A decision that does not count is returned as ``Lost`` or
``Refused``; it is no error. Needs the extra ``api``: httpx.
"""

from passerelle.client.api_async import ApiClient
from passerelle.client.api_models import (
    ApiApproval,
    ApiError,
    ApiTask,
    ApprovalOption,
    ListPage,
    SentTurn,
    WaitTimeout,
)
from passerelle.client.api_sync import SyncApiClient
from passerelle.client.items import Lost, Refused, Replayed, Voted, Won

__all__ = [
    "ApiApproval",
    "ApiClient",
    "ApiError",
    "ApiTask",
    "ApprovalOption",
    "ListPage",
    "Lost",
    "Refused",
    "Replayed",
    "SentTurn",
    "SyncApiClient",
    "Voted",
    "WaitTimeout",
    "Won",
]

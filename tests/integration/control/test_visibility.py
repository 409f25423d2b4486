"""Who is shown a task: over A2A, to a caller of the control plane, and to who operates the runtime (TR-6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from passerelle.core.commands import GetTask, ListTasks
from passerelle.core.errors import Forbidden, NotFound
from passerelle.core.ids import TaskId, expose
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.task.status import Status, Visibility
from passerelle.gateway.rpc.table import call
from passerelle.runtime.common.calls import Caller
from tests.support.control_client import ControlClient
from tests.support.harness import ADA
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

USER = replace(ADA, scopes=ADA.scopes - {AccessScope.OPERATE})


async def list_records(control: ControlClient, who: Principal, **asked: object) -> set[str]:
    """What a channel is told, which has the same calls as ``/v1``."""
    params: Any = asked
    page: Any = await call(control.harness.service, Caller(who, "channel"), "list_tasks", params)
    return {str(task["taskId"]) for task in page["tasks"]}


async def list_a2a(
    control: ControlClient, context_id: str | None = None
) -> tuple[set[str], object]:
    page: Any = await control.harness.service.read(ADA, ListTasks("echo", context_id=context_id))
    return {str(task["id"]) for task in page["tasks"]}, page["totalSize"]


@pytest.mark.requirement("TR-6")
async def test_each_visibility_is_shown_to_those_that_it_is_meant_for(
    control: ControlClient,
) -> None:
    tasks = {
        one: await control.start("echo done", visibility=one, contextId=None) for one in Visibility
    }
    for task_id in tasks.values():
        await control.until(task_id, Status.COMPLETED)
    facades = {one: expose(TaskId(task_id), 1) for one, task_id in tasks.items()}
    listed = {facades[Visibility.FOREGROUND], facades[Visibility.BACKGROUND]}

    async def are_listed() -> bool:
        return await list_a2a(control) == (listed, len(listed))

    await wait_until(are_listed, 10, "A2A lists what is meant for its callers, and counts no more")
    for task_id in tasks.values():
        context = (await control.record(task_id)).scope.context_id
        assert (await list_a2a(control, context))[0] <= listed
    assert await list_records(control, USER) == listed
    assert await list_records(control, ADA) == listed
    everything: list[str] = [one.value for one in Visibility]
    assert await list_records(control, USER, visibility=everything) == {
        *listed,
        facades[Visibility.INTERNAL],
    }
    assert await list_records(control, ADA, visibility=everything) == set(facades.values())
    own = [Visibility.INTERNAL.value]
    assert await list_records(control, USER, visibility=own) == {facades[Visibility.INTERNAL]}


@pytest.mark.requirement("TR-6")
async def test_a_hidden_task_is_for_those_who_operate_alone(control: ControlClient) -> None:
    with pytest.raises(Forbidden):
        await control.do(
            "create_task", None, USER, agent="echo", objective="mine", visibility="hidden"
        )
    hidden = await control.start("echo done", visibility="hidden")
    await control.until(hidden, Status.COMPLETED)
    facade = expose(TaskId(hidden), 1)
    for who, method in ((USER, "get_task"), (USER, "get_task_summary"), (USER, "update_task")):
        with pytest.raises(NotFound):
            await control.do(method, None, who, taskId=facade)
    with pytest.raises(NotFound):
        await control.harness.service.read(ADA, GetTask(facade, "echo"))
    assert (await control.do("get_task", taskId=facade))["visibility"] == "hidden"
    assert (await control.do("get_task_summary", taskId=facade))["status"] == Status.COMPLETED

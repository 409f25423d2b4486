"""A task with a parent: what it brought is the parent's, as far as there is one."""

from __future__ import annotations

from typing import cast

import pytest

from passerelle.core.json import JsonObject
from passerelle.core.status import Status
from tests.support.desk import Desk

pytestmark = pytest.mark.anyio


async def word_for_parent(desk: Desk, task_id: str) -> object:
    model = await desk.do("get_delivery", taskId=task_id)
    return cast("JsonObject", model["consumers"])["parent"]


@pytest.mark.requirement("PO-6", "SNAP-19")
async def test_result_is_delivered_to_the_parent_when_the_child_has_ended(desk: Desk) -> None:
    parent = await desk.create("sail around the world")
    child = await desk.create("find a boat", parentTaskId=parent)
    assert await word_for_parent(desk, child) == "pending"
    assert await word_for_parent(desk, parent) == "not_applicable"
    await desk.do("start_task", "s", taskId=child)
    await desk.until(child, Status.COMPLETED)
    assert await word_for_parent(desk, child) == "delivered"

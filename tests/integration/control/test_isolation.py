"""Callers of one name in two tenants, and callers of one key in one shard, have nothing to do with each other."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from passerelle.core.errors import NotFound
from passerelle.core.ids import derive_shard
from passerelle.core.principal import Principal
from passerelle.core.wire.json import Json
from tests.support.control_client import ControlClient, task_id_of
from tests.support.harness import ADA

pytestmark = pytest.mark.anyio


def find_neighbour(member: str) -> Principal:
    """A caller whose things stand in Ada's shard, so that only the name of a row keeps them apart."""
    for number in count():
        name = f"other{number}"
        made = replace(ADA, tenant=name) if member == "tenant" else replace(ADA, id=name)
        if made.home == ADA.home:
            return made
    raise AssertionError("numbers have an end")


def find_key(*callers: Principal) -> str:
    """An idempotency key that leads all of these callers to one shard."""
    for number in count():
        key = f"key-{number}"
        if len({derive_shard("idem", one.tenant, one.id, key) for one in callers}) == 1:
            return key
    raise AssertionError("numbers have an end")


TWIN = replace(ADA, tenant="another")
"""Of Ada's name."""


@pytest.mark.requirement("TR-10", "AP-9")
async def test_same_name_in_another_tenant_reads_no_task_and_steers_none(
    control: ControlClient,
) -> None:
    task_id = await control.create()
    neighbour = find_neighbour("tenant")
    for who in (TWIN, neighbour):
        for method in ("get_task", "get_task_summary", "start_task", "pause_task"):
            with pytest.raises(NotFound):
                await control.do(method, None, who, taskId=task_id)
        told = await control.do("cancel_task", None, who, taskId=task_id)
        assert told["outcome"] == "not_found"
        assert (await control.do("list_tasks", None, who))["tasks"] == []
    assert (await control.do("get_task_summary", taskId=task_id))["taskId"]


@pytest.mark.requirement("CMD-30", "AP-9")
@pytest.mark.parametrize("member", ["id", "tenant"])
async def test_one_key_of_two_callers_is_two_commands(control: ControlClient, member: str) -> None:
    neighbour = find_neighbour(member)
    key = find_key(ADA, neighbour)
    given: dict[str, Json] = {"agent": "echo", "objective": "report the sales"}
    mine = await control.do("create_task", key, **given)
    theirs = await control.do("create_task", key, neighbour, **given)
    assert task_id_of(mine) != task_id_of(theirs)
    assert not theirs.get("repeated")
    again = await control.do("create_task", key, **given)
    assert (task_id_of(again), again["repeated"]) == (task_id_of(mine), True)

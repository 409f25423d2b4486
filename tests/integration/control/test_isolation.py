"""Callers of the same name in two tenants, and callers with the same key in one shard, do not affect each other."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import count

import orjson
import pytest

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.errors import Forbidden, NotFound
from passerelle.core.ids import derive_shard
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.subagent.name import SubagentName
from passerelle.core.wire.json import Json
from tests.support.control_client import ControlClient, task_id_of
from tests.support.harness import ADA

pytestmark = pytest.mark.anyio


def find_neighbour(member: str) -> Principal:
    """Returns a caller in Ada's shard: only the owner in the row name separates them."""
    for number in count():
        name = f"other{number}"
        made = replace(ADA, tenant=name) if member == "tenant" else replace(ADA, id=name)
        if made.home == ADA.home:
            return made
    raise AssertionError("numbers have an end")


def find_key(*callers: Principal) -> str:
    """Returns an idempotency key that maps all of these callers to one shard."""
    for number in count():
        key = f"key-{number}"
        if len({derive_shard("idem", one.tenant, one.id, key) for one in callers}) == 1:
            return key
    raise AssertionError("numbers have an end")


TWIN = replace(ADA, tenant="another")
"""Same name as Ada, another tenant."""


@pytest.mark.requirement("TR-10", "AP-9")
async def test_same_name_in_another_tenant_reads_and_controls_no_task(
    control: ControlClient,
) -> None:
    task_id = await control.create()
    neighbour = find_neighbour("tenant")
    for who in (TWIN, neighbour):
        for method in ("get_task", "get_task_summary", "start_task", "pause_task"):
            with pytest.raises(NotFound):
                await control.do(method, None, who, taskId=task_id)
        answered = await control.do("cancel_task", None, who, taskId=task_id)
        assert answered["outcome"] == "not_found"
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


READER = replace(ADA, operations={"echo": frozenset({Method.SEND_MESSAGE})})
ELSEWHERE = replace(ADA, agents=frozenset({"other"}))


async def read(control: ControlClient, method: str, who: Principal, named: dict[str, str]) -> str:
    """Returns the answer as text, empty if there is none for the caller."""
    with suppress(NotFound):
        return orjson.dumps(await control.do(method, None, who, **named)).decode()
    return ""


@pytest.mark.parametrize("who", [READER, ELSEWHERE], ids=["operation", "agent"])
async def test_credential_without_the_agent_reads_and_controls_no_task_of_it(
    control: ControlClient, who: Principal
) -> None:
    task_id = await control.start("silent, and a word")
    record = await control.record(task_id)
    session, thread = record.session_id, record.thread_id or ""
    for method, named in (
        ("get_session", {"sessionId": session}),
        ("get_session_tasks", {"sessionId": session}),
        ("get_archived", {"ref": f"{session}@{record.last}"}),
        ("get_thread", {"threadId": thread}),
        ("get_subagent_events", {"subagentId": str(SubagentName(thread, "echo"))}),
    ):
        assert task_id in await read(control, method, ADA, named)
        shown = await read(control, method, who, named)
        assert task_id not in shown, method
        assert "a word" not in shown, method
    for method in ("get_task", "get_task_summary"):
        with pytest.raises((NotFound, Forbidden)):
            await control.do(method, None, who, taskId=task_id)


async def test_credential_without_the_agent_stops_and_transfers_no_task_of_it(
    control: ControlClient,
) -> None:
    task_id = await control.start("silent")
    session = (await control.record(task_id)).session_id
    stopped = await control.do("interrupt_turn", None, ELSEWHERE, sessionId=session)
    assert stopped["outcome"] == "no_op"
    plain = replace(ELSEWHERE, scopes=ADA.scopes - {AccessScope.OPERATE})
    for method, more in (("pause_task", {}), ("give_task", {"owner": "bob"})):
        with pytest.raises(NotFound):
            await control.do(method, None, plain, taskId=task_id, **more)

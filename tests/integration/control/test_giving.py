"""A task is transferred to another owner: the state afterwards everywhere, and when it is refused (TEV-5)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import orjson
import pytest

from passerelle.channels.services import parse_stream_name
from passerelle.control import transfer as giving
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.commands import ListTasks
from passerelle.core.errors import (
    Forbidden,
    InvalidInput,
    NotFound,
    PasserelleError,
    UnsupportedOperation,
    VersionMismatch,
)
from passerelle.core.index_changes import UNSEEN
from passerelle.core.payloads.task import TaskUpdated
from passerelle.core.ports.projections import IndexRow
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.task.status import Status
from passerelle.delegation.verification.walk import verify_store
from tests.support.control_client import ControlClient
from tests.support.harness import ADA, BOB, OVERSIGHT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("TEV-5")]

PLAIN = replace(ADA, scopes=ADA.scopes - {AccessScope.OPERATE})
OTHERS: tuple[tuple[str, Principal], ...] = (
    ("in another tenant", replace(ADA, id="eve", tenant="other")),
    ("without the right to operate", replace(BOB, scopes=frozenset({AccessScope.WRITE_TASKS}))),
)


async def is_listed(control: ControlClient, who: Principal, task_id: str) -> bool:
    """Whether a list over ``/v1`` contains the task."""
    found = cast("list[JsonObject]", (await control.do("list_tasks", None, who))["tasks"])
    return task_id in {str(one["taskId"]) for one in found}


async def read_rows(control: ControlClient, who: Principal) -> set[str]:
    """Returns the rows of an owner's stored lists, of shown and unshown tasks."""
    projections = control.harness.store.projections
    lists = [await projections.read_index(who.key, name, None, 100) for name in ("echo", UNSEEN)]
    return {facade for rows in lists for facade, _ in rows}


async def start_shown(control: ControlClient) -> str:
    """Starts a task that its agent works on and that callers see."""
    task_id = await control.start("silent")

    async def is_shown() -> bool:
        return (await control.record(task_id)).shown

    await wait_until(is_shown, 20, "callers see the task")
    return task_id


async def count_seen(control: ControlClient, who: Principal) -> tuple[int, int]:
    """Returns the number of tasks that A2A lists for a caller, and the total that it reports."""
    page = await control.harness.service.read(who, ListTasks("echo"))
    return len(cast("list[JsonObject]", page["tasks"])), cast("int", page["totalSize"])


async def test_the_event_holds_the_old_and_the_new_owner_and_nothing_else(
    control: ControlClient,
) -> None:
    task_id = await control.create()
    before = await control.record(task_id)
    given = await control.do("give_task", "g", PLAIN, taskId=task_id, owner="bob")
    after = await control.record(task_id)
    (updated,) = [
        event.fact.payload
        for event in await control.events(task_id)
        if isinstance(event.fact.payload, TaskUpdated)
    ]
    assert updated.changed == {"owner": {"old": "ada", "new": "bob"}}
    stored = await control.do("get_task", None, BOB, taskId=task_id)
    assert given == {
        "taskId": task_id,
        "owner": "bob",
        "version": stored["version"],
        "repeated": False,
    }
    changed = {
        name
        for name in type(before).__dataclass_fields__
        if getattr(before, name) != getattr(after, name)
    }
    assert changed == {"owner", "scope", "last", "updated_at"}
    assert (after.owner, after.scope.principal, after.requested_by) == (BOB.key, "bob", "ada")


async def test_lists_and_counts_of_both_owners_are_right_at_once(control: ControlClient) -> None:
    waiting, seen = await control.create(), await start_shown(control)
    assert await count_seen(control, ADA) == (1, 1)
    for task_id in (waiting, seen):
        await control.do("give_task", None, PLAIN, taskId=task_id, owner="bob")
        assert not await is_listed(control, ADA, task_id)
        assert await is_listed(control, BOB, task_id)
    assert await read_rows(control, ADA) == set()
    assert await read_rows(control, BOB) == {waiting, seen}
    assert await count_seen(control, ADA) == (0, 0)
    assert await count_seen(control, BOB) == (1, 1)


async def test_a_row_left_in_the_old_owners_list_is_found_by_verify(control: ControlClient) -> None:
    task_id, store = await start_shown(control), control.harness.store
    await control.do("give_task", None, PLAIN, taskId=task_id, owner="bob")
    shard = EntityRef(EntityKind.TASK, task_id).shard
    feed = await store.projections.read_feed(shard, None, 512)
    await store.projections.move_mark(shard, "relay", feed[-1].id)
    listed: list[bool] = []
    for agent in (None, "echo", UNSEEN):
        if agent is not None:
            await store.projections.index_now(IndexRow(ADA.key, agent, task_id, 1))
        report = await verify_store(store, rebuild=True)
        listed.append(("listed", task_id) in {(one.kind, one.subject) for one in report.problems})
        await store.projections.index_now(IndexRow(ADA.key, agent or "", task_id, 1, "gone"))
    assert listed == [False, True, True]


async def test_the_old_owner_gets_the_answers_of_an_unknown_task(control: ControlClient) -> None:
    task_id = await start_shown(control)
    record = await control.record(task_id)
    never = f"{task_id[:-4]}0000"
    await control.do("give_task", None, PLAIN, taskId=task_id, owner="bob")
    for method in ("get_task", "pause_task", "get_task_summary", "fail_task"):
        said: list[str] = []
        for name in (task_id, never):
            with pytest.raises(NotFound) as refused:
                await control.do(method, None, ADA, taskId=name)
            said.append(str(refused.value).replace(name, "it"))
        assert said[0] == said[1]
    read = await control.do("get_task", None, BOB, taskId=task_id)
    assert read["taskId"] == task_id
    assert (await control.do("pause_task", None, BOB, taskId=task_id))["repeated"] is False
    access = control.harness.parts.grants
    task, session = (
        parse_stream_name(name) for name in (f"task:{task_id}", f"session:{record.session_id}")
    )
    with pytest.raises(NotFound):
        await access.grant(ADA, task, full=False)
    with pytest.raises(Forbidden) as refused_session:
        await access.grant(ADA, session, full=False)
    assert refused_session.value.details["why"] == "task_given"
    assert (await access.grant(BOB, task, full=False)).stream.id == record.session_id
    with pytest.raises(NotFound):
        await access.grant(BOB, session, full=False)


async def test_what_happens_after_the_transfer_is_in_no_read_of_the_old_owner(
    control: ControlClient,
) -> None:
    task_id = await control.create()
    record = await control.record(task_id)
    session, thread = record.session_id, record.thread_id
    await control.do("give_task", None, PLAIN, taskId=task_id, owner="bob")
    await control.do("start_task", "start", BOB, taskId=task_id, text="a word of Bob's")
    await control.until(task_id, Status.COMPLETED)
    last = (await control.record(task_id)).last
    for method, named in (
        ("get_session", {"sessionId": session}),
        ("get_session_tasks", {"sessionId": session}),
        ("get_archived", {"ref": f"{session}@{last}"}),
        ("get_thread", {"threadId": thread}),
        ("get_thread_context", {"threadId": thread}),
        ("list_subagents", {"threadId": thread}),
    ):
        shown = orjson.dumps(await control.do(method, None, ADA, **named)).decode()
        assert "a word" not in shown, method
        assert task_id not in shown, method
    for word, name in (("inputs", session), ("results", session), ("messages", thread)):
        with pytest.raises(Forbidden) as refused:
            await control.harness.parts.grants.grant(
                ADA, parse_stream_name(f"{word}:{name}"), full=False
            )
        assert refused.value.details["why"] == "task_given"


async def test_a_task_transferred_back_equals_one_that_was_never_transferred(
    control: ControlClient,
) -> None:
    task_id = await start_shown(control)
    record = await control.record(task_id)
    await control.do("give_task", "there", PLAIN, taskId=task_id, owner="bob")
    await control.do("give_task", "back", BOB, taskId=task_id, owner="ada")
    assert await read_rows(control, BOB) == set()
    assert await count_seen(control, ADA) == (1, 1)
    session = parse_stream_name(f"session:{record.session_id}")
    grant = await control.harness.parts.grants.grant(ADA, session, full=False)
    assert grant.stream.id == record.session_id
    again = await control.record(task_id)
    assert (again.owner, again.scope) == (record.owner, record.scope)


async def test_a_reused_key_gets_the_first_result(control: ControlClient) -> None:
    task_id = await control.create()
    first = await control.do("give_task", "k", PLAIN, taskId=task_id, owner="bob")
    again = await control.do("give_task", "k", PLAIN, taskId=task_id, owner="bob")
    assert (first["repeated"], again["repeated"]) == (False, True)
    assert {**again, "repeated": False} == first
    with pytest.raises(NotFound):
        await control.do("give_task", "other", PLAIN, taskId=task_id, owner="bob")
    stored = await control.do("get_task", None, BOB, taskId=task_id)
    assert stored["version"] == first["version"]


async def test_transfer_at_an_outdated_version_is_refused(control: ControlClient) -> None:
    task_id = await control.create()
    read = await control.do("get_task", taskId=task_id)
    await control.do("update_task", taskId=task_id, title="boats")
    with pytest.raises(VersionMismatch):
        await control.do("give_task", taskId=task_id, owner="bob", version=read["version"])
    version = (await control.do("get_task", taskId=task_id))["version"]
    await control.do("give_task", taskId=task_id, owner="bob", version=version)
    assert (await control.record(task_id)).owner == BOB.key


@pytest.mark.parametrize("who", [one[1] for one in OTHERS], ids=[one[0] for one in OTHERS])
async def test_a_task_is_transferred_only_by_its_owner(
    control: ControlClient, who: Principal
) -> None:
    task_id = await control.create()
    with pytest.raises(NotFound):
        await control.do("give_task", None, who, taskId=task_id, owner="bob")
    assert (await control.record(task_id)).owner == ADA.key


async def test_a_task_is_not_transferred_under_an_id_that_it_never_had(
    control: ControlClient,
) -> None:
    task_id = await control.create()
    with pytest.raises(NotFound):
        await control.do("give_task", None, PLAIN, taskId=f"{task_id}~2", owner="bob")
    assert (await control.record(task_id)).owner == ADA.key


async def test_operator_transfers_tasks_of_its_tenant(control: ControlClient) -> None:
    task_id = await control.create()
    operator = Principal("root", kind="person", scopes=frozenset(AccessScope) - OVERSIGHT)
    await control.do("give_task", None, operator, taskId=task_id, owner="bob")
    assert (await control.record(task_id)).owner == BOB.key
    with pytest.raises(NotFound):
        await control.do("get_task", None, operator, taskId=task_id)


async def test_a_task_is_transferred_only_to_a_known_owner(control: ControlClient) -> None:
    task_id = await control.create()
    with pytest.raises(InvalidInput) as refused:
        await control.do("give_task", taskId=task_id, owner="nobody")
    assert refused.value.field == "owner"
    before = await control.record(task_id)
    await control.do("give_task", taskId=task_id, owner="ada")
    assert await control.record(task_id) == before


async def test_task_with_open_questions_or_relations_or_an_end_is_not_transferred(
    control: ControlClient,
) -> None:
    asked = await control.start("ask first")
    question = await control.until(asked, Status.WAITING_INPUT)
    with pytest.raises(UnsupportedOperation) as refused:
        await control.do("give_task", taskId=asked, owner="bob")
    assert refused.value.details["why"] == "open_question"
    assert refused.value.details["actions"] == question.open_actions[0]
    parent = await control.create()
    child = await control.create(parentTaskId=parent)
    for related in (parent, child):
        with pytest.raises(UnsupportedOperation) as refused:
            await control.do("give_task", taskId=related, owner="bob")
        assert refused.value.details["why"] == "related"
    assert f"created as a part of {parent}" in refused.value.message
    ended = await control.create()
    await control.do("fail_task", taskId=ended)
    with pytest.raises(UnsupportedOperation):
        await control.do("give_task", taskId=ended, owner="bob")
    for task_id in (asked, parent, child, ended):
        assert (await control.record(task_id)).owner == ADA.key


async def test_an_edge_named_by_the_refusal_can_be_unlinked_first(control: ControlClient) -> None:
    parent = await control.create()
    child = await control.create(parentTaskId=parent)
    with pytest.raises(UnsupportedOperation, match="unlink them first"):
        await control.do("give_task", taskId=parent, owner="bob")
    await control.do("unlink_tasks", taskId=parent, kind="child", target=child)
    with pytest.raises(UnsupportedOperation, match="created as a part of"):
        await control.do("give_task", taskId=child, owner="bob")
    await control.do("give_task", taskId=parent, owner="bob")
    assert (await control.record(parent)).owner != ADA.key


async def test_transfers_out_of_a_session_are_limited(
    control: ControlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(giving, "MAX_TRANSFERRED", 1)
    opened = cast("JsonObject", (await control.do("open_session", title="Gifts"))["session"])
    first, second = [await control.create(sessionId=opened["sessionId"]) for _ in range(2)]
    await control.do("give_task", None, PLAIN, taskId=first, owner="bob")
    with pytest.raises(UnsupportedOperation) as refused:
        await control.do("give_task", None, PLAIN, taskId=second, owner="bob")
    assert refused.value.details["why"] == "too_many_given"


async def test_a_follower_over_a2a_gets_task_not_found_after_the_transfer(
    control: ControlClient,
) -> None:
    task_id = await start_shown(control)
    begun = asyncio.Event()

    async def follow() -> PasserelleError | None:
        try:
            async with control.harness.service.follow(ADA, task_id) as followed:
                async for _ in followed.frames:
                    begun.set()
        except PasserelleError as error:
            return error
        return None

    following = asyncio.create_task(follow())
    async with asyncio.timeout(20):
        await begun.wait()
        await control.do("give_task", None, PLAIN, taskId=task_id, owner="bob")
        assert isinstance(await following, NotFound)
        async with control.harness.service.follow(BOB, task_id) as followed:
            first = orjson.loads((await anext(aiter(followed.frames))).data)
        assert first["task"]["id"] == task_id


async def test_questions_after_the_transfer_go_to_the_new_owner(control: ControlClient) -> None:
    task_id = await control.create("ask first")
    await control.do("give_task", None, PLAIN, taskId=task_id, owner="bob")
    await control.do("start_task", "s", BOB, taskId=task_id)
    await control.until(task_id, Status.WAITING_INPUT)
    (action,) = (await control.record(task_id)).open_actions
    ref = EntityRef(EntityKind.ACTION, action)
    asked = (await control.harness.parts.writes.load_one(ref)).record
    assert isinstance(asked, ActionRecord)
    assert (asked.request.owner, asked.request.principal) == (BOB.key, "bob")

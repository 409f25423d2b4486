"""Every command that takes an idempotency key, carried out twice: one change, and the first answer again (CMD-30)."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count as count_from
from typing import Any, Final

import pytest

from passerelle.control.subtrees import Subtrees
from passerelle.core.commands import Result
from passerelle.core.errors import CallerError, UnsupportedOperation
from passerelle.core.event_type import EventType
from passerelle.core.ids import Shard
from passerelle.core.ports.log import EventLog
from passerelle.core.principal import Principal
from passerelle.core.task.requests import PauseTask
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.rpc.table import CALLS
from passerelle.runtime.records.idempotency import Once
from tests.support.control_client import ControlClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

UNREPEATED: Final = frozenset(
    {
        # What they wish for is the case after the first time, whoever wishes for it again.
        *("cancel_task", "interrupt_turn", "resume_thread", "retry_delivery"),
        *("ack_events", "reconnect_channel"),
        # Where a turn waits, and what becomes of the next one: delegation/test_turn_queue.py.
        *("promote_queued_turn", "remove_queued_turn", "set_queue_policy"),
        # What a device says over a link: test_notices.py.
        "send_notice",
        # A webhook has a name of its own: test_stream_webhooks.py.
        *("set_stream_webhook", "delete_stream_webhook"),
        # An answer has a name of its own: test_approval.py, test_questions.py.
        "respond_action",
        # A task that is ended well by its owner needs facts that come late: test_completing.py.
        "complete_task",
        # Devices: devices/test_keys.py. Grants and the mode of a person: delegation/test_grants.py.
        *("pair_device", "confirm_device", "rename_device", "revoke_device"),
        *("set_device_push", "remove_device_push", "revoke_grant", "set_bypass"),
        # Rules of the whole gateway: callers/test_policy_editing.py.
        "set_policy",
        # Both are idempotent by their state: test_forwarding.py, test_pending_deliveries.py.
        *("see_action", "return_again"),
        # The last word about an agent counts: devices/test_mutes.py.
        *("mute_peer", "unmute_peer"),
        # What a worker asks for has the id of its call, and what is answered is used once: test_workers.py.
        *("ask_permission", "use_permission", "withdraw_permission", "resolve_permission"),
        # A subagent that goes on goes on, and one that is closed is closed: test_subagent_commands.py.
        *("resume_subagent", "close_subagent"),
        # What has not changed since is the same export: evidence/test_exports.py.
        *("export_evidence", "export_replay", "export_review"),
    }
)

ELSEWHERE: Final = frozenset(
    {
        "retry_task",  # below
        *("roll_back_thread", "compact_thread"),  # test_rollback.py, test_compaction.py
        "change_tasks",  # test_bulk.py
        *("submit_job", "cancel_job", "retry_job"),  # test_jobs.py
        *("spawn_subagent", "send_subagent_input"),  # test_subagent_commands.py
        *("pause_agent", "drain_agent", "resume_agent"),  # delegation/test_paused_agents.py
        # test_schedules.py
        *(
            "create_schedule",
            "run_schedule",
            "pause_schedule",
            "resume_schedule",
            "delete_schedule",
        ),
    }
)
"""Those have tests of their own."""


async def count(control: ControlClient, session_id: str) -> int:
    return len(await control.harness.entries(session_id))


async def is_answered(control: ControlClient, session_id: str) -> bool:
    return any(
        one.type == EventType.RUN_STATUS for one in await control.harness.entries(session_id)
    )


@pytest.mark.requirement("CMD-30")
async def test_every_command_with_a_key_changes_something_once(control: ControlClient) -> None:
    opened: Any = await control.do("open_session", "open", title="Keys")
    again: Any = await control.do("open_session", "open", title="Keys")
    session_id = str(opened["session"]["sessionId"])
    assert (again["session"]["sessionId"], again["repeated"]) == (session_id, True)
    created: Any = await control.do("create_task", "new", agent="echo", objective="silent")
    other = await control.create("fail once", sessionId=session_id)
    gift = await control.create("give it", sessionId=session_id)
    task_id = str(created["task"]["taskId"])
    task_session = str(created["task"]["sessionId"])
    at: JsonObject = {"taskId": task_id}
    edge: JsonObject = {**at, "kind": "evidence", "target": "a bundle"}
    told = {"open_session", "create_task"}
    for method, params in (
        ("create_task", {"agent": "echo", "objective": "silent"}),
        ("update_session", {"sessionId": session_id, "title": "Other keys"}),
        ("update_task", {**at, "title": "Boats"}),
        ("append_task_progress", {**at, "percent": 10}),
        ("link_tasks", edge),
        ("unlink_tasks", edge),
        ("pause_task", at),
        ("resume_task", at),
        ("start_task", at),
        ("give_task", {"taskId": gift, "owner": "bob"}),
        ("fail_task", {"taskId": other, "code": "no_budget"}),
        ("submit_turn", {"agent": "echo", "text": "message hi", "sessionId": session_id}),
    ):
        key = "new" if method == "create_task" else f"k-{method}"
        first: Any = await control.do(method, key, **params)
        if method == "start_task":
            await wait_until(
                partial(is_answered, control, task_session), 10, "the agent has answered"
            )
        stored = [await count(control, one) for one in (session_id, task_session)]
        second: Any = await control.do(method, key, **params)
        assert second["repeated"] is True, method
        assert second.get("taskId") == first.get("taskId"), method
        if method != "submit_turn":
            assert [await count(control, one) for one in (session_id, task_session)] == stored, (
                method
            )
        told.add(method)
    commands: set[str] = {name for name, call in CALLS.items() if call.changes}
    assert commands >= UNREPEATED
    assert commands - told - UNREPEATED == ELSEWHERE


@pytest.mark.requirement("CMD-30")
@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("pause_task", {}),
        ("pause_task", {"version": 0}),
        ("pause_task", {"version": 0, "propagation": "subtree"}),
        ("update_task", {"title": "Boats", "version": 0}),
        ("start_task", {}),
        ("fail_task", {"code": "no_budget"}),
        ("link_tasks", {"kind": "evidence", "target": "a bundle", "version": 0}),
    ],
)
async def test_a_command_that_was_overtaken_by_itself_gets_the_answer_of_the_first(
    control: ControlClient, monkeypatch: pytest.MonkeyPatch, method: str, words: JsonObject
) -> None:
    task_id = await control.create("silent")
    if "version" in words:
        read: Any = await control.do("get_task", taskId=task_id)
        words = {**words, "version": read["version"]}
    find, looks, answers = Once.find, count_from(0), list[Any]()

    async def find_late(once: Once, log: EventLog, shard: Shard) -> bytes | None:
        """The first one is carried out between a look of the second one for the key and what it does then."""
        found = await find(once, log, shard)
        if next(looks) == 0:
            answers.append(await control.do(method, "k", taskId=task_id, **words))
        return found

    monkeypatch.setattr(Once, "find", find_late)
    second: Any = await control.do(method, "k", taskId=task_id, **words)
    [first] = answers
    assert (first["repeated"], second["repeated"]) == (False, True)
    assert first.get("taskId") == second.get("taskId")
    with pytest.raises(CallerError):
        await control.do(method, "another", taskId=task_id, **words)


@pytest.mark.requirement("CMD-30")
async def test_a_verb_of_a_tree_that_was_overtaken_by_its_own_wish_is_a_repeat(
    control: ControlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of such a verb is stored once the tree is told; until then there is its wish alone."""
    task_id = await control.create("silent")
    read: Any = await control.do("get_task", taskId=task_id)
    find, looks, stored, told = Once.find, count_from(0), asyncio.Event(), asyncio.Event()
    tell = Subtrees._handle_below  # pyright: ignore[reportPrivateUsage]  held between wish and end

    async def tell_late(*given: Any) -> bool:  # noqa: ANN401  what it is given, untouched
        stored.set()
        await told.wait()
        return await tell(*given)

    monkeypatch.setattr(Subtrees, "_handle_below", tell_late)
    verb = partial(control.do, "pause_task", "k", propagation="subtree", taskId=task_id)
    firsts = list[asyncio.Task[JsonObject]]()

    async def find_late(once: Once, log: EventLog, shard: Shard) -> bytes | None:
        found = await find(once, log, shard)
        if next(looks) == 0:
            firsts.append(asyncio.create_task(verb(version=read["version"])))
            await stored.wait()
        return found

    monkeypatch.setattr(Once, "find", find_late)
    try:
        second: Any = await asyncio.wait_for(verb(version=read["version"]), 10)
    finally:
        told.set()
    first: Any = await firsts[0]
    assert (first["repeated"], second["repeated"]) == (False, True)


@pytest.mark.requirement("CMD-30")
async def test_what_is_refused_under_a_key_is_refused_once(control: ControlClient) -> None:
    """A handler may leave something behind though it refuses, as the count of refused answers, or a look at a card."""
    task_id = await control.create("silent")
    await control.do("pause_task", "one", taskId=task_id)
    handlers, tried = control.harness.service.handlers.commands, list[str | None]()
    pause = handlers[PauseTask]

    async def count_tries(principal: Principal, command: PauseTask, idem: str | None) -> Result:
        tried.append(idem)
        return await pause(principal, command, idem)

    handlers[PauseTask] = count_tries
    with pytest.raises(UnsupportedOperation):
        await control.do("pause_task", "two", taskId=task_id)
    assert tried == ["two"]


@pytest.mark.requirement("CMD-30", "CMD-10")
async def test_a_task_is_tried_again_once_for_each_key(control: ControlClient) -> None:
    task_id = await control.start("fail badly")
    await control.until(task_id, Status.FAILED)
    first: Any = await control.do("retry_task", "again", taskId=task_id, reason="once more")
    again: Any = await control.do("retry_task", "again", taskId=task_id, reason="once more")
    assert (first["repeated"], again["repeated"]) == (False, True)
    assert (await control.types(task_id)).count("task.retrying") == 1
    assert (await control.record(task_id)).status is Status.RETRYING
    await control.do("cancel_task", taskId=task_id)

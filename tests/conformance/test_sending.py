"""SendMessage: its answers, their timing, task and context (A2A 1.0 sections 3.1.1, 3.2.2 and 3.4)."""

from __future__ import annotations

import pytest

from tests.conformance import errors
from tests.conformance.callers import Caller, make_params
from tests.conformance.shapes import COMPLETED, TERMINAL, WAITING, check_answer, check_task
from tests.conformance.site import Site, write

pytestmark = pytest.mark.anyio


@pytest.mark.kit("CORE-SEND-001", "DM-SERIAL-004")
async def test_message_is_answered_with_a_task_or_a_message(caller: Caller) -> None:
    for prefix, expected in (("tck-complete-task", "task"), ("tck-message-response", "message")):
        answer = await caller.send(write(prefix))
        assert list(answer) == [expected]
        check_answer(answer)


@pytest.mark.kit("CORE-SEND-002")
async def test_ended_task_refuses_further_messages(caller: Caller) -> None:
    for prefix in ("tck-complete-task", "tck-reject-task", "psl-fail-with-ids"):
        task = await caller.make_task(write(prefix))
        assert task["status"]["state"] in TERMINAL
        again = make_params(write("tck-complete-task", taskId=task["id"]))
        errors.UNSUPPORTED.check((await caller.call("SendMessage", again)).refused, caller.binding)
    cancelled = await caller.make_task(write("tck-input-required"))
    await caller.call("CancelTask", {"id": cancelled["id"]})
    again = make_params(write("tck-complete-task", taskId=cancelled["id"]))
    errors.UNSUPPORTED.check((await caller.call("SendMessage", again)).refused, caller.binding)


@pytest.mark.kit("CORE-SEND-003")
async def test_media_type_unsupported_by_the_agent_is_refused_as_such(caller: Caller) -> None:
    message = write("psl-refuse-type")
    message["parts"] = [{"text": "?", "mediaType": "application/x-nobody-reads-this"}]
    answer = await caller.call("SendMessage", make_params(message))
    errors.CONTENT_TYPE.check(answer.refused, caller.binding)


@pytest.mark.kit("CORE-EXECUTION-MODE-001")
async def test_send_waits_until_the_task_ends_or_waits(caller: Caller) -> None:
    for prefix, state in (
        ("psl-slow", COMPLETED),
        ("tck-input-required", WAITING),
        ("psl-auth", "TASK_STATE_AUTH_REQUIRED"),
        ("tck-reject-task", "TASK_STATE_REJECTED"),
    ):
        task = await caller.make_task(write(prefix))
        assert task["status"]["state"] == state


@pytest.mark.kit("CORE-EXECUTION-MODE-002")
async def test_nonblocking_send_returns_before_the_work_is_done(caller: Caller, site: Site) -> None:
    message = write("psl-hold")
    task = await caller.make_task(message, returnImmediately=True)
    assert task["status"]["state"] in {"TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"}
    await site.agent.release(message["messageId"], 2)


@pytest.mark.kit("CORE-MULTI-001", "CORE-MULTI-001a")
async def test_missing_context_is_created_and_returned(caller: Caller) -> None:
    task = await caller.make_task(write("tck-complete-task"))
    said = await caller.send(write("tck-message-response"))
    assert task["contextId"]
    assert said["message"]["contextId"]
    assert said["message"]["contextId"] != task["contextId"]


@pytest.mark.kit("CORE-MULTI-002", "CORE-MULTI-002a")
async def test_context_of_the_caller_is_kept_and_never_another(caller: Caller) -> None:
    mine = write("x")["messageId"]
    for prefix in ("tck-complete-task", "tck-message-response"):
        (answer,) = (await caller.send(write(prefix, contextId=mine))).values()
        assert answer["contextId"] == mine


@pytest.mark.kit("CORE-MULTI-003")
async def test_each_new_task_has_a_unique_id(caller: Caller) -> None:
    message = write("tck-complete-task")
    tasks = [await caller.make_task(message) for _ in range(3)]
    assert len({task["id"] for task in tasks}) == 3


@pytest.mark.kit("CORE-MULTI-004")
async def test_message_for_an_unknown_task_creates_none(caller: Caller) -> None:
    params = make_params(write("tck-complete-task", taskId="no-such-task"))
    errors.TASK_NOT_FOUND.check((await caller.call("SendMessage", params)).refused, caller.binding)


@pytest.mark.kit("CORE-MULTI-005")
async def test_task_id_alone_determines_the_context(caller: Caller) -> None:
    task = await caller.make_task(write("tck-input-required"))
    done = await caller.make_task(write("tck-complete-task", taskId=task["id"]))
    assert (done["id"], done["contextId"]) == (task["id"], task["contextId"])
    assert done["status"]["state"] == COMPLETED


@pytest.mark.kit("CORE-MULTI-005")
async def test_follow_up_may_have_the_id_of_an_earlier_message(caller: Caller) -> None:
    message = write("tck-input-required")
    task = await caller.make_task(message)
    for _ in range(2):
        again = await caller.make_task({**message, "taskId": task["id"]})
        assert again["status"]["state"] == WAITING
    done = await caller.make_task(write("tck-complete-task", taskId=task["id"]))
    assert done["status"]["state"] == COMPLETED


@pytest.mark.kit("CORE-MULTI-006")
async def test_task_with_the_context_of_another_is_refused(caller: Caller) -> None:
    task = await caller.make_task(write("tck-input-required"))
    params = make_params(write("tck-complete-task", taskId=task["id"], contextId="elsewhere"))
    errors.INVALID_PARAMS.check((await caller.call("SendMessage", params)).refused, caller.binding)
    assert (await caller.read_task(task["id"]))["status"]["state"] == WAITING


@pytest.mark.kit("CORE-SEND-001")
async def test_message_reaches_the_agent_as_it_was_written(caller: Caller, site: Site) -> None:
    message = write("tck-complete-task", metadata={"mine": {"count": 3, "deep": [1, None]}})
    message["parts"] += [{"data": {"key": [1, 2.5, "three"]}}, {"raw": "aGVsbG8=", "filename": "f"}]
    check_task(await caller.make_task(message))
    (received,) = await site.agent.list_received(message["messageId"])
    assert {name: received[name] for name in ("messageId", "role", "metadata", "parts")} == {
        name: message[name] for name in ("messageId", "role", "metadata", "parts")
    }

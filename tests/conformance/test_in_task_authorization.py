"""An agent that needs a person's consent or credential during a task (A2A 1.0 section 7.6)."""

from __future__ import annotations

import pytest

from tests.conformance.callers import Caller, make_params
from tests.conformance.shapes import COMPLETED, check_task, find_state
from tests.conformance.site import Site, write

pytestmark = pytest.mark.anyio

AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"


@pytest.mark.kit("AUTH-INTASK-001", "AUTH-INTASK-002", "AUTH-INTASK-003")
async def test_consent_request_is_shown_as_the_state_of_the_task(caller: Caller) -> None:
    answer = await caller.send(write("psl-auth"))
    task = answer["task"]
    check_task(task)
    assert task["status"]["state"] == AUTH_REQUIRED
    assert task["status"]["message"]["parts"][0]["text"] == "Sign in somewhere else."
    assert await caller.read_task(task["id"]) == task


@pytest.mark.kit("AUTH-INTASK-004", "AUTH-INTASK-005")
async def test_stream_stays_open_and_shows_a_sign_in_elsewhere(caller: Caller, site: Site) -> None:
    message = write("psl-auth")
    async with caller.stream("SendStreamingMessage", make_params(message)) as stream:
        async for item in stream:
            if find_state(item) == AUTH_REQUIRED:
                break
        await site.agent.release(message["messageId"])
        rest = await stream.collect()
    assert "signed in" in str(rest)
    assert find_state(rest[-1]) == COMPLETED


@pytest.mark.kit("AUTH-INTASK-006")
@pytest.mark.requirement("ANS-7")
async def test_task_that_waits_for_consent_accepts_messages(caller: Caller, site: Site) -> None:
    task = await caller.make_task(write("psl-consent"))
    message = write("tck-complete-task", "what is it for?", taskId=task["id"])
    said = (await caller.call("SendMessage", make_params(message))).said["task"]
    assert said["id"] == task["id"]
    assert find_state({"task": said}) == COMPLETED
    (received,) = await site.agent.list_received(message["messageId"])
    assert received["parts"] == [{"text": "what is it for?"}]
    asked, question, answer = said["history"][:3]
    assert [one["role"] for one in (asked, question, answer)] == [
        "ROLE_USER",
        "ROLE_AGENT",
        "ROLE_USER",
    ]
    assert answer["parts"][0]["text"] == "withheld"
    assert "what is it for?" not in str(said["history"])

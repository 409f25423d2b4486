"""Authorization, and that others learn nothing (A2A 1.0 sections 3.3.2, 7.4 and 13.1)."""

from __future__ import annotations

import httpx
import pytest

from tests.conformance import errors
from tests.conformance.callers import JSONRPC, Caller, Json, make_params
from tests.conformance.site import KEYS, Site, open_http, write

pytestmark = pytest.mark.anyio

UNAUTHENTICATED = errors.Error(-32603, 401, "UNAUTHENTICATED")
DENIED = errors.Error(-32603, 403, "PERMISSION_DENIED")
ON_A_TASK = ("GetTask", "CancelTask")


@pytest.mark.kit("AUTH-SERVER-002", "BIND-EQUIV-004")
@pytest.mark.parametrize("operation", ["SendMessage", "GetTask", "ListTasks", "CancelTask"])
async def test_call_without_a_valid_credential_is_refused_for_every_operation(
    site: Site, binding: str, operation: str
) -> None:
    params = make_params(write("tck-complete-task")) if operation == "SendMessage" else {}
    params |= {"id": "x"} if operation in ON_A_TASK else {}
    async with site.open_caller(binding, None) as anonymous:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic YTpi"}):
            answer = await anonymous.call(operation, params, **headers)
            UNAUTHENTICATED.check(answer.refused, binding)
            assert answer.status in {0, httpx.codes.UNAUTHORIZED}


@pytest.mark.kit("AUTH-SERVER-002")
async def test_stream_without_a_credential_does_not_begin(site: Site, binding: str) -> None:
    async with site.open_caller(binding, None) as anonymous:
        params = make_params(write("tck-complete-task"))
        async with anonymous.stream("SendStreamingMessage", params) as stream:
            assert stream.refusal is not None
            UNAUTHENTICATED.check(stream.refusal, binding)


@pytest.mark.kit("AUTH-SERVER-002")
async def test_refusal_names_the_authentication_scheme_of_the_card(site: Site) -> None:
    async with site.open_caller(JSONRPC, None) as anonymous:
        answer = await anonymous.call("ListTasks", {})
    assert answer.headers["www-authenticate"].startswith("Bearer")
    card = (await site.read_card()).json()
    schemes = card["securitySchemes"]
    (required,) = card["securityRequirements"][:1]
    assert set(required["schemes"]) <= set(schemes)


@pytest.mark.kit("AUTH-SCOPE-001")
async def test_right_is_checked_for_every_operation(site: Site, binding: str) -> None:
    async with site.open_caller(binding, "reader") as reader:
        send = make_params(write("tck-complete-task"))
        DENIED.check((await reader.call("SendMessage", send)).refused, binding)
        DENIED.check((await reader.call("CancelTask", {"id": "x"})).refused, binding)
        async with reader.stream("SendStreamingMessage", send) as stream:
            assert stream.refusal is not None
            DENIED.check(stream.refusal, binding)
        assert (await reader.call("ListTasks", {})).said["tasks"] == []


@pytest.mark.kit("AUTH-SCOPE-002", "AUTH-SCOPE-003")
async def test_task_of_another_caller_is_not_found(caller: Caller, site: Site) -> None:
    task = await caller.make_task(write("tck-input-required"))
    async with site.open_caller(caller.binding, "bob") as bob:
        for operation in ON_A_TASK:
            foreign = (await bob.call(operation, {"id": task["id"]})).refused
            missing = (await bob.call(operation, {"id": _change_last(task["id"])})).refused
            errors.TASK_NOT_FOUND.check(foreign, caller.binding)
            assert str(foreign).replace(task["id"], "") == str(missing).replace(
                _change_last(task["id"]), ""
            )
        send = make_params(write("tck-complete-task", taskId=task["id"]))
        errors.TASK_NOT_FOUND.check((await bob.call("SendMessage", send)).refused, caller.binding)
        async with bob.stream("SubscribeToTask", {"id": task["id"]}) as stream:
            assert stream.refusal is not None
            errors.TASK_NOT_FOUND.check(stream.refusal, caller.binding)
        listed = (await bob.call("ListTasks", {"contextId": task["contextId"]})).said
        assert (listed["tasks"], listed["totalSize"]) == ([], 0)
    assert (await caller.read_task(task["id"]))["status"] == task["status"]


@pytest.mark.kit("AUTH-SCOPE-002")
async def test_same_context_id_of_two_callers_is_two_contexts(caller: Caller, site: Site) -> None:
    context = write("shared")["messageId"]
    mine = await caller.make_task(write("tck-complete-task", contextId=context))
    async with site.open_caller(caller.binding, "bob") as bob:
        theirs = await bob.make_task(write("tck-complete-task", contextId=context))
        listed = (await bob.call("ListTasks", {"contextId": context})).said["tasks"]
    assert [task["id"] for task in listed] == [theirs["id"]] != [mine["id"]]


@pytest.mark.kit("AUTH-SCOPE-003")
@pytest.mark.parametrize("path", ["", "/message:send", "/tasks"])
async def test_forbidden_agent_is_not_found(site: Site, path: str) -> None:
    headers = {"Authorization": f"Bearer {KEYS['stranger']}", "A2A-Version": "1.0"}
    body: Json = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
    answers: list[tuple[int, str]] = []
    async with open_http(headers) as http:
        for agent in ("conformance", "no-such-agent"):
            url = site.find_url(agent) + path
            answer = await (http.get(url) if path == "/tasks" else http.post(url, json=body))
            answers.append((answer.status_code, answer.text.replace(agent, "…")))
    assert answers[0][0] == httpx.codes.NOT_FOUND
    assert answers[0] == answers[1]


@pytest.mark.kit("BIND-EQUIV-004")
async def test_credential_is_valid_for_all_bindings(site: Site, binding: str) -> None:
    async with site.open_caller(JSONRPC) as first:
        task = await first.make_task(write("tck-complete-task"))
    async with site.open_caller(binding) as other:
        assert (await other.read_task(task["id"])) == task


def _change_last(task_id: str) -> str:
    return task_id[:-1] + ("0" if task_id[-1] != "0" else "1")

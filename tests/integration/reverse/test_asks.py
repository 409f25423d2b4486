"""An agent that dialled in calls another agent over its own socket, with the permissions of its credential."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import Message, Part
from a2a.types import Role as Speaker

from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.client.agent import (
    AnswersCut,
    CallRefused,
    Reply,
    ReverseAgent,
    UnknownOutcome,
)
from passerelle.core.wire.json import JsonObject
from passerelle.runtime.memory.budget import Budget, MemoryShortage
from tests.integration.callers.rig import Instance
from tests.integration.devices.asking import BOB, bearer, list_pending
from tests.integration.reverse.rig import ASKER, NAME, Answer, Caller, Rig, read_texts
from tests.integration.reverse.test_rights import Frame, open_raw
from tests.support.sdk_agent import SdkExecutor, build_card, make_app
from tests.support.tcp_proxy import FaultProxy, fault_proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def write(text: str, message_id: str = "own-1") -> JsonObject:
    return {"message": {"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": text}]}}


def ask(call: str, method: str = "SendMessage", **members: object) -> Frame:
    return {"t": "rpc", "id": call, "m": f"a2a:{method}", "to": NAME, **members}


async def send(asker: ReverseAgent, text: str, idem: str | None = None) -> Answer:
    answer = await asker.call(NAME, "SendMessage", write(text), idem=idem)
    return cast("Answer", answer["task"])


async def collect(asker: ReverseAgent, params: JsonObject, window: int = 32) -> list[Reply]:
    """Returns all answers of a streaming call."""
    replies = asker.stream(NAME, "SendStreamingMessage", params, window=window)
    return [one async for one in replies]


async def is_at_work(rig: Rig) -> None:
    await wait_until(lambda: bool(rig.agent.executor.executed), 15, "the agent is at work")


async def until_ended(instance: Instance) -> None:
    """Waits until the caller's only task has completed, as it sees it over HTTP."""
    headers = {"Authorization": f"Bearer {ASKER}-key"}
    body: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}

    async def has_ended() -> bool:
        answer = await instance.http.post(f"/agents/{NAME}", json=body, headers=headers)
        states = [task["status"]["state"] for task in answer.json()["result"]["tasks"]]
        return states == ["TASK_STATE_COMPLETED"]

    await wait_until(has_ended, 20, "the task has completed")


def count_calls(instance: Instance, operation: str, outcome: str) -> float:
    sample = instance.gateway.metrics.registry.get_sample_value(
        "passerelle_requests_total",
        {"agent": NAME, "operation": operation, "outcome": outcome},
    )
    return sample or 0.0


# ------------------------------------------------------------ unary calls


async def test_an_agent_gets_the_answer_of_another_one_and_owns_the_task(rig: Rig) -> None:
    instance = await rig.start_with_asker()
    async with rig.link(instance), rig.link_asker(instance) as asker:
        task = await send(asker, "build it")
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        assert read_texts(task) == ["build it"]
        again = await asker.call(NAME, "GetTask", {"id": task["id"]})
        assert read_texts(again) == ["build it"]
        seen = await Caller(instance).ask("GetTask", {"id": task["id"]})
        assert seen["error"]["data"][0]["reason"] == "TASK_NOT_FOUND"
    assert rig.agent.executor.executed == {"own-1": 1}


async def test_large_task_draws_on_the_memory_budget_until_it_was_sent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await rig.start_with_asker()
    taken: list[tuple[str, int]] = []
    take = Budget.take

    def note(self: Budget, holder: str, amount: int) -> MemoryShortage | None:
        taken.append((holder, amount))
        return take(self, holder, amount)

    async with rig.link(instance), rig.link_asker(instance) as asker:
        text = "x" * 800_000
        monkeypatch.setattr("passerelle.delegation.runs.draft.LARGE_BYTES", len(text) // 2)
        task = await send(asker, text)
        monkeypatch.setattr(Budget, "take", note)
        for method in ("GetTask", "GetTask"):
            assert read_texts(await asker.call(NAME, method, {"id": task["id"]})) == [text]
    assert [holder for holder, _ in taken] == [f"caller:{ASKER}"] * 2
    assert min(amount for _, amount in taken) > len(text)
    assert instance.face.parts.memory.budget.held == 0


async def test_an_agent_sees_no_task_of_another_caller(rig: Rig) -> None:
    instance = await rig.start_with_asker()
    async with rig.link(instance), rig.link_asker(instance) as asker:
        theirs = await Caller(instance).send("hello")
        for method in ("GetTask", "CancelTask"):
            with pytest.raises(CallRefused) as refused:
                await asker.call(NAME, method, {"id": theirs["id"]})
            assert refused.value.code == "not_found"
        with pytest.raises(CallRefused) as refused:
            await anext(asker.stream(NAME, "SubscribeToTask", {"id": theirs["id"]}))
        assert refused.value.code == "not_found"
        assert (await asker.call(NAME, "ListTasks", {}))["tasks"] == []


async def test_a_forbidden_agent_equals_an_unknown_one(
    rig: Rig,
) -> None:
    instance = await rig.start_with_asker()
    async with rig.link(instance), rig.link_asker(instance) as asker:
        said: list[tuple[str, str]] = []
        for name in ("vault", "nobody"):
            with pytest.raises(CallRefused) as refused:
                await asker.call(name, "SendMessage", write("open"))
            said.append((refused.value.code, str(refused.value).replace(name, "X")))
        assert said[0] == said[1]
        assert said[0][0] == "not_found"


@pytest.mark.parametrize(
    ("scopes", "method"),
    [(("tasks:read",), "SendMessage"), (("tasks:read",), "CancelTask"), ((), "GetTask")],
)
async def test_a_call_requires_the_same_scope_as_over_every_binding(
    rig: Rig, scopes: tuple[str, ...], method: str
) -> None:
    instance = await rig.start_with_asker(scopes=scopes)
    async with rig.link(instance), rig.link_asker(instance) as asker:
        with pytest.raises(CallRefused) as refused:
            await asker.call(NAME, method, write("build it") | {"id": "task_x"})
        assert refused.value.code == "forbidden"
    assert rig.agent.executor.executed == {}


async def test_calls_of_an_agent_count_against_its_limits(rig: Rig) -> None:
    instance = await rig.start_with_asker(limits={"concurrency": 1})
    async with rig.link(instance), rig.link_asker(instance) as asker:
        first = asyncio.create_task(send(asker, "silent"))
        await is_at_work(rig)
        with pytest.raises(CallRefused) as refused:
            await asker.call(NAME, "GetTask", {"id": "task_x"})
        assert refused.value.code == "concurrency_limited"
        assert refused.value.retry_s is not None
        rig.agent.executor.silence.set()
        assert (await first)["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_policy_rule_applies_to_a_call_of_an_agent(rig: Rig) -> None:
    closed = {"rules": [{"name": "closed", "effect": "deny", "about": ["delegations"]}]}
    instance = await rig.start_with_asker(policy=closed)
    async with rig.link(instance), rig.link_asker(instance) as asker:
        task = await send(asker, "build it")
    assert task["status"]["state"] == "TASK_STATE_REJECTED"
    assert rig.agent.executor.executed == {}


async def test_a_held_call_continues_when_a_person_allows_it(rig: Rig) -> None:
    hold = {"name": "hold", "effect": "ask", "about": ["delegations"]}
    tier = {"risk": "low", "who": ["bob"]}
    instance = await rig.start_with_asker(
        policy={"rules": [hold], "approvers": [tier]}, people=[BOB]
    )
    async with rig.link(instance), rig.link_asker(instance) as asker:
        patient: JsonObject = {PERMISSION: {"await_approval": True}}
        calling = asyncio.create_task(collect(asker, {**write("build it"), "metadata": patient}))

        async def find() -> JsonObject | None:
            return next(iter(await list_pending(instance, "bob")), None)

        view = await wait_until(find, 20, "the approval is pending")
        assert view is not None
        assert rig.agent.executor.executed == {}
        answer = {
            "rev": view["rev"],
            "digest": view["digest"],
            "decisionId": "dec_1",
            "optionId": "send",
        }
        answered = await instance.http.post(
            f"/v1/approvals/{view['actionId']}/decision",
            json=answer,
            headers={**bearer("bob"), "Idempotency-Key": "k-1"},
        )
        assert answered.status_code == 200, answered.text
        *_, last = await calling
    assert cast("Any", last.data)["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert len(rig.agent.executor.executed) == 1


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("Fly", {}, "unknown_method"),
        ("SendMessage", {}, "invalid_input"),
        ("GetTask", {"id": "task_x", "tenant": "other"}, "invalid_input"),
        ("GetTask", {"id": "task_x", "tenant": []}, "invalid_input"),
        ("SubscribeToTask", {"id": "task_x", "after": 7}, "invalid_input"),
    ],
)
async def test_an_invalid_call_is_refused_by_its_code(
    rig: Rig, method: str, params: JsonObject, code: str
) -> None:
    instance = await rig.start_with_asker()
    async with rig.link(instance), rig.link_asker(instance) as asker:
        with pytest.raises(CallRefused) as refused:
            await asker.call(NAME, method, params)
        assert refused.value.code == code
        with pytest.raises(CallRefused) as refused:
            await asker.call(NAME, "GetTask", {"id": "x"}, headers={"A2A-Version": "0.3"})
        assert refused.value.code == "version_not_supported"


async def test_only_an_agent_can_call_agents_over_a_channel(rig: Rig) -> None:
    instance = await rig.start_with_asker()
    async with rig.link(instance), open_raw(instance, ASKER, role="ui") as raw:
        await raw.send_frames(ask("1", d=write("build it")))
        refused = await raw.receive("err")
        assert (refused["id"], refused["code"]) == ("1", "unknown_method")
    assert rig.agent.executor.executed == {}


async def test_long_content_of_a_call_is_chunked_both_ways(rig: Rig) -> None:
    instance = await rig.start_with_asker()
    text = 'é"\\' * 60_000
    async with rig.link(instance), rig.link_asker(instance) as asker:
        assert read_texts(await send(asker, text)) == [text]


class Delegating(SdkExecutor):
    """Delegates its input to the other agent, over the link that it is called over."""

    asker: ReverseAgent

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = await send(self.asker, context.get_user_input())
        reply = Message(
            message_id=f"{context.context_id}-reply",
            role=Speaker.ROLE_AGENT,
            context_id=context.context_id,
            parts=[Part(text=f"they said: {read_texts(task)[0]}")],
        )
        await event_queue.enqueue_event(reply)


async def test_an_agent_calls_another_one_during_its_own_call(rig: Rig) -> None:
    instance = await rig.start_with_asker()
    executor = Delegating()
    card = build_card("http://10.0.0.8:9000/", ("JSONRPC/1.0",))
    app = make_app(DefaultRequestHandler(executor, InMemoryTaskStore(), card), card)
    async with rig.link(instance), rig.link_asker(instance, handler=app) as asker:
        executor.asker = asker
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": write("a house")}
        headers = {"Authorization": "Bearer ada-key"}
        answer = await instance.http.post(f"/agents/{ASKER}", json=body, headers=headers)
    assert answer.json()["result"]["message"]["parts"] == [{"text": "they said: a house"}]


# ------------------------------------------------------------ streams


def read_pieces(replies: list[Reply]) -> list[str]:
    return [
        cast("str", part["text"])
        for reply in replies
        if "artifactUpdate" in reply.data
        for part in cast("Any", reply.data)["artifactUpdate"]["artifact"]["parts"]
    ]


async def test_a_stream_of_another_agent_is_complete_and_in_order(rig: Rig) -> None:
    instance = await rig.start_with_asker()
    async with rig.link(instance), rig.link_asker(instance) as asker:
        replies = await collect(asker, write("chunks 80"), 3)
    assert read_pieces(replies) == [f"chunk-{number} " for number in range(1, 81)]
    assert "task" in replies[0].data
    assert cast("Any", replies[-1].data)["statusUpdate"]["status"]["state"].endswith("COMPLETED")
    assert len({reply.cursor for reply in replies}) == len(replies)


async def test_items_in_flight_do_not_exceed_the_window(rig: Rig) -> None:
    instance = await rig.start_with_asker()
    async with rig.link(instance), open_raw(instance, ASKER) as raw:
        await raw.send_frames(ask("s1", "SendStreamingMessage", d=write("chunks 40"), win=2))
        assert [(await raw.receive("item"))["n"] for _ in range(2)] == [1, 2]
        await until_ended(instance)
        # All items are stored by now, and a heartbeat is answered after what was sent before it.
        await raw.send_frames({"t": "hb", "n": 7})
        assert (await raw.receive_any())["t"] == "hb", "a third item came"
        await raw.send_frames({"t": "win", "id": "s1", "n": 1_000_000})
        assert [(await raw.receive("item"))["n"] for _ in range(2)] == [3, 4]
        await raw.send_frames({"t": "hb", "n": 8})
        assert (await raw.receive_any())["t"] == "hb", (
            "the window does not grow beyond what was sent"
        )


async def test_a_cancelled_call_gets_no_answer_and_its_task_continues(rig: Rig) -> None:
    instance = await rig.start_with_asker()
    async with rig.link(instance), open_raw(instance, ASKER) as raw:
        await raw.send_frames(ask("1", d=write("silent")))
        await is_at_work(rig)
        await raw.send_frames({"t": "cancel", "id": "1"})
        cancelled = await raw.receive("err")
        assert (cancelled["id"], cancelled["code"]) == ("1", "cancelled")
        rig.agent.executor.silence.set()

        await until_ended(instance)
        await raw.send_frames(ask("1", "ListTasks", d={}))
        assert len((await raw.receive("ok"))["d"]["tasks"]) == 1, "the id is free again"
    assert rig.agent.executor.executed == {"own-1": 1}


async def test_a_closed_stream_ends_at_the_gateway(rig: Rig) -> None:
    instance = await rig.start_with_asker()
    async with rig.link(instance), rig.link_asker(instance) as asker:
        async with aclosing(asker.stream(NAME, "SendStreamingMessage", write("silent"))) as replies:
            first = cast("Any", (await anext(replies)).data)["task"]

        await wait_until(
            lambda: count_calls(instance, "SendStreamingMessage", "left") == 1,
            15,
            "the gateway has counted the closed stream",
        )
        rig.agent.executor.silence.set()
        found = await asker.call(NAME, "GetTask", {"id": first["id"]})
        assert found["id"] == first["id"]


# ------------------------------------------------------------ cut links


async def take_until_cut(asker: ReverseAgent, taken: list[Reply], proxy: FaultProxy) -> None:
    """Takes ten answers, cuts the link, and takes those that had arrived before."""
    async with aclosing(
        asker.stream(NAME, "SendStreamingMessage", write("chunks 40"), window=2)
    ) as replies:
        async for reply in replies:
            taken.append(reply)
            if len(taken) == 10:
                proxy.cut()


async def test_a_cut_stream_names_its_task_and_resumes_exactly(
    rig: Rig,
) -> None:
    instance = await rig.start_with_asker()
    port = instance.http.base_url.port
    async with fault_proxy(f"127.0.0.1:{port}") as proxy, rig.link(instance):
        url = f"ws://127.0.0.1:{proxy.port}/v1/channel"
        async with rig.link_asker(instance, url=url) as asker:
            taken: list[Reply] = []
            with pytest.raises(AnswersCut) as cut:
                await take_until_cut(asker, taken, proxy)
            assert (cut.value.task, cut.value.cursor) == (
                cast("Any", taken[0].data)["task"]["id"],
                taken[-1].cursor,
            )
            follow: JsonObject = {"id": cut.value.task, "after": cut.value.cursor}
            taken += [one async for one in asker.stream(NAME, "SubscribeToTask", follow)]
    assert read_pieces(taken) == [f"chunk-{number} " for number in range(1, 41)]
    assert rig.agent.executor.executed == {"own-1": 1}


async def test_an_invalid_cursor_is_answered_with_the_task(rig: Rig) -> None:
    instance = await rig.start_with_asker()
    async with rig.link(instance), rig.link_asker(instance) as asker:
        task = await send(asker, "build it")
        for after in ("6a77b89f.3.d1b96cc6", "nowhere"):
            follow: JsonObject = {"id": task["id"], "after": after}
            (only,) = [one async for one in asker.stream(NAME, "SubscribeToTask", follow)]
            assert read_texts(cast("Any", only.data)["task"]) == ["build it"]


async def test_a_call_with_a_key_survives_a_cut_link_and_one_without_is_unknown(
    rig: Rig,
) -> None:
    instance = await rig.start_with_asker()
    port = instance.http.base_url.port
    async with fault_proxy(f"127.0.0.1:{port}") as proxy, rig.link(instance):
        url = f"ws://127.0.0.1:{proxy.port}/v1/channel"
        async with rig.link_asker(instance, url=url) as asker:
            keyed = asyncio.create_task(send(asker, "silent", idem="k-1"))
            await is_at_work(rig)
            bare = asyncio.create_task(asker.call(NAME, "SendMessage", write("silent", "own-2")))
            await wait_until(lambda: len(rig.agent.executor.executed) == 2, 15, "both are at work")
            proxy.cut()
            with pytest.raises(UnknownOutcome):
                await bare
            await asker.wait_served()
            rig.agent.executor.silence.set()
            assert (await keyed)["status"]["state"] == "TASK_STATE_COMPLETED"
    assert rig.agent.executor.executed == {"own-1": 1, "own-2": 1}

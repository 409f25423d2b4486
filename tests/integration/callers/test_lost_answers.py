"""A lost tail held a question or its answer: the question is open again or closed, as its agent reports.

No decision or message is applied a second time without its sender, nothing reaches the agent twice, and no task hangs.
The tests remove the tail from a running engine and report the loss as a lease would.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest

from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.json import Json, JsonObject
from tests.integration.callers.rig import Instance, Rig
from tests.integration.callers.test_lost_tail import check_repaired, read_record
from tests.integration.devices.asking import (
    ADA,
    PERMISSION,
    bearer,
    list_pending,
    make_answer,
    say,
)
from tests.support.asking import read_answer
from tests.support.lost_tail import take_snapshot
from tests.support.scripted_peer import ScriptedResponse
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

KEY = "ada-key"


@dataclass(slots=True)
class Asked:
    """A task that waits for an answer, at the first of its gateways."""

    rig: Rig
    instances: list[Instance]
    task: EntityRef

    @property
    def one(self) -> Instance:
        """The instance that callers and approvers use."""
        return self.instances[0]

    async def await_question(self, but: str = "") -> JsonObject:
        """Returns the only pending question of the inbox, once its id is not ``but``."""

        async def find() -> JsonObject | None:
            found = await list_pending(self.one, "ada")
            return found[0] if len(found) == 1 and found[0]["actionId"] != but else None

        found = await wait_until(find, 20, "one question waits")
        assert found is not None
        return found

    async def await_status(self, *wanted: Status) -> None:
        async def has_status() -> bool:
            return (await read_record(self.one, self.task)).status in wanted

        await wait_until(has_status, 20, f"the task is {wanted}")

    async def check(self, status: Status, answers: int) -> None:
        """The task ended with ``status``, its agent has this many answers, and nothing is left open or damaged."""
        await self.await_status(*ENDED)
        assert (await read_record(self.one, self.task)).status is status
        assert len(self.rig.peer.messages) == 1 + answers
        ids = [message["messageId"] for message in self.rig.peer.messages]
        assert len(set(map(str, ids))) == len(ids)
        await self.await_gone()
        await check_repaired(self.rig, *self.instances)

    async def await_messages(self, count: int) -> None:
        await wait_until(
            lambda: len(self.rig.peer.messages) == count, 20, f"the agent has {count} messages"
        )

    async def await_gone(self) -> None:
        async def is_empty() -> bool:
            return await list_pending(self.one, "ada") == []

        await wait_until(is_empty, 20, "nothing waits for an answer")

    async def await_closed(self, question: JsonObject) -> None:
        async def is_closed() -> bool:
            ref = EntityRef(EntityKind.ACTION, str(question["actionId"]))
            record = (await self.one.gateway.parts.writes.load_one(ref)).record
            return isinstance(record, ActionRecord) and not record.is_open

        await wait_until(is_closed, 20, "the question is closed, as its agent has gone on")

    def lose(self) -> None:
        """Reports the loss in the task's shard, as a lease would."""
        self.one.gateway.duties.repair.find_loss(self.task.shard, 0, "lease")


@pytest.fixture(params=[1, 2], ids=["one gateway", "two gateways"])
def count(request: pytest.FixtureRequest) -> int:
    return cast("int", request.param)


def make_form(name: str) -> list[Json]:
    """Returns the parts of a permission request in the gateway's own dialect."""
    form: JsonObject = {
        "action_id": name,
        "rev": 1,
        "digest": "sha256:ab",
        "kind": "permission",
        "title": "Pay 40 EUR",
        "subject": {"type": "tool_call", "name": "pay", "arguments": {"amount": "40"}},
        "options": [
            {"option_id": "yes", "name": "Pay", "kind": "allow_once"},
            {"option_id": "no", "name": "Do not", "kind": "reject_once"},
        ],
        "risk": "medium",
    }
    return [{"data": {PERMISSION: form}}]


@dataclass(slots=True)
class Agent:
    """Requests approval once ``asks`` is set, and ends the task after the answer once ``ends`` is set."""

    asks: asyncio.Event = field(default_factory=asyncio.Event)
    ends: asyncio.Event = field(default_factory=asyncio.Event)

    async def work(self, turn: Turn) -> None:
        """Handles the first message."""
        await turn.status("WORKING")
        await self.asks.wait()
        await turn.status("INPUT_REQUIRED", parts=make_form("pay-1"))

    async def resume(self, turn: Turn) -> None:
        """Handles the answer."""
        await turn.status("WORKING")
        await self.ends.wait()
        await turn.artifact("done")
        await turn.status("COMPLETED")


async def begin(rig: Rig, count: int, agent: Agent) -> Asked:
    """Starts a task; its agent works and has not asked yet."""
    rig.peer.next(agent.work, agent.resume)
    started = [await rig.start(clients=[ADA]) for _ in range(count)]
    answered = await started[0].send(KEY, "pay", returnImmediately=True)
    task = cast("JsonObject", answered.json()["result"]["task"])
    asked = Asked(rig, started, EntityRef(EntityKind.TASK, str(task["id"])))
    await asked.await_status(Status.RUNNING)
    return asked


async def answer(asked: Asked, question: JsonObject, option: str = "yes") -> None:
    said = await say(asked.one, bearer("ada"), make_answer(question, option))
    assert said.status_code == 200, said.text


@pytest.mark.requirement("I7", "I10")
async def test_question_that_opened_in_the_tail_is_asked_again(rig: Rig, count: int) -> None:
    agent = Agent()
    asked = await begin(rig, count, agent)
    before = take_snapshot(rig.url, asked.task.shard)
    agent.asks.set()
    lost = await asked.await_question()
    before.restore()
    asked.lose()
    again = await asked.await_question(but=str(lost["actionId"]))
    late = await say(asked.one, bearer("ada"), make_answer(lost))
    assert late.status_code == 404, "the lost question is no longer pending"
    agent.ends.set()
    await answer(asked, again)
    await asked.check(Status.COMPLETED, 1)


@pytest.mark.requirement("I7")
@pytest.mark.parametrize("ended", [True, False], ids=["has ended", "is at work"])
async def test_answer_that_the_agent_has_is_not_sent_again(
    rig: Rig, count: int, *, ended: bool
) -> None:
    agent = Agent()
    asked = await begin(rig, count, agent)
    agent.asks.set()
    question = await asked.await_question()
    before = take_snapshot(rig.url, asked.task.shard)
    await answer(asked, question)
    await asked.await_messages(2)
    if ended:
        agent.ends.set()
        await asked.await_status(Status.COMPLETED)
    before.restore()
    asked.lose()
    await asked.await_closed(question)
    agent.ends.set()
    await asked.check(Status.COMPLETED, 1)


@pytest.mark.requirement("I7")
async def test_decision_that_the_agent_lacks_is_requested_again(rig: Rig, count: int) -> None:
    agent = Agent()
    asked = await begin(rig, count, agent)
    agent.asks.set()
    question = await asked.await_question()
    before = take_snapshot(rig.url, asked.task.shard)
    refused = asyncio.Event()
    rig.peer.answer_sends(ScriptedResponse(503, after=refused))
    await answer(asked, question)
    await asked.await_messages(2)
    await asked.await_gone()
    before.restore()
    asked.lose()
    again = await asked.await_question()
    assert again["actionId"] == question["actionId"]
    refused.set()
    agent.ends.set()
    await answer(asked, again, "no")
    await asked.check(Status.COMPLETED, 2)
    said = [read_answer(message)["option_id"] for message in rig.peer.messages[1:]]
    assert said == ["yes", "no"], "the first one was refused, and is not sent again"


@pytest.mark.requirement("I7")
async def test_answer_of_the_caller_in_the_tail_is_not_sent_again(rig: Rig, count: int) -> None:
    agent = Agent()
    asked = await begin(rig, count, agent)
    agent.asks.set()
    question = await asked.await_question()
    before = take_snapshot(rig.url, asked.task.shard)
    form: JsonObject = {
        "action_id": question["actionId"],
        "rev": question["rev"],
        "digest": question["digest"],
        "option_id": "yes",
        "decision_id": "dec_caller",
    }
    message: JsonObject = {
        "messageId": "words",
        "role": "ROLE_USER",
        "taskId": asked.task.id,
        "parts": [{"data": {PERMISSION: form}}],
    }
    params: JsonObject = {"message": message, "configuration": {"returnImmediately": True}}
    said = await asked.one.call(KEY, "SendMessage", params)
    assert "result" in said.json(), said.text
    await asked.await_messages(2)
    before.restore()
    asked.lose()
    agent.ends.set()
    await asked.check(Status.COMPLETED, 1)

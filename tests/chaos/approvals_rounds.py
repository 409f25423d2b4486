"""A gateway dies at every point in the life of a question; afterwards nothing is lost, and nothing was done twice.

Held against the stored facts and what the agent got: each question was closed once, each answer that was owed has one
end, and the agent was sent at most one answer to each of its questions.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import aiohttp

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from tests.chaos.approvals_plan import Death, Errand, plan
from tests.chaos.approvals_site import AGENT, KEY, ApprovalSite, run_approval_site
from tests.chaos.records import open_records
from tests.races.proofs import Question, read_questions
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from random import Random

    from passerelle.core.json import JsonObject

_AT_ONCE: Final = 4
_ENDS_S: Final = 60.0
"""An attempt of unknown outcome is repeated after 35 s; more than that is a fault until it is explained."""
_RELAYED_S: Final = 10.0
"""A task may end before its question is in the inbox: who copies it may have died, and the lease has to run out."""
_ENDED: Final = frozenset(f"TASK_STATE_{one}" for one in ("COMPLETED", "CANCELED", "FAILED"))
_YES: Final = ("allow_once", "answer")


class Asker:
    """A caller and a person in one: tries either gateway until one answers."""

    def __init__(self, site: ApprovalSite, http: aiohttp.ClientSession, errand: Errand) -> None:
        self.site, self.http, self.errand = site, http, errand
        self.task = ""
        self.decided: dict[str, str] = {}

    async def run(self) -> None:
        """Has the question asked, answers it, and stays until the task has ended."""
        await self._begin()
        if self.errand.death is Death.IN_SUPERSEDE:
            await wait_until(self._find_open, _ENDS_S, f"{self.errand.label}: the question stands")
            self.site.nudges[self.errand.label].set()
            await wait_until(self._find_next, _ENDS_S, f"{self.errand.label}: the next one stands")
        await wait_until(self._go_on, _ENDS_S, f"{self.errand.label}: the task ends")

    async def _begin(self) -> None:
        message: JsonObject = {
            "messageId": f"m-{self.errand.label}",
            "role": "ROLE_USER",
            "contextId": f"ctx-{self.errand.label}",
            "parts": [{"text": f"ask {self.errand.label}"}],
        }
        body: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage"}
        headers = {"A2A-Version": "1.0", "Idempotency-Key": f"key-{self.errand.label}"}

        async def send(base: str) -> bool:
            url = f"{base}/agents/{AGENT}"
            posted = {**body, "params": {"message": message}}
            async with self.http.post(url, json=posted, headers=headers) as response:
                # Who only wants it begun leaves once there is a task.
                async for line in response.content:
                    if b'"task"' in line:
                        found = line.decode().partition('"task":{"id":"')[2].partition('"')[0]
                        self.task = found or self.task
                        return bool(self.task)
            return bool(self.task)

        await self._try(send)

    async def _go_on(self) -> bool:
        """One look: whatever is open is answered; whether the task has ended."""
        for view in await self._list_open():
            if self.errand.death is not Death.IN_EXPIRY:
                await self._decide(view)
        task = await self._get_task()
        return text_at(object_at(task, "status"), "state") in _ENDED

    async def _find_open(self) -> list[JsonObject]:
        return await self._list_open()

    async def _find_next(self) -> bool:
        return any("-next" in str(view) for view in await self._list_open())

    async def _list_open(self) -> list[JsonObject]:
        async def read(base: str) -> JsonObject:
            async with self.http.get(f"{base}/v1/tasks/{self.task}") as response:
                return cast("JsonObject", await response.json(content_type=None))

        record = await self._try(read)
        views: list[JsonObject] = []
        for action in cast("list[str]", record.get("openActions") or []):

            async def look(base: str, action: str = action) -> JsonObject:
                async with self.http.get(f"{base}/v1/approvals/{action}") as response:
                    return cast("JsonObject", await response.json(content_type=None))

            views.append(await self._try(look))
        return [view for view in views if view.get("state") == "pending"]

    async def _decide(self, view: JsonObject) -> None:
        action = str(view["actionId"])
        options = objects_at(view, "options")
        option = next(one for one in options if one["kind"] in _YES)
        decision = self.decided.setdefault(action, f"dec_{secrets.token_hex(8)}")
        answer: JsonObject = {
            "rev": view["rev"],
            "digest": view["digest"],
            "decisionId": decision,
            "optionId": option["optionId"],
        }
        if option["kind"] == "answer":
            answer["content"] = {"text": "blue"}

        async def post(base: str) -> None:
            url = f"{base}/v1/approvals/{action}/decision"
            headers = {"Idempotency-Key": decision}
            async with self.http.post(url, json=answer, headers=headers) as response:
                await response.read()

        await self._try(post)

    async def _get_task(self) -> JsonObject:
        body: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": "GetTask"}

        async def read(base: str) -> JsonObject:
            posted = {**body, "params": {"id": self.task}}
            url, headers = f"{base}/agents/{AGENT}", {"A2A-Version": "1.0"}
            async with self.http.post(url, json=posted, headers=headers) as response:
                said = cast("JsonObject", await response.json(content_type=None))
                return object_at(said, "result")

        return await self._try(read)

    async def _try(self, call: Callable[[str], Awaitable[object]]) -> JsonObject:
        """The first answer of either gateway that is one; both may be away for a while."""
        deadline = time.monotonic() + _ENDS_S
        number = 0
        while time.monotonic() < deadline:
            with suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
                found = await call(self.site.url(self.site.choose(number)))
                if found is not False:
                    return cast("JsonObject", found)
            number += 1
            await asyncio.sleep(0.1)  # bounded by the deadline
        raise AssertionError(f"{self.errand.label}: no gateway answers")


async def run_approvals(folder: Path, draw: Random, *, whole: bool) -> list[str]:
    """Every errand, and the lines of what did not hold."""
    began_s = time.monotonic()
    errands = plan(draw, whole=whole)
    headers = {"Authorization": f"Bearer {KEY}"}
    timeout = aiohttp.ClientTimeout(total=20)
    async with (
        run_approval_site(folder) as site,
        aiohttp.ClientSession(headers=headers, timeout=timeout) as http,
    ):
        running: list[asyncio.Task[list[str]]] = []
        for errand in errands:
            await site.await_one_up()
            snare = site.arm(errand)
            running.append(asyncio.create_task(_run(Asker(site, http, errand))))
            sprung = asyncio.create_task(snare.sprung.wait())
            await asyncio.wait({sprung, running[-1]}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({sprung}, timeout=_RELAYED_S)
            sprung.cancel()
            snare.is_taken = True
        faults = [fault for one in running for fault in await one]
        await site.settle()
        missed = [one for one in site.snares if not one.sprung.is_set()]
        faults += [f"{one.errand.label}: nobody died {one.errand.death}" for one in missed]
        faults += site.faults
        async with open_records(site.engine.url, folder) as records:
            await records.read()
            sessions = {record.session_id for record in records.tasks.values()}
            questions = await read_questions(records.store, sorted(sessions))
        faults += _judge(site, questions)
        took_s = time.monotonic() - began_s
        print(
            f"chaos: {len(errands)} questions, {site.deaths} deaths of a gateway, in {took_s:.0f} s",
            flush=True,
        )
    return faults


async def _run(asker: Asker) -> list[str]:
    try:
        await asker.run()
    except AssertionError as error:
        return [f"{asker.errand.label} ({asker.errand.death}, {asker.errand.dialect}): {error}"]
    return []


def _judge(site: ApprovalSite, questions: dict[str, Question]) -> list[str]:
    faults: list[str] = []
    for action, question in questions.items():
        if not action:
            continue
        if len(question.closings) != 1:
            faults.append(f"{action} was closed {len(question.closings)} times")
        elif len(question.ends) != question.closings[0].returns:
            faults.append(f"{action}: its answer came to {question.ends}")
    for task in site.peer.tasks.values():
        ids = [text_at(message, "messageId") for message in site.peer.messages]
        told = [one for one in site.peer.messages if one.get("taskId") == task.id]
        if len(told) > 1:
            faults.append(f"the agent was sent {len(told)} answers in {task.id}: {ids[-3:]}")
    return faults

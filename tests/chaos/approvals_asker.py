"""A caller and a person in one: starts an errand, answers its approval request, and waits for the end of the task."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar, cast

import aiohttp

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from tests.chaos.approvals_agent import name_agent
from tests.chaos.approvals_devices import Onlooker, greet_again
from tests.chaos.approvals_phone import pair_phone
from tests.chaos.approvals_plan import FOR_ALWAYS, NOTIFIED, Death, Errand
from tests.chaos.approvals_site import (
    PERSON,
    PHONE_OWNER,
    SECOND,
    TRAVELLER,
    ApprovalSite,
    name_key,
)
from tests.support.tcp_proxy import Cut
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.chaos.approvals_phone import Pushes
    from tests.chaos.approvals_snares import Snare

T = TypeVar("T")

_ENDS_S: Final = 60.0
"""An attempt with unknown outcome is repeated after its delivery grace; more than a minute is a fault."""
_ANSWERED_S: Final = 45.0
"""Time limit for an answer: a takeover of a message waits for the dead gateway's lease and the delivery grace."""
_NO_LIMIT: Final = aiohttp.ClientTimeout(total=None)
_ENDED: Final = frozenset(f"TASK_STATE_{one}" for one in ("COMPLETED", "CANCELED", "FAILED"))
_ONCE: Final = ("allow_once", "answer")
_ALWAYS: Final = ("allow_always",)
_OTHERS: Final = {Death.AFTER_PUSH: PHONE_OWNER, Death.IN_WELCOME: TRAVELLER}


@dataclass(slots=True)
class Asker:
    """Tries both gateways until one answers; ``onlookers`` are the person's devices."""

    site: ApprovalSite
    http: aiohttp.ClientSession
    pushes: Pushes
    onlookers: tuple[Onlooker, ...]
    snare: Snare
    task: str = ""
    decided: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def errand(self) -> Errand:
        """The errand."""
        return self.snare.errand

    @property
    def person(self) -> str:
        """The principal that the task is done for."""
        return _OTHERS.get(self.errand.death, PERSON)

    async def run(self) -> None:
        """Runs the whole errand.

        Raises:
            AssertionError: a step did not happen in time.
        """
        if self.errand.death is Death.AFTER_PUSH and not self.site.has_phone:
            self.site.has_phone = True
            await pair_phone(self.site.url(self.site.choose(0)), name_key(PHONE_OWNER), self.pushes)
        await self._begin()
        await self._wait_before_answering()
        await self._wait(self._answer_open, "the task ends")

    async def _wait_before_answering(self) -> None:
        match self.errand.death:
            case Death.IN_SUPERSEDE:
                [first] = await self._wait(self._list_open, "the approval is open")
                self.site.agent.nudges[self.errand.label].set()

                async def find_next() -> bool:
                    return any(
                        view["actionId"] != first["actionId"] for view in await self._list_open()
                    )

                await self._wait(find_next, "the next one is open")
            case Death.IN_WELCOME:
                [view] = await self._wait(self._list_open, "the approval is open")
                action = str(view["actionId"])

                async def is_listed() -> bool:
                    listed = objects_at(await self._get("/v1/approvals"), "pending")
                    return any(one["actionId"] == action for one in listed)

                await self._wait(is_listed, "it is in the inbox")
                self.snare.is_live = True
                await greet_again(self.site, name_key(self.person), action)
            case Death.IN_ESCALATION:
                await self._wait(self._list_others, "another person may answer")
            case death if death in NOTIFIED:
                await self._wait(self._is_notified, "people are notified")
            case _:
                pass

    async def _begin(self) -> None:
        name = name_agent(self.errand)
        message: JsonObject = {
            "messageId": f"m-{self.errand.label}",
            "role": "ROLE_USER",
            "contextId": f"ctx-{self.errand.label}",
            "parts": [{"text": f"ask {self.errand.label}"}],
        }
        body: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage"}
        headers = {
            **self._headers(self.person),
            "A2A-Version": "1.0",
            "Idempotency-Key": f"key-{self.errand.label}",
        }

        async def send(gateway: int) -> str | None:
            url = f"{self.site.url(gateway)}/agents/{name}"
            posted = {**body, "params": {"message": message}}
            async with self.http.post(url, json=posted, headers=headers) as response:
                # A caller that only starts the task leaves once it exists.
                async for line in response.content:
                    if b'"task"' in line:
                        found = line.decode().partition('"task":{"id":"')[2].partition('"')[0]
                        self.task = found or self.task
                        break
            return self.task or None

        await self._try(send)

    async def _answer_open(self) -> bool:
        """One look: answers whatever is open; returns whether the task has ended."""
        for view in await self._list_open():
            if self.errand.way:
                await self._reply(str(view["actionId"]))
            elif self.errand.death is not Death.IN_EXPIRY:
                await self._see(str(view["actionId"]))
                await self._decide(view)
        await self._nudge_for_grant()
        record = await self._get(f"/v1/tasks/{self.task}")
        return await self._has_ended() if not record.get("openActions") else False

    async def _nudge_for_grant(self) -> None:
        nudge = self.site.agent.nudges[self.errand.label]
        if self.errand.death is not Death.IN_GRANT_USE or not self.decided or nudge.is_set():
            return
        listed = await self.list_grants()
        if {str(one["actionId"]) for one in listed} & self.decided.keys():
            nudge.set()

    async def list_grants(self) -> list[JsonObject]:
        """The grants of the person."""
        return objects_at(await self._get("/v1/grants"), "grants")

    async def list_facts(self, action: str) -> list[JsonObject]:
        """The audit of an approval."""
        read = await self._get("/v1/audit", {"actionId": action})
        return [object_at(one, "fact") for one in objects_at(read, "facts")]

    async def _is_notified(self) -> bool:
        for view in await self._list_open():
            read = list_notifications(await self.list_facts(str(view["actionId"])))
            return NOTIFIED[self.errand.death] in read
        return False

    async def _list_others(self) -> list[JsonObject]:
        """The approvals of this task that the second person may answer."""
        views = objects_at(await self._get("/v1/approvals", who=SECOND), "pending")
        return [view for view in views if view.get("taskId") == self.task]

    async def _list_open(self) -> list[JsonObject]:
        record = await self._get(f"/v1/tasks/{self.task}")
        actions = cast("list[str]", record.get("openActions") or [])
        views = [await self._get(f"/v1/approvals/{action}") for action in actions]
        return [view for view in views if view.get("state") == "pending"]

    async def _see(self, action: str) -> None:
        """Waits until the devices have shown the approval: no person answers what they have not seen."""
        looking = self.onlookers if self.person == PERSON else ()

        def is_shown() -> bool:
            return all(action in one.shown for one in looking)

        await wait_until(is_shown, _ENDS_S, f"{action} is shown")

    async def _decide(self, view: JsonObject) -> None:
        action = str(view["actionId"])
        wanted = _ALWAYS if self.errand.death in FOR_ALWAYS and not self.decided else _ONCE
        option = next(one for one in objects_at(view, "options") if one["kind"] in wanted)
        decision = self.decided.setdefault(action, f"dec_{secrets.token_hex(8)}")
        answer: JsonObject = {
            "rev": view["rev"],
            "digest": view["digest"],
            "decisionId": decision,
            "optionId": option["optionId"],
        }
        if option["kind"] == "answer":
            answer["content"] = {"text": "blue"}
        who = SECOND if self.errand.death is Death.IN_ESCALATION else self.person

        async def post(gateway: int) -> bool:
            url = f"{self.site.url(gateway)}/v1/approvals/{action}/decision"
            headers = {**self._headers(who), "Idempotency-Key": decision}
            async with self.http.post(url, json=answer, headers=headers) as response:
                await response.read()
            if response.ok and self.errand.death is Death.AFTER_REPLY and not self.snare.is_taken:
                with suppress(Cut):
                    self.site.spring(self.snare, gateway)
            return True

        await self._try(post)

    async def _reply(self, action: str) -> None:
        """Answers with text over A2A, under one key until a gateway replies.

        Raises:
            AssertionError: a running gateway did not reply.
        """
        key = self.decided.setdefault(action, f"key-{self.errand.label}-{len(self.decided)}")
        is_stream = self.errand.way == "stream"
        message: JsonObject = {
            "messageId": f"m-{key}",
            "role": "ROLE_USER",
            "taskId": self.task,
            "parts": [{"text": f"blue for {self.errand.label}"}],
        }
        body: JsonObject = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "SendStreamingMessage" if is_stream else "SendMessage",
            "params": {"message": message},
        }
        headers = {
            **self._headers(self.person),
            "A2A-Version": "1.0",
            "Idempotency-Key": key,
        }

        async def post(gateway: int) -> bool | None:
            url = f"{self.site.url(gateway)}/agents/{name_agent(self.errand)}"
            try:
                async with asyncio.timeout(_ANSWERED_S):
                    async with self.http.post(
                        url, json=body, headers=headers, timeout=_NO_LIMIT
                    ) as response:
                        said = await response.read()
            except TimeoutError:
                raise AssertionError(f"no answer to {key} in {_ANSWERED_S:.0f} s") from None
            return True if b'"result"' in said else None

        await self._try(post)

    async def _has_ended(self) -> bool:
        body: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": "GetTask"}
        name = name_agent(self.errand)

        async def read(gateway: int) -> JsonObject:
            posted = {**body, "params": {"id": self.task}}
            url = f"{self.site.url(gateway)}/agents/{name}"
            headers = {**self._headers(self.person), "A2A-Version": "1.0"}
            async with self.http.post(url, json=posted, headers=headers) as response:
                said = cast("JsonObject", await response.json(content_type=None))
                return object_at(said, "result")

        task = await self._try(read)
        state = text_at(object_at(task, "status"), "state")
        if self.errand.way and state in _ENDED and state != "TASK_STATE_COMPLETED":
            raise AssertionError(f"the conversation ended as {task['status']}")
        return state in _ENDED

    async def _get(
        self, path: str, params: dict[str, str] | None = None, who: str | None = None
    ) -> JsonObject:
        async def read(gateway: int) -> JsonObject:
            url, headers = f"{self.site.url(gateway)}{path}", self._headers(who or self.person)
            async with self.http.get(url, params=params, headers=headers) as response:
                return cast("JsonObject", await response.json(content_type=None))

        return await self._try(read)

    @staticmethod
    def _headers(who: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {name_key(who)}"}

    async def _wait(self, look: Callable[[], Awaitable[T]], what: str) -> T:
        return await wait_until(look, _ENDS_S, what)

    async def _try(self, call: Callable[[int], Awaitable[T | None]]) -> T:
        """The first usable answer of either gateway; both may be unavailable for a while."""
        deadline = time.monotonic() + _ENDS_S
        number = 0
        while time.monotonic() < deadline:
            with suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
                found = await call(self.site.choose(number))
                if found is not None:
                    return found
            number += 1
            await asyncio.sleep(0.1)  # bounded by the deadline
        raise AssertionError("no gateway answers")


def list_notifications(facts: list[JsonObject]) -> list[tuple[str, str]]:
    """The ways by which people were notified of an approval, each with its outcome, from its facts."""
    said = [
        object_at(fact, "payload")
        for fact in facts
        if fact["type"] == "channel.permission_forwarded"
    ]
    return [(str(one["transport"]), str(one["outcome"])) for one in said]

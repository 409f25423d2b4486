"""The racers, each through its own edge, and the reply that each receives."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

import orjson

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.client.items import CallRefused
from tests.races.agent import NAME, read_question
from tests.races.plan import GATEWAYS, Act, Race, Racer, Story, Way
from tests.races.site import HOST, PERSON, Site, headers_of, name_device
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from contextlib import AbstractAsyncContextManager

    import aiohttp

    from passerelle.core.wire.json import JsonObject

Outcome: TypeAlias = Literal["won", "replayed", "lost", "refused"]

_CLOSED: Final = frozenset({"already_resolved", "expired", "cancelled", "superseded"})
"""The error codes of a lost race."""
_AGAIN: Final = frozenset({"conflict", "store_unavailable", "limited"})
"""Nothing was decided: a racer with this error tries again."""
_TRIES: Final = 10
_ENDS_S: Final = 30.0
_ENDED: Final = frozenset(f"TASK_STATE_{one}" for one in ("COMPLETED", "CANCELED", "FAILED"))


@dataclass(frozen=True, slots=True)
class RacerReply:
    """The reply to one racer: the outcome of its own answer, or the winning one."""

    device: str
    outcome: Outcome
    code: str
    winner: JsonObject
    was_cut: bool = False
    """Its channel ended meanwhile: a client that sends too many frames is rejected for ten seconds."""


@dataclass(slots=True)
class Result:
    """One race as seen from outside; ``tolds`` by request, in the gateway's ids."""

    race: Race
    task_id: str = ""
    replies: dict[str, list[RacerReply]] = field(default_factory=dict[str, list[RacerReply]])
    faults: list[str] = field(default_factory=list[str])


async def run_race(site: Site, race: Race) -> Result:
    """Makes the agent request approval, lets all racers answer, and waits until the task has ended."""
    result = Result(race)
    try:
        await _Course(site, race, result).run()
    except (AssertionError, TimeoutError) as error:
        result.faults.append(f"{type(error).__name__}: {error}")
    return result


@dataclass(slots=True)
class _Course:
    """A race in progress."""

    site: Site
    race: Race
    result: Result

    @property
    def owner(self) -> str:
        return HOST if self.race.story is Story.HOST else PERSON

    async def run(self) -> None:
        """Runs the race, and one more for each later request of the agent."""
        async with aclosing(self._follow()) as frames:
            question = await anext(frames)
            following = asyncio.create_task(_drain(frames))
            try:
                await asyncio.gather(self._stir(), self._race(question, self.race.racers))
                await wait_until(self._has_ended, _ENDS_S, f"{self.race.label}: the task ends")
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    async def _follow(self) -> AsyncGenerator[JsonObject]:
        """The requests in the stream of the first message, read to its end like in an app that shows a task."""
        text = f"race {self.race.label} {self.race.story}"
        async with self._post("SendStreamingMessage", _write(text)) as response:
            async for line in response.content:
                if not line.startswith(b"data:"):
                    continue
                said = cast("JsonObject", orjson.loads(line.removeprefix(b"data:")))
                frame = object_at(said, "result")
                task = object_at(frame, "task") or object_at(frame, "statusUpdate")
                self.result.task_id = (
                    self.result.task_id or text_at(task, "id") or text_at(task, "taskId")
                )
                question = read_question(task)
                if question is not None:
                    yield question

    async def _has_ended(self) -> bool:
        answer = await self._call("GetTask", {"id": self.result.task_id})
        task = object_at(answer, "result")
        question = read_question(task)
        if question is not None and str(question["actionId"]) not in self.result.replies:
            await self._race(question, self.race.racers[2:6])
        return text_at(object_at(task, "status"), "state") in _ENDED

    async def _race(self, question: JsonObject, racers: Sequence[Racer]) -> None:
        replied = await asyncio.gather(*(self._go(question, racer) for racer in racers))
        self.result.replies[str(question["actionId"])] = [one for part in replied for one in part]

    async def _go(self, question: JsonObject, racer: Racer) -> list[RacerReply]:
        await asyncio.sleep(racer.after_ms / 1000)
        match racer.act:
            case Act.WORDS:
                await self._call("SendMessage", _write("yes, pay it", taskId=self.result.task_id))
                return []
            case Act.ANSWER:
                return [await self._answer(question, racer, racer.gateway, _make_id())]
            case Act.REPEAT:
                decision = _make_id()
                both = range(GATEWAYS)
                tries = (self._answer(question, racer, one, decision) for one in both)
                return list(await asyncio.gather(*tries))

    async def _stir(self) -> None:
        """Triggers the event of the story, unless it is an answer or an expiry."""
        await asyncio.sleep(self.race.stir_ms / 1000)
        if self.race.story is Story.CANCEL:
            await self._call("CancelTask", {"id": self.result.task_id})
        self.site.cashier.act_alone(self.race.label)

    # ------------------------------------------------------------ edges

    async def _answer(
        self, question: JsonObject, racer: Racer, gateway: int, decision: str
    ) -> RacerReply:
        answer = {**question, "decisionId": decision, "optionId": racer.option}
        device, cuts = name_device(racer.number), self._count_cuts(racer, gateway)
        for _ in range(_TRIES):
            door = self._answer_http if racer.way is Way.HTTP else self._answer_channel
            code, said = await door(answer, racer, gateway)
            if code in _AGAIN:
                await asyncio.sleep(0.05)  # bounded by the tries
                continue
            was_cut = self._count_cuts(racer, gateway) > cuts
            if code in {"won", "replayed"}:
                return RacerReply(
                    device, cast("Outcome", code), code, object_at(said, "decision"), was_cut
                )
            if code in _CLOSED:
                return RacerReply(device, "lost", code, object_at(said, "winner"), was_cut)
            return RacerReply(device, "refused", code, said)
        return RacerReply(device, "refused", "never decided", {})

    def _count_cuts(self, racer: Racer, gateway: int) -> int:
        return self.site.cuts[self.owner, racer.number, gateway]

    async def _answer_http(
        self, answer: JsonObject, racer: Racer, gateway: int
    ) -> tuple[str, JsonObject]:
        body = {name: value for name, value in answer.items() if name != "actionId"}
        url = f"{self.site.url(gateway)}/v1/approvals/{answer['actionId']}/decision"
        headers = {
            **headers_of(self.owner, racer.number),
            "Idempotency-Key": f"{answer['decisionId']}",
        }
        async with self.site.http.post(url, json=body, headers=headers) as response:
            said = cast("JsonObject", await response.json(content_type=None))
        return text_at(said, "outcome") or text_at(said, "code"), said

    async def _answer_channel(
        self, answer: JsonObject, racer: Racer, gateway: int
    ) -> tuple[str, JsonObject]:
        channel = self.site.channels[self.owner, racer.number, gateway]
        try:
            said = await channel.call("respond_action", answer, idem=str(answer["decisionId"]))
        except CallRefused as error:
            return error.code, error.data
        return text_at(said, "outcome"), said

    async def _call(self, method: str, params: JsonObject) -> JsonObject:
        async with self._post(method, params) as response:
            return cast("JsonObject", await response.json(content_type=None))

    def _post(
        self, method: str, params: JsonObject
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        url = f"{self.site.url(self.race.number % GATEWAYS)}/agents/{NAME}"
        headers = {**headers_of(self.owner), "A2A-Version": "1.0"}
        return self.site.http.post(url, json=body, headers=headers)


async def _drain(questions: AsyncGenerator[JsonObject]) -> None:
    async for _ in questions:
        pass


def _write(text: str, **ids: str) -> JsonObject:
    message: JsonObject = {
        "messageId": secrets.token_hex(8),
        "role": "ROLE_USER",
        "parts": [{"text": text}],
        **ids,
    }
    return {"message": message}


def _make_id() -> str:
    return f"dec_{secrets.token_hex(8)}"

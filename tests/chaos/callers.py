"""Callers who never give up: each runs one errand against whichever gateway answers, and keeps what it was told.

A send that was cut off is repeated under its idempotency key; a stream that broke is resumed by its cursor. A send that
was refused in plain words has failed: another message is sent in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import httpx
import orjson

from passerelle.a2a_mapping.frames import STATUS_NOTE
from passerelle.a2a_mapping.members import object_at, text_at
from tests.chaos.plan import Errand, Way

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.chaos.site import Site

Answer = dict[str, Any]

WITHIN_S: Final = 120.0
RESUME: Final = "urn:passerelle:ext:resume:1"
TERMINAL: Final = frozenset(
    f"TASK_STATE_{state}" for state in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
)
_ANSWER_S: Final = 6.0
"""Then the gateway may be frozen, and the other one is asked."""
_PAUSE_S: Final = 0.15
_AWAY_S: Final = 6.5
"""After a broken stream, for every second caller: long enough that somebody goes on with the task meanwhile."""
_POLL_S: Final = 0.25
_MESSAGES: Final = 8
_TRIES: Final = 4
_SILENT_S: Final = 20.0
"""Between two bytes of a stream: more than the comment that says that nothing happens."""
_TRY_AGAIN: Final = frozenset({429, 500, 502, 503, 504})


class Unknown(Exception):
    """A task has failed since nobody can tell whether its agent has the message."""


class Refused(Exception):
    """A gateway has answered with an error."""


class Cut(Exception):
    """No answer, or not all of it: nobody knows."""


@dataclass(slots=True)
class Told:
    """What a caller has of its errand in the end. ``frames`` are cursor and bytes, as they came, for one task."""

    errand: Errand
    messages: list[str] = field(default_factory=list[str])
    refusals: dict[str, str] = field(default_factory=dict[str, str])
    """Message id -> the error that it was answered with."""
    task: Answer | None = None
    answer: Answer | None = None
    """A bare Message, where that was the answer."""
    frames: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    resumed: int = 0
    away: int = 0
    """How often no gateway could begin its stream."""
    faults: list[str] = field(default_factory=list[str])

    @property
    def task_id(self) -> str | None:
        """The facade id of its task."""
        return str(self.task["id"]) if self.task else None


class Caller:
    """Runs errands over one HTTP client."""

    def __init__(self, site: Site, http: httpx.AsyncClient) -> None:
        self._site = site
        self._http = http

    async def run(self, errand: Errand) -> Told:
        """The whole errand, to its end or to the end of patience."""
        told = Told(errand)
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._carry_out(told)
        except TimeoutError:
            told.faults.append(f"no end within {WITHIN_S:.0f} s")
        except Refused as error:
            told.faults.append(f"refused: {error}")
        self._site.ended.add(errand.label)
        return told

    async def get_task(self, told: Told, gateway: int) -> Answer:
        """The task as a gateway shows it."""
        return await self._insist(gateway, told.errand.agent, "GetTask", {"id": told.task_id}, "")

    async def replay(self, told: Told, gateway: int) -> list[Answer]:
        """What a gateway says behind the first frame that the caller had: the rest of its stream, to the end."""
        again = Told(told.errand, task=told.task)
        asked: JsonObject = {"id": told.task_id}
        headers = {"A2A-Extensions": RESUME, "Last-Event-ID": told.frames[0][0]}
        await self._read(again, gateway, "SubscribeToTask", asked, headers)
        told.faults += again.faults
        return read_results(again)

    # ------------------------------------------------------------ errands

    async def _carry_out(self, told: Told) -> None:
        for number in range(1, _MESSAGES + 1):
            message = f"{told.errand.label}-m{number}"
            told.messages.append(message)
            try:
                if await self._try(told, message):
                    return
            except Unknown as error:
                told.refusals[message] = str(error)
            # Nothing came of this one, or nobody can tell: the caller starts over.
            told.task, told.frames = None, []
            await asyncio.sleep(_PAUSE_S * 2**number)
        raise Refused(f"{_MESSAGES} times: {told.refusals}")

    async def _try(self, told: Told, message: str) -> bool:
        """The errand with one message; whether it was taken."""
        try:
            await self._send(told, message)
        except Refused as error:
            told.refusals[message] = str(error)
            return False
        if told.task is None:
            return True
        if told.errand.way is Way.CANCEL:
            await self._cancel(told)
        elif told.errand.way is Way.ASK:
            await self._reply(told)
        await self._await_end(told)
        return True

    async def _send(self, told: Told, message: str) -> None:
        params = compose_send(told.errand, message)
        if told.errand.way is Way.STREAM:
            await self._stream(told, params, message)
            return
        if told.errand.way in {Way.BEGIN, Way.CANCEL}:
            params["configuration"] = {"returnImmediately": True}
        errand = told.errand
        result = await self._insist(errand.gateway, errand.agent, "SendMessage", params, message)
        told.task, told.answer = result.get("task"), result.get("message")
        _require_outcome(told)

    async def _reply(self, told: Told) -> None:
        async def is_asked() -> bool:
            told.task = await self.get_task(told, told.errand.gateway)
            _require_outcome(told)
            state = told.task["status"]["state"]
            return state == "TASK_STATE_INPUT_REQUIRED" or state in TERMINAL

        while not await is_asked():
            await asyncio.sleep(_POLL_S)
        message = f"{told.errand.label}-reply"
        told.messages.append(message)
        params = compose_send(told.errand, message)
        sent = cast("JsonObject", params["message"])
        sent["taskId"], sent["parts"] = told.task_id, [{"text": f"{told.errand.label} yes"}]
        params["configuration"] = {"returnImmediately": True}
        errand = told.errand
        try:
            await self._insist(errand.gateway, errand.agent, "SendMessage", params, message)
        except Refused as error:
            told.refusals[message] = str(error)

    async def _cancel(self, told: Told) -> None:
        await asyncio.sleep(_POLL_S)
        errand = told.errand
        try:
            await self._insist(errand.gateway, errand.agent, "CancelTask", {"id": told.task_id}, "")
        except Refused as error:
            # A repeat may find that the first one has worked.
            if "-32002" not in str(error):
                raise

    async def _await_end(self, told: Told) -> None:
        for gateway in itertools.cycle((told.errand.gateway, 1 - told.errand.gateway)):
            told.task = await self.get_task(told, gateway)
            _require_outcome(told)
            if told.task["status"]["state"] in TERMINAL:
                return
            await asyncio.sleep(_POLL_S)

    # ------------------------------------------------------------ streams

    async def _stream(self, told: Told, params: JsonObject, message: str) -> None:
        """Frames until the task has ended; resumed as often as it breaks."""
        begun = {"Idempotency-Key": message}
        for gateway in itertools.cycle((told.errand.gateway, 1 - told.errand.gateway)):
            try:
                if not told.frames:
                    await self._read(told, gateway, "SendStreamingMessage", params, begun)
                else:
                    told.resumed += 1
                    asked: JsonObject = {"id": told.task_id}
                    resumed = {"A2A-Extensions": RESUME, "Last-Event-ID": told.frames[-1][0]}
                    await self._read(told, gateway, "SubscribeToTask", asked, resumed)
            except Cut:
                is_away = told.frames and int(told.errand.label[-1]) % 2
                await asyncio.sleep(_AWAY_S if is_away else _PAUSE_S)
            if _has_ended(told):
                _require_outcome(told)
                return

    async def _read(
        self, told: Told, gateway: int, method: str, params: JsonObject, headers: dict[str, str]
    ) -> None:
        cursor = headers.get("Last-Event-ID")
        with _cutting():
            async with self._http.stream(
                "POST",
                self._find(gateway, told.errand.agent),
                content=_compose(method, params),
                headers=headers,
                timeout=httpx.Timeout(_ANSWER_S, read=_SILENT_S),
            ) as answer:
                if answer.status_code in _TRY_AGAIN:
                    told.away += 1
                    if told.away % _TRIES:
                        raise Cut
                if cursor and answer.headers.get("a2a-stream-resumed") != "true":
                    told.faults.append(f"a gap behind cursor {cursor}")
                if not answer.headers["content-type"].startswith("text/event-stream"):
                    body = cast("Answer", orjson.loads(await answer.aread()))
                    raise Refused(orjson.dumps(body.get("error")).decode())
                async for name, data in _read_events(answer):
                    body = cast("Answer", orjson.loads(data))
                    if "error" in body:
                        raise Refused(orjson.dumps(body["error"]).decode())
                    told.frames.append((name, data))
                    _take_frame(told, body["result"])

    # ------------------------------------------------------------ calls

    async def _insist(
        self, gateway: int, agent: str, method: str, params: JsonObject, key: str
    ) -> Answer:
        """The result of a call, from whichever gateway answers.

        Raises:
            Refused: one has answered with an error, and no repeat could change that.
        """
        tries = 0
        for place in itertools.cycle((gateway, 1 - gateway)):
            try:
                answer = await self._call(place, agent, method, params, key)
            except Cut:
                await asyncio.sleep(_PAUSE_S)
                continue
            body = cast("Answer", orjson.loads(answer.content))
            if "error" not in body:
                return cast("Answer", body["result"])
            tries += 1
            if answer.status_code not in _TRY_AGAIN or tries == _TRIES:
                raise Refused(orjson.dumps(body["error"]).decode())
            await asyncio.sleep(_PAUSE_S * 2**tries)
        raise AssertionError

    async def _call(
        self, gateway: int, agent: str, method: str, params: JsonObject, key: str
    ) -> httpx.Response:
        headers = {"Idempotency-Key": key} if key else {}
        with _cutting():
            return await self._http.post(
                self._find(gateway, agent),
                content=_compose(method, params),
                headers=headers,
                timeout=_ANSWER_S,
            )

    def _find(self, gateway: int, agent: str) -> str:
        if not self._site.is_up(gateway):
            raise Cut
        return f"{self._site.gateways[gateway].url}/agents/{agent}"


def read_results(told: Told) -> list[Answer]:
    """The frames of a stream without what only marks where they stand."""
    results = [cast("Answer", orjson.loads(data)["result"]) for _, data in told.frames]
    for result in results:
        for member in result.values():
            member.get("metadata", {}).pop(RESUME, None)
            if not member.get("metadata", True):
                del member["metadata"]
    return results


def compose_send(errand: Errand, message: str) -> JsonObject:
    """The parameters of a send. The context is the caller's own: our label stands in all that is stored of it."""
    return {
        "message": {
            "messageId": message,
            "contextId": errand.label,
            "role": "ROLE_USER",
            "parts": [{"text": errand.text}],
        }
    }


@contextlib.contextmanager
def _cutting() -> Generator[None]:
    """Every way in which an answer may break off is a ``Cut``."""
    try:
        yield
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise Cut from error


def _compose(method: str, params: JsonObject) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


async def _read_events(answer: httpx.Response) -> AsyncGenerator[tuple[str, bytes]]:
    """Cursor and data of each event."""
    cursor = ""
    async for line in answer.aiter_lines():
        if line.startswith("id:"):
            cursor = line.removeprefix("id:").strip()
        elif line.startswith("data:"):
            yield cursor, line.removeprefix("data:").strip().encode()


def _take_frame(told: Told, result: Answer) -> None:
    """What a frame says of the task."""
    if "task" in result:
        told.task = result["task"]
    elif "message" in result:
        told.answer = result["message"]
    elif "statusUpdate" in result and told.task is not None:
        told.task["status"] = result["statusUpdate"]["status"]
        told.task.setdefault("metadata", {}).update(result["statusUpdate"].get("metadata", {}))


def _require_outcome(told: Told) -> None:
    """A task that ended because nobody can tell whether the agent has its message.

    Raises:
        Unknown: it is such a one; what is done about it is the caller's to say.
    """
    note = object_at(object_at(told.task or {}, "metadata"), STATUS_NOTE)
    if text_at(note, "reason") == "unknown_outcome":
        raise Unknown(f"{told.task_id}: unknown_outcome")


def _has_ended(told: Told) -> bool:
    """Whether nothing more will come."""
    return told.answer is not None or (
        told.task is not None and told.task["status"]["state"] in TERMINAL
    )

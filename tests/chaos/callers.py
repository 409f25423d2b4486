"""Persistent callers: each runs one errand against whichever gateway answers, and logs what it received.

A send that was cut is repeated under its idempotency key; a broken stream is resumed by its cursor. A send that was
refused with an error has failed: the caller sends another message in its place.
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
"""After this time without an answer the gateway may be frozen, and the other one is called."""
_PAUSE_S: Final = 0.15
_AWAY_S: Final = 6.5
"""Delay after a broken stream, for every second caller: long enough for another gateway to continue the task."""
_POLL_S: Final = 0.25
_MESSAGES: Final = 8
_TRIES: Final = 4
_SILENT_S: Final = 20.0
"""Maximum silence of a stream: longer than the interval of keep-alive comments."""
_TRY_AGAIN: Final = frozenset({429, 500, 502, 503, 504})


class Unknown(Exception):
    """A task has failed because it is unknown whether its agent has the message."""


class Refused(Exception):
    """A gateway has answered with an error."""


class Cut(Exception):
    """No answer or an incomplete one: the outcome is unknown."""


@dataclass(slots=True)
class CallerLog:
    """What a caller received for its errand. ``frames`` are cursor and bytes, in order, for one task."""

    errand: Errand
    messages: list[str] = field(default_factory=list[str])
    refusals: dict[str, str] = field(default_factory=dict[str, str])
    """Message id -> the error of its answer."""
    task: Answer | None = None
    answer: Answer | None = None
    """A bare Message, if that was the answer."""
    frames: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    resumed: int = 0
    away: int = 0
    """How often no gateway could start its stream."""
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

    async def run(self, errand: Errand) -> CallerLog:
        """Runs the whole errand, to its end or to the time limit."""
        log = CallerLog(errand)
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._carry_out(log)
        except TimeoutError:
            log.faults.append(f"no end within {WITHIN_S:.0f} s")
        except Refused as error:
            log.faults.append(f"refused: {error}")
        self._site.ended.add(errand.label)
        return log

    async def get_task(self, log: CallerLog, gateway: int) -> Answer:
        """The task as a gateway shows it."""
        return await self._insist(gateway, log.errand.agent, "GetTask", {"id": log.task_id}, "")

    async def replay(self, log: CallerLog, gateway: int) -> list[Answer]:
        """The replay of a gateway after the caller's first frame, to the end of the stream."""
        again = CallerLog(log.errand, task=log.task)
        asked: JsonObject = {"id": log.task_id}
        headers = {"A2A-Extensions": RESUME, "Last-Event-ID": log.frames[0][0]}
        await self._read(again, gateway, "SubscribeToTask", asked, headers)
        log.faults += again.faults
        return read_results(again)

    # ------------------------------------------------------------ errands

    async def _carry_out(self, log: CallerLog) -> None:
        for number in range(1, _MESSAGES + 1):
            message = f"{log.errand.label}-m{number}"
            log.messages.append(message)
            try:
                if await self._try(log, message):
                    return
            except Unknown as error:
                log.refusals[message] = str(error)
            # The message had no effect, or its outcome is unknown: the caller starts over.
            log.task, log.frames = None, []
            await asyncio.sleep(_PAUSE_S * 2**number)
        raise Refused(f"{_MESSAGES} times: {log.refusals}")

    async def _try(self, log: CallerLog, message: str) -> bool:
        """Runs the errand with one message; returns whether it was accepted."""
        try:
            await self._send(log, message)
        except Refused as error:
            log.refusals[message] = str(error)
            return False
        if log.task is None:
            return True
        if log.errand.way is Way.CANCEL:
            await self._cancel(log)
        elif log.errand.way is Way.ASK:
            await self._reply(log)
        await self._await_end(log)
        return True

    async def _send(self, log: CallerLog, message: str) -> None:
        params = compose_send(log.errand, message)
        if log.errand.way is Way.STREAM:
            await self._stream(log, params, message)
            return
        if log.errand.way in {Way.BEGIN, Way.CANCEL}:
            params["configuration"] = {"returnImmediately": True}
        errand = log.errand
        result = await self._insist(errand.gateway, errand.agent, "SendMessage", params, message)
        log.task, log.answer = result.get("task"), result.get("message")
        _require_outcome(log)

    async def _reply(self, log: CallerLog) -> None:
        async def is_asked() -> bool:
            log.task = await self.get_task(log, log.errand.gateway)
            _require_outcome(log)
            state = log.task["status"]["state"]
            return state == "TASK_STATE_INPUT_REQUIRED" or state in TERMINAL

        while not await is_asked():
            await asyncio.sleep(_POLL_S)
        message = f"{log.errand.label}-reply"
        log.messages.append(message)
        params = compose_send(log.errand, message)
        sent = cast("JsonObject", params["message"])
        sent["taskId"], sent["parts"] = log.task_id, [{"text": f"{log.errand.label} yes"}]
        params["configuration"] = {"returnImmediately": True}
        errand = log.errand
        try:
            await self._insist(errand.gateway, errand.agent, "SendMessage", params, message)
        except Refused as error:
            log.refusals[message] = str(error)

    async def _cancel(self, log: CallerLog) -> None:
        await asyncio.sleep(_POLL_S)
        errand = log.errand
        try:
            await self._insist(errand.gateway, errand.agent, "CancelTask", {"id": log.task_id}, "")
        except Refused as error:
            # A repeated call may find that the first one succeeded.
            if "-32002" not in str(error):
                raise

    async def _await_end(self, log: CallerLog) -> None:
        for gateway in itertools.cycle((log.errand.gateway, 1 - log.errand.gateway)):
            log.task = await self.get_task(log, gateway)
            _require_outcome(log)
            if log.task["status"]["state"] in TERMINAL:
                return
            await asyncio.sleep(_POLL_S)

    # ------------------------------------------------------------ streams

    async def _stream(self, log: CallerLog, params: JsonObject, message: str) -> None:
        """Reads frames until the task has ended, and resumes after each break."""
        begun = {"Idempotency-Key": message}
        for gateway in itertools.cycle((log.errand.gateway, 1 - log.errand.gateway)):
            try:
                if not log.frames:
                    await self._read(log, gateway, "SendStreamingMessage", params, begun)
                else:
                    log.resumed += 1
                    asked: JsonObject = {"id": log.task_id}
                    resumed = {"A2A-Extensions": RESUME, "Last-Event-ID": log.frames[-1][0]}
                    await self._read(log, gateway, "SubscribeToTask", asked, resumed)
            except Cut:
                is_away = log.frames and int(log.errand.label[-1]) % 2
                await asyncio.sleep(_AWAY_S if is_away else _PAUSE_S)
            if _has_ended(log):
                _require_outcome(log)
                return

    async def _read(
        self, log: CallerLog, gateway: int, method: str, params: JsonObject, headers: dict[str, str]
    ) -> None:
        cursor = headers.get("Last-Event-ID")
        with _cutting():
            async with self._http.stream(
                "POST",
                self._find(gateway, log.errand.agent),
                content=_compose(method, params),
                headers=headers,
                timeout=httpx.Timeout(_ANSWER_S, read=_SILENT_S),
            ) as answer:
                if answer.status_code in _TRY_AGAIN:
                    log.away += 1
                    if log.away % _TRIES:
                        raise Cut
                if cursor and answer.headers.get("a2a-stream-resumed") != "true":
                    log.faults.append(f"a gap behind cursor {cursor}")
                if not answer.headers["content-type"].startswith("text/event-stream"):
                    body = cast("Answer", orjson.loads(await answer.aread()))
                    raise Refused(orjson.dumps(body.get("error")).decode())
                async for name, data in _read_events(answer):
                    body = cast("Answer", orjson.loads(data))
                    if "error" in body:
                        raise Refused(orjson.dumps(body["error"]).decode())
                    log.frames.append((name, data))
                    _take_frame(log, body["result"])

    # ------------------------------------------------------------ calls

    async def _insist(
        self, gateway: int, agent: str, method: str, params: JsonObject, key: str
    ) -> Answer:
        """The result of a call, from whichever gateway answers.

        Raises:
            Refused: a gateway has answered with an error that no repeat can change.
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


def read_results(log: CallerLog) -> list[Answer]:
    """The frames of a stream without members that only mark their position."""
    results = [cast("Answer", orjson.loads(data)["result"]) for _, data in log.frames]
    for result in results:
        for member in result.values():
            member.get("metadata", {}).pop(RESUME, None)
            if not member.get("metadata", True):
                del member["metadata"]
    return results


def compose_send(errand: Errand, message: str) -> JsonObject:
    """The parameters of a send. The caller chooses the context: its label is in everything that is stored."""
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
    """Turns every way in which an answer may break off into a ``Cut``."""
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


def _take_frame(log: CallerLog, result: Answer) -> None:
    """Records what a frame contains about the task."""
    if "task" in result:
        log.task = result["task"]
    elif "message" in result:
        log.answer = result["message"]
    elif "statusUpdate" in result and log.task is not None:
        log.task["status"] = result["statusUpdate"]["status"]
        log.task.setdefault("metadata", {}).update(result["statusUpdate"].get("metadata", {}))


def _require_outcome(log: CallerLog) -> None:
    """Checks a task that ended because it is unknown whether its agent has the message.

    Raises:
        Unknown: it is such a task; the caller decides what to do.
    """
    note = object_at(object_at(log.task or {}, "metadata"), STATUS_NOTE)
    if text_at(note, "reason") == "unknown_outcome":
        raise Unknown(f"{log.task_id}: unknown_outcome")


def _has_ended(log: CallerLog) -> bool:
    """Whether no more frames will follow."""
    return log.answer is not None or (
        log.task is not None and log.task["status"]["state"] in TERMINAL
    )

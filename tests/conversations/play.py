"""Plays one conversation on one side, directly or through the gateway, and records what caller and agent received."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import grpc.aio
import httpx

from tests.conversations.axes import Case
from tests.conversations.caller import Conversant, Refused
from tests.conversations.forms import (
    Json,
    inner,
    read_parts,
    read_role,
    read_state,
    read_words,
    several,
    unwrap,
)
from tests.conversations.script import ANSWERS, EXTENSION, write_order
from tests.conversations.tap import Log, Received

NO_ANSWER_S: Final = 6.0
"""Time limit for an answer to a caller."""
_SETTLES_S: Final = 4.0
_ARRIVES_S: Final = 8.0
_POLL_S: Final = 0.05
_STAYS_S: Final = 1.5
"""Time that a task may stay at an answered question before a polling caller reports it."""
WAITING: Final = frozenset({"INPUT_REQUIRED", "AUTH_REQUIRED"})
OVER: Final = frozenset({"COMPLETED", "FAILED", "CANCELED", "REJECTED"})
_BROKEN: Final = (httpx.TransportError, grpc.aio.AioRpcError)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one act: a state with its message, an error, or a missing answer; and its duration."""

    act: str
    said: str
    words: list[Json] | str = ""
    took_s: float = 0.0
    is_timed: bool = True


@dataclass(slots=True)
class Record:
    """One finished conversation: ``end`` is the final Task, in the form of ``read_end``."""

    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    end: Json = field(default_factory=dict[str, Any])
    history: list[tuple[str, list[Json]]] = field(default_factory=list["tuple[str, list[Json]]"])
    own: dict[str, Json] = field(default_factory=dict[str, "Json"])
    """The members of the caller's messages in ``history``, without parts and withheld ones, by the name in their id."""
    received: list[Received] = field(default_factory=list[Received])
    said: list[tuple[str, list[Json]]] = field(default_factory=list["tuple[str, list[Json]]"])
    """What the caller sent and received, in order."""
    breaks: int = 0
    """Streams that broke, after which the caller read the Task."""
    activated: set[str] = field(default_factory=set[str])


@dataclass(slots=True)
class Barrier:
    """A barrier at which conversations wait together for a restart of the gateway."""

    expected: int
    arrived: int = 0
    passed: asyncio.Event = field(default_factory=asyncio.Event)
    all_here: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> None:
        """Arrives, and returns after the restart."""
        self.leave()
        await self.passed.wait()

    def leave(self) -> None:
        """Counts a conversation that has arrived, or will not."""
        self.arrived += 1
        if self.arrived >= self.expected:
            self.all_here.set()


class Unanswered(Exception):
    """No answer in time; the text names what was awaited."""


@dataclass(slots=True)
class Player:
    """One caller in one conversation; ``ids`` are those of the task, once it is known."""

    case: Case
    caller: Conversant
    log: Log
    label: str
    barrier: Barrier | None = None
    record: Record = field(default_factory=Record)
    ids: Json = field(default_factory=dict[str, Any])
    _last: str = ""
    _sent: int = 0

    async def play(self) -> Record:
        """Plays the whole conversation; an error is an outcome of it."""
        try:
            await self._do("ask", self._send([{"text": write_order(self.case)}], "ask"))
            if "id" in self.ids:
                await self._go_on()
                await self._settle()
        finally:
            if self.barrier is not None and not self.barrier.passed.is_set() and not self._sent > 1:
                self.barrier.leave()
        self.record.received = list(self.log.received[self.label])
        self.record.activated = self.caller.activated
        return self.record

    async def _go_on(self) -> None:
        answer = ANSWERS[self.case.answer]
        match self.case.stance, self.case.event:
            case "cancels", _:
                await self._do("cancel", self._cancel())
            case "twice", _:
                other = [{"text": "green"}]
                await asyncio.gather(
                    self._do("answer", self._send(answer, "answer")),
                    self._do("other answer", self._send(other, "other")),
                )
            case _, "restart":
                await self._answer_broken(answer)
            case "leaves", _:
                await self._answer_broken(answer)
                if self.case.event == "second":
                    await self._do("second answer", self._send([{"text": "large"}], "second"))
            case _, "second" | "silent" | "refused":
                await self._do("answer", self._send(answer, "answer"))
                second = [{"text": "large"}] if self.case.event == "second" else answer
                if not await self._is_over():
                    await self._do("second answer", self._send(second, "second"))
            case _:
                await self._do("answer", self._send(answer, "answer"))

    async def _answer_broken(self, answer: list[Json]) -> None:
        """The caller loses its connection while the agent has the answer, and reconnects."""
        name, held = f"{self.label}#2", asyncio.Event()
        self.log.holds[name] = held
        sending = asyncio.create_task(self._send(answer, "answer"))
        try:
            arrived = await _await(lambda: len(self.log.received[self.label]) > 1, _ARRIVES_S)
        finally:
            if self.barrier is not None:
                await self.barrier.wait()
            sending.cancel()
            with suppress(asyncio.CancelledError, Refused, Unanswered, *_BROKEN):
                await sending
            held.set()
        self.record.outcomes.append(Outcome("reaches the agent", str(arrived), is_timed=False))
        await self._do("comes back", self._come_back(answer), is_timed=False)

    async def _come_back(self, answer: list[Json]) -> Json:
        if (
            self.barrier is not None
            and self.case.caller == "unary"
            and self.label.endswith("through")
        ):
            return await self._send(answer, "answer", number=2)
        if self.case.caller in {"stream", "subscribe"}:
            return await self._subscribe()
        return await self._poll()

    async def _do(
        self, act: str, doing: Coroutine[None, None, Json], *, is_timed: bool = True
    ) -> None:
        began_s = time.monotonic()
        said, words = "", list[Json]()
        try:
            async with asyncio.timeout(NO_ANSWER_S):
                shown = await doing
            kind, value = unwrap(shown)
            said = "MESSAGE" if kind == "message" else read_state(value)
            words = read_parts(value) if kind == "message" else read_words(value)
            if said in WAITING:
                self._last = str(words)
                self.record.said.append(("agent", words))
            outcome = Outcome(act, said, words)
        except Refused as fault:
            outcome = Outcome(act, f"error {fault.reason}", fault.words)
        except (TimeoutError, Unanswered):
            outcome = Outcome(act, f"no answer in {NO_ANSWER_S:.0f} s")
        except _BROKEN as fault:
            outcome = Outcome(act, f"broke off: {type(fault).__name__}")
        took_s = time.monotonic() - began_s
        self.record.outcomes.append(
            Outcome(outcome.act, outcome.said, outcome.words, took_s, is_timed)
        )

    async def _cancel(self) -> Json:
        return await self.caller.call("CancelTask", {"id": self.ids["id"]})

    async def _send(self, parts: list[Json], name: str, number: int = 0) -> Json:
        """Sends one message like this kind of caller; returns the last Task or status that it received."""
        self._sent += 0 if number else 1
        if not number:
            self.record.said.append(("user", parts))
        message: Json = {
            "messageId": f"{self.label}-{name}",
            "role": "ROLE_USER",
            "parts": parts,
            "metadata": {"label": self.label, "kept": {"deep": [1, "two"]}},
            "extensions": [EXTENSION],
            "referenceTaskIds": ["a-task-of-another-agent"],
        }
        if "id" in self.ids:
            message |= {"taskId": self.ids["id"], "contextId": self.ids["contextId"]}
        params: Json = {
            "message": message,
            "configuration": {"acceptedOutputModes": ["text/plain"]},
            "metadata": {"rm": "one"},
        }
        key = f"{self.label}-{name}"
        if self.case.caller == "stream" and self.caller.streams:
            return await self._read_stream(self.caller.stream("SendStreamingMessage", params, key))
        if self.case.caller in {"immediately", "subscribe"}:
            params["configuration"]["returnImmediately"] = True
        shown = await self.caller.call("SendMessage", params, key)
        self._learn(shown)
        if self.case.caller == "immediately" and unwrap(shown)[0] == "task":
            return await self._poll()
        if self.case.caller == "subscribe" and unwrap(shown)[0] == "task":
            return await self._subscribe()
        return shown

    def _learn(self, shown: Json) -> None:
        kind, value = unwrap(shown)
        if kind == "task" and value.get("id"):
            self.ids = {"id": value["id"], "contextId": value.get("contextId", "")}

    async def _read_stream(self, items: AsyncGenerator[Json]) -> Json:
        """Reads to the end of the stream; returns the last item with a state, or the Task if there is none."""
        last: Json = {}
        try:
            async for item in items:
                self._learn(item)
                if unwrap(item)[0] in {"task", "status", "message"}:
                    last = item
        except _BROKEN:
            if "id" not in self.ids:
                raise
            self.record.breaks += 1
            return await self._poll()
        if not last and "id" in self.ids:
            return {"task": await self.caller.call("GetTask", {"id": self.ids["id"]})}
        if not last:
            raise Refused("NOTHING", "the stream ended with nothing in it")
        return last

    async def _subscribe(self) -> Json:
        """Follows until the task has ended or waits again; polls if there is no stream."""
        if not self.caller.streams:
            return await self._poll()
        items = self.caller.stream("SubscribeToTask", {"id": self.ids["id"]})
        stays_s: float | None = None
        try:
            while True:
                async with asyncio.timeout(stays_s):
                    item = await anext(items)
                if unwrap(item)[0] == "artifact":
                    continue
                if self._is_news(unwrap(item)[1]):
                    return item
                stays_s = _STAYS_S if read_state(unwrap(item)[1]) in WAITING else None
        except TimeoutError:
            return {"task": await self.caller.call("GetTask", {"id": self.ids["id"]})}
        except (Refused, StopAsyncIteration):
            pass
        except _BROKEN:
            self.record.breaks += 1
        finally:
            await items.aclose()
        return await self._poll()

    def _is_news(self, value: Json) -> bool:
        """Whether the task has ended, or requests input again.

        A library that changes its Task in place may show it without the text of an intermediate question.
        """
        state, words = read_state(value), read_words(value)
        return state in OVER or (state in WAITING and bool(words) and str(words) != self._last)

    async def _poll(self) -> Json:
        began_s = time.monotonic()
        while True:
            task = await self.caller.call("GetTask", {"id": self.ids["id"]})
            waited_s = time.monotonic() - began_s
            if self._is_news(task):
                return {"task": task}
            if read_state(task) in WAITING and waited_s > _STAYS_S:
                return {"task": task}
            if waited_s > NO_ANSWER_S:
                raise Unanswered
            await asyncio.sleep(_POLL_S)

    async def _is_over(self) -> bool:
        """Whether the task has ended: then the agent or the gateway refuses further messages."""
        with suppress(Refused, *_BROKEN):
            return read_state(await self.caller.call("GetTask", {"id": self.ids["id"]})) in OVER
        return False

    async def _settle(self) -> None:
        """Reads the Task once it no longer changes."""
        task: Json = {}
        began_s = time.monotonic()
        while time.monotonic() - began_s < _SETTLES_S:
            try:
                task = await self.caller.call("GetTask", {"id": self.ids["id"]})
            except (Refused, *_BROKEN) as fault:
                self.record.end = {"state": f"unreadable: {fault}"}
                return
            if read_state(task) in OVER | WAITING:
                break
            await asyncio.sleep(_POLL_S)
        self.record.end = {
            "state": read_state(task),
            "words": read_words(task),
            "artifacts": [read_parts(one) for one in several(task, "artifacts")],
        }
        history = several(task, "history")
        self.record.history = [(read_role(one), read_parts(one)) for one in history]
        self.record.own = {
            str(one["messageId"]).rpartition("-")[2]: self._read_members(one)
            for one in history
            if read_role(one) == "user" and "withheld" not in str(read_parts(one))
        }

    def _read_members(self, message: Json) -> Json:
        """The members of one of the caller's messages; its task and context by whether they are those of the task."""
        return {
            "metadata": {k: v for k, v in inner(message, "metadata").items() if k != "label"},
            "extensions": message.get("extensions") or [],
            "referenceTaskIds": message.get("referenceTaskIds") or [],
            "taskId": message.get("taskId") == self.ids["id"],
            "contextId": message.get("contextId") == self.ids["contextId"],
        }


async def _await(seen: Callable[[], bool], within_s: float) -> bool:
    began_s = time.monotonic()
    while not seen():
        if time.monotonic() - began_s > within_s:
            return False
        await asyncio.sleep(_POLL_S / 5)
    return True

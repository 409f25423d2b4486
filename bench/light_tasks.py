"""The tasks of the light peer and its call statistics, without a socket."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.times import format_ms

WORKING: Final = "TASK_STATE_WORKING"
COMPLETED: Final = "TASK_STATE_COMPLETED"
CANCELED: Final = "TASK_STATE_CANCELED"
_NOT_FOUND: Final = -32001
_UNKNOWN_METHOD: Final = -32601


@dataclass(slots=True)
class OpenTask:
    """One task, which runs until it is ended. ``followers`` are notified of its end."""

    task_id: str
    context_id: str
    message: JsonObject
    at: str
    state: str = WORKING
    followers: list[Callable[[JsonObject], None]] = field(
        default_factory=list[Callable[[JsonObject], None]]
    )

    def show(self) -> JsonObject:
        """The Task."""
        return {
            "id": self.task_id,
            "contextId": self.context_id,
            "status": {"state": self.state, "timestamp": self.at},
            "history": [self.message],
        }

    def follow(self, tell: Callable[[JsonObject], None]) -> Callable[[], None]:
        """Calls ``tell`` at the end, unless the returned function is called before."""
        self.followers.append(tell)

        def leave() -> None:
            if tell in self.followers:
                self.followers.remove(tell)

        return leave

    def end(self, state: str, at: str) -> None:
        """Sets the final status and notifies followers."""
        self.state, self.at = state, at
        update: JsonObject = {
            "taskId": self.task_id,
            "contextId": self.context_id,
            "status": {"state": state, "timestamp": at},
        }
        followers, self.followers = self.followers, []
        for tell in followers:
            tell({"statusUpdate": update})


@dataclass(slots=True)
class CallCounts:
    """Call statistics. A call is in flight until its answer is sent; messages are counted without reset."""

    messages: Counter[str] = field(default_factory=Counter[str])
    calls: Counter[str] = field(default_factory=Counter[str])
    asked: set[str] = field(default_factory=set[str])
    in_flight: int = 0
    most_in_flight: int = 0

    def enter(self, method: str, task_id: str) -> None:
        """Counts a new call."""
        self.calls[method] += 1
        if method in {"GetTask", "SubscribeToTask"}:
            self.asked.add(task_id)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def leave(self) -> None:
        """A call was answered, or its caller disconnected."""
        self.in_flight -= 1

    def reset(self) -> None:
        """Resets the statistics."""
        self.calls.clear()
        self.asked.clear()
        self.most_in_flight = self.in_flight


@dataclass(slots=True)
class LightTasks:
    """All tasks by id and by context. ``now_ms`` returns the time."""

    now_ms: Callable[[], int]
    counts: CallCounts = field(default_factory=CallCounts)
    _tasks: dict[str, OpenTask] = field(default_factory=dict[str, OpenTask])
    _contexts: dict[str, list[OpenTask]] = field(default_factory=dict[str, "list[OpenTask]"])

    def begin(self, params: JsonObject) -> OpenTask:
        """Creates a task for each message."""
        message = object_at(params, "message")
        number = len(self._tasks) + 1
        context = text_at(message, "contextId") or f"context-{number}"
        task = OpenTask(f"light-{number}", context, message, format_ms(self.now_ms()))
        self.counts.messages[text_at(message, "messageId")] += 1
        self._tasks[task.task_id] = task
        self._contexts.setdefault(context, []).append(task)
        return task

    def find(self, params: JsonObject) -> OpenTask | None:
        """The task that a call names."""
        return self._tasks.get(text_at(params, "id"))

    def answer(self, method: str, params: JsonObject) -> JsonObject:
        """The member ``result`` or ``error`` of a non-streaming answer."""
        match method:
            case "SendMessage":
                return {"result": {"task": self.begin(params).show()}}
            case "ListTasks":
                return {"result": self._list(params)}
            case "GetTask" | "CancelTask":
                task = self.find(params)
                if task is None:
                    return refuse(_NOT_FOUND, "there is no such task")
                if method == "CancelTask" and task.state == WORKING:
                    task.end(CANCELED, format_ms(self.now_ms()))
                return {"result": task.show()}
            case _:
                return refuse(_UNKNOWN_METHOD, f"there is no method {method}")

    def finish(self) -> None:
        """Completes every open task."""
        at = format_ms(self.now_ms())
        for task in self._tasks.values():
            if task.state == WORKING:
                task.end(COMPLETED, at)

    def report(self) -> JsonObject:
        """All statistics."""
        counts = self.counts
        calls: JsonObject = dict(counts.calls)
        return {
            "tasks": len(self._tasks),
            "open": sum(task.state == WORKING for task in self._tasks.values()),
            "followers": sum(len(task.followers) for task in self._tasks.values()),
            "repeated": sum(times > 1 for times in counts.messages.values()),
            "calls": calls,
            "asked": len(counts.asked),
            "inFlight": counts.in_flight,
            "mostInFlight": counts.most_in_flight,
        }

    def _list(self, params: JsonObject) -> JsonObject:
        known = self._contexts.get(text_at(params, "contextId"), [])
        shown: list[Json] = [task.show() for task in known]
        size = len(shown)
        return {"tasks": shown, "totalSize": size, "pageSize": size, "nextPageToken": ""}


def refuse(code: int, message: str) -> JsonObject:
    """The member ``error`` of an answer."""
    return {"error": {"code": code, "message": message}}


def make_card(url: str, *, streams: bool) -> JsonObject:
    """A card with one JSON-RPC interface of A2A 1.0."""
    interface: JsonObject = {
        "url": f"{url}/",
        "protocolBinding": "JSONRPC",
        "protocolVersion": "1.0",
    }
    skill: JsonObject = {"id": "wait", "name": "wait", "description": "Waits.", "tags": ["bench"]}
    return {
        "name": "light",
        "description": "Has tasks, and does nothing about them.",
        "version": "1.0.0",
        "supportedInterfaces": [interface],
        "capabilities": {"streaming": streams},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [skill],
    }

"""A small, real A2A 1.0 JSON-RPC agent on a loopback socket, controlled by the test.

The first word of a message chooses a behaviour (``tests.support.scripted_behaviours``)::

    async with ScriptedPeer("report") as peer:
        ...configure the gateway with peer.url...
        send "chunks 3"                      # a task with three artifact chunks
        assert peer.count("SendMessage") == 1

A test may supply the script, and decide when each frame is sent::

    async def story(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.artifact("part one")
        await turn.status("COMPLETED")


    peer.next(story)  # for the next message only
    peer.hold()  # from now on every frame waits
    peer.release(2)  # ... and two of them go

Scripts run independently of the requests, as in a real agent: a task continues when its caller's connection dies.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections import deque
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self, cast

import orjson
from aiohttp import web

from passerelle.core.wire.json import Json, JsonObject
from tests.support.loopback_server import end_runner
from tests.support.ports import find_free_port
from tests.support.scripted_answers import answer_stream, answer_unary, send_error, send_result
from tests.support.scripted_behaviours import BEHAVIOURS, echo, go_on
from tests.support.scripted_queries import QueryError, list_tasks, show_task
from tests.support.scripted_tasks import (
    TERMINAL,
    End,
    RemoteTask,
    ScriptedFrame,
    Ticks,
    Transcript,
    Turn,
    TurnGate,
    TurnScript,
)

CancelOutcome = Literal["canceled", "completed", "refused", "ignored"]


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One received JSON-RPC request; header names are lower case."""

    method: str
    params: JsonObject
    headers: Mapping[str, str]
    query: str = ""


@dataclass(frozen=True, slots=True)
class ScriptedResponse:
    """A whole HTTP response that replaces the peer's own; sent after the event ``after``, if set."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    after: asyncio.Event | None = None


class ScriptedPeer:
    """The peer. Settings are attributes that apply from the next request on.

    ``keeps_history``: whether tasks have a history. ``lists``, ``subscribes``: whether ListTasks and SubscribeToTask
    are supported. ``refuses``: unsupported methods. ``on_cancel``: the effect of CancelTask on a task. ``bearer``:
    the required token. ``card``: served unchanged with ``card_headers``, once ``card_open`` is set. ``requests``: all
    that were received, in order; ``activates``: extensions that it activates for calls that request them, and names
    in a response header. ``card_reads``: the statuses with which the card was served. ``tasks``: by id, living and
    finished.
    """

    def __init__(
        self,
        name: str = "scripted",
        behaviours: Mapping[str, TurnScript] = BEHAVIOURS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.name = name
        self._tls = tls
        self.keeps_history = True
        self.lists = True
        self.subscribes = True
        self.refuses: frozenset[str] = frozenset()
        self.on_cancel: CancelOutcome = "canceled"
        self.bearer: str | None = None
        self.card: JsonObject = {}
        self.extended_card: JsonObject | None = None
        self.card_headers: dict[str, str] = {}
        self.card_open = asyncio.Event()
        self.card_open.set()
        self.activates: frozenset[str] = frozenset()
        self.requests: list[RecordedRequest] = []
        self.card_reads: list[int] = []
        self.tasks: dict[str, RemoteTask] = {}
        self._behaviours = dict(behaviours)
        self._next: deque[TurnScript] = deque()
        self._answers: deque[ScriptedResponse] = deque()
        self._send_answers: deque[ScriptedResponse] = deque()
        self._fixed_ids: deque[str] = deque()
        self._made = 0
        self._ticks = Ticks()
        self._gate = TurnGate()
        self._sends = 0
        self.most_sends = 0
        """Maximum number of sends that it answered concurrently."""
        self._turns: dict[asyncio.Task[None], Turn] = {}
        self._connections: set[asyncio.Transport] = set()
        self._runner: web.AppRunner | None = None
        self._port = find_free_port()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    # ------------------------------------------------------------ lifecycle

    async def start(self) -> None:
        """Starts listening; after a ``stop``, on the same port and with the same tasks."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_routes(self.list_routes())
        app.on_response_prepare.append(self._say_activated)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, "127.0.0.1", self._port, reuse_address=True, ssl_context=self._tls
        )
        await site.start()
        if not self.card:
            self.card = make_card(self.name, self.url + "/")

    def list_routes(self) -> list[web.RouteDef]:
        """The routes."""
        return [
            web.get("/.well-known/agent-card.json", self._serve_card),
            web.post("/", self._serve_call),
        ]

    async def stop(self) -> None:
        """Stops listening, cuts all connections and ends all scripts; tasks stay as they are."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for site in list(runner.sites):
            await site.stop()
        self.cut()
        turns = list(self._turns)
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)
        await end_runner(runner)

    @property
    def url(self) -> str:
        """The URL of its card, and its origin. Known after the start."""
        if self._tls is not None:
            return f"https://localhost:{self._port}"
        return f"http://127.0.0.1:{self._port}"

    # ------------------------------------------------------------ control by the test

    def on(self, word: str, script: TurnScript) -> None:
        """Runs ``script`` for messages that begin with ``word``."""
        self._behaviours[word] = script

    def next(self, *scripts: TurnScript) -> None:
        """Runs these scripts for the next messages, one each, whatever their text."""
        self._next.extend(scripts)

    def answer_next(self, *answers: ScriptedResponse) -> None:
        """Gives these answers to the next calls, one each; the calls are recorded and start no script."""
        self._answers.extend(answers)

    def answer_sends(self, *answers: ScriptedResponse) -> None:
        """The same for the next messages only; other methods are answered normally."""
        self._send_answers.extend(answers)

    def use_task_ids(self, *ids: str) -> None:
        """Assigns these ids to the next tasks; two peers may use the same id."""
        self._fixed_ids.extend(ids)

    def hold(self) -> None:
        """From now on, each step of a script waits for a ``release``."""
        self._gate.close()

    def release(self, steps: int = 1) -> None:
        """Lets that many steps of waiting scripts proceed."""
        self._gate.admit(steps)

    def release_all(self) -> None:
        """Ends ``hold``: nothing waits any longer."""
        self._gate.open()

    def forget(self, task_id: str) -> None:
        """Makes the peer forget a task."""
        self.tasks[task_id].forgotten = True

    def cut(self) -> None:
        """Cuts every connection with a call in progress, with a TCP reset."""
        for transport in list(self._connections):
            transport.abort()

    # ------------------------------------------------------------ state for assertions

    def count(self, method: str) -> int:
        """Number of received requests of a method."""
        return sum(request.method == method for request in self.requests)

    @property
    def messages(self) -> list[JsonObject]:
        """The messages of all sends, streaming or not, in order of arrival."""
        return [
            cast("JsonObject", request.params["message"])
            for request in self.requests
            if request.method in {"SendMessage", "SendStreamingMessage"}
        ]

    @property
    def texts(self) -> list[str]:
        """The first text of each message."""
        parts = [cast("list[JsonObject]", message["parts"]) for message in self.messages]
        return [str(part[0].get("text", "")) for part in parts]

    @property
    def open_connections(self) -> int:
        """Number of open TCP connections, including idle ones."""
        server = self._runner.server if self._runner else None
        return len(server.connections) if isinstance(server, web.Server) else 0

    # ------------------------------------------------------------ HTTP

    async def _serve_card(self, request: web.Request) -> web.Response:
        await self.card_open.wait()
        body = orjson.dumps(self.card)
        etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        headers = {"ETag": etag, **self.card_headers}
        status = 304 if request.headers.get("If-None-Match") == etag else 200
        self.card_reads.append(status)
        if status == 304:
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _say_activated(self, request: web.Request, response: web.StreamResponse) -> None:
        asked = {uri.strip() for uri in request.headers.get("A2A-Extensions", "").split(",")}
        if active := asked & self.activates:
            response.headers["A2A-Extensions"] = ", ".join(sorted(active))

    async def _serve_call(self, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        if transport is None:
            return web.Response()
        self._connections.add(transport)
        try:
            return await self._answer(request)
        except ConnectionError:
            # The caller disconnected, or this connection was cut: no answer is possible.
            return web.Response()
        finally:
            self._connections.discard(transport)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        call = cast("JsonObject", orjson.loads(await request.read()))
        method, params = str(call["method"]), cast("JsonObject", call.get("params", {}))
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append(
            RecordedRequest(method, deepcopy(params), headers, request.rel_url.raw_query_string)
        )
        waiting = self._answers
        if not waiting and method in {"SendMessage", "SendStreamingMessage"}:
            waiting = self._send_answers
        if waiting:
            answer = waiting.popleft()
            if answer.after is not None:
                await answer.after.wait()
            return web.Response(status=answer.status, body=answer.body, headers=answer.headers)
        if self.bearer is not None and headers.get("authorization") != f"Bearer {self.bearer}":
            return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"})
        try:
            if headers.get("a2a-version") != "1.0":
                raise QueryError(-32009, "only A2A 1.0 is spoken here")
            if method not in {"SendMessage", "SendStreamingMessage"}:
                return await self._dispatch(request, call["id"], method, params)
            self._sends += 1
            self.most_sends = max(self.most_sends, self._sends)
            try:
                return await self._dispatch(request, call["id"], method, params)
            finally:
                self._sends -= 1
        except QueryError as error:
            return send_error(call["id"], error.code, error.message)

    async def _dispatch(
        self, request: web.Request, call_id: Json, method: str, params: JsonObject
    ) -> web.StreamResponse:
        if method in self.refuses:
            raise QueryError(-32004, f"{method} is not for you")
        match method:
            case "SendMessage":
                turn = self._begin(params)
                settings = cast("JsonObject", params.get("configuration", {}))
                at_once = settings.get("returnImmediately") is True
                return await answer_unary(request, call_id, turn, at_once=at_once)
            case "SendStreamingMessage":
                turn = self._begin(params)
                return await answer_stream(request, call_id, turn.transcript, turn.start, {End})
            case "SubscribeToTask":
                return await self._subscribe(request, call_id, self._find(str(params["id"])))
            case _:
                return send_result(call_id, self._query(method, params))

    def _query(self, method: str, params: JsonObject) -> JsonObject:
        """Methods that are answered at once."""
        match method:
            case "GetTask":
                return show_task(self._find(str(params["id"])), params.get("historyLength"))
            case "ListTasks":
                if not self.lists:
                    raise QueryError(-32004, "tasks are not listed here")
                known = [task for task in self.tasks.values() if not task.forgotten]
                return list_tasks(known, params)
            case "GetExtendedAgentCard":
                if self.extended_card is None:
                    raise QueryError(-32007, "there is no extended card")
                return self.extended_card
            case "CancelTask":
                return self._cancel(self._find(str(params["id"])))
            case "CreateTaskPushNotificationConfig":
                return {**params, "taskId": self._find(str(params["taskId"])).id}
            case _:
                raise QueryError(-32601, f"there is no method {method}")

    async def _subscribe(
        self, request: web.Request, call_id: Json, task: RemoteTask
    ) -> web.StreamResponse:
        if not self.subscribes:
            raise QueryError(-32004, "tasks are not streamed here")
        if task.state in TERMINAL:
            raise QueryError(-32004, f"Task {task.id} has ended")
        snapshot: JsonObject = {"task": deepcopy(task.record)}
        start = len(task.transcript.items)
        return await answer_stream(
            request, call_id, task.transcript, start, set(), first=ScriptedFrame(snapshot)
        )

    # ------------------------------------------------------------ tasks

    def _find(self, task_id: str) -> RemoteTask:
        task = self.tasks.get(task_id)
        if task is None or task.forgotten:
            raise QueryError(-32001, f"Task {task_id} not found")
        return task

    def _begin(self, params: JsonObject) -> Turn:
        """Receives a message: starts its script concurrently with the request."""
        message = cast("JsonObject", params["message"])
        task: RemoteTask | None = None
        context_id = str(message.get("contextId") or f"{self.name}-context-{self._ticks.number()}")
        if message.get("taskId"):
            task = self._find(str(message["taskId"]))
            if message.get("contextId", task.context_id) != task.context_id:
                raise QueryError(-32602, f"Task {task.id} is in another context")
            if task.state in TERMINAL:
                raise QueryError(-32004, f"Task {task.id} has ended")
            context_id = task.context_id
            task.remember(message)
        transcript = task.transcript if task else Transcript()
        turn = Turn(
            message,
            context_id,
            task,
            transcript,
            len(transcript.items),
            self._gate.enter,
            self._make,
        )
        self._start(turn, self._choose(turn))
        return turn

    def _start(self, turn: Turn, script: TurnScript) -> None:
        running = asyncio.create_task(self._run(turn, script))
        self._turns[running] = turn
        running.add_done_callback(self._turns.pop)

    def _choose(self, turn: Turn) -> TurnScript:
        if self._next:
            return self._next.popleft()
        chosen = self._behaviours.get(turn.text.partition(" ")[0])
        return chosen or (echo if turn.task is None else go_on)

    async def _run(self, turn: Turn, script: TurnScript) -> None:
        await script(turn)
        turn.transcript.write(End())

    def _make(self, turn: Turn) -> RemoteTask:
        self._made += 1
        task_id = self._fixed_ids.popleft() if self._fixed_ids else f"{self.name}-task-{self._made}"
        record: JsonObject = {
            "id": task_id,
            "contextId": turn.context_id,
            "status": {"state": "TASK_STATE_SUBMITTED", "timestamp": self._ticks.stamp()},
        }
        task = RemoteTask(record, turn.transcript, self._ticks, self.keeps_history)
        task.remember({**turn.message, "taskId": task_id, "contextId": turn.context_id})
        self.tasks[task_id] = task
        return task

    def _cancel(self, task: RemoteTask) -> JsonObject:
        if task.state in TERMINAL or self.on_cancel == "refused":
            raise QueryError(-32002, f"Task {task.id} cannot be canceled")
        if self.on_cancel in {"canceled", "completed"}:
            for running, turn in self._turns.items():
                if turn.task is task:
                    running.cancel()
            task.status(self.on_cancel.upper())
        return deepcopy(task.record)


def make_card(name: str, endpoint: str) -> JsonObject:
    """A card of A2A 1.0 with one JSON-RPC interface."""
    return {
        "name": name,
        "description": "Does what a test says.",
        "version": "1.0.0",
        "supportedInterfaces": [
            {"url": endpoint, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "capabilities": {"streaming": True},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [
            {"id": name, "name": name, "description": "Follows a script.", "tags": ["test"]}
        ],
    }

"""The a2a-sdk 1.3 agent, in the loop of the run: over JSON-RPC and HTTP+JSON in both versions, and over gRPC."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio
import uvicorn
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.routes import create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    Part,
    Task,
    TaskState,
    TaskStatus,
    a2a_pb2,
    a2a_pb2_grpc,
)
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message
from starlette.applications import Starlette
from starlette.routing import Mount

from passerelle.gateway.server import PromptServer
from tests.conversations.forms import Json
from tests.conversations.older_grpc import read_sent
from tests.conversations.script import DONE, EXTENSION, FAULT, REFUSAL, SECOND
from tests.conversations.tap import Log, Received

_STATES: Final[Mapping[str, TaskState]] = {
    "INPUT_REQUIRED": TaskState.TASK_STATE_INPUT_REQUIRED,
    "AUTH_REQUIRED": TaskState.TASK_STATE_AUTH_REQUIRED,
}


@dataclass
class Talker(AgentExecutor):
    """Follows the orders in the first message of a task; ``orders`` and ``turns`` are by task."""

    log: Log
    orders: dict[str, Json] = field(default_factory=dict[str, Json])
    turns: dict[str, int] = field(default_factory=dict[str, int])

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task_id, context_id = context.task_id or "", context.context_id or ""
        assert context.message is not None
        if context.requested_extensions and EXTENSION in context.requested_extensions:
            context.call_context.state.setdefault("activated", EXTENSION)
        updater = TaskUpdater(event_queue, task_id, context_id)
        if context.current_task is None:
            self.log.labels[task_id] = str(MessageToDict(context.message)["metadata"]["label"])
            order: Json = json.loads(
                context.get_user_input().partition("\n")[0].removeprefix("play ")
            )
            self.orders[task_id], self.turns[task_id] = order, 0
            status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            made = Task(id=task_id, context_id=context_id, status=status, history=[context.message])
            await event_queue.enqueue_event(made)
            await updater.start_work()
            await self._ask(updater, order["state"], order["parts"])
            return
        order, turn = self.orders[task_id], self.turns[task_id]
        self.turns[task_id] += 1
        step = order["then"][min(turn, len(order["then"]) - 1)]
        if step == "pass":
            return
        if order["resends"]:
            again = Task()
            again.CopyFrom(context.current_task)
            if again.status.HasField("message"):
                again.history.append(again.status.message)
            again.status.CopyFrom(TaskStatus(state=TaskState.TASK_STATE_WORKING))
            await event_queue.enqueue_event(again)
        match step:
            case "refuse":
                raise InvalidParamsError(message=REFUSAL)
            case "raise":
                raise RuntimeError(FAULT)
            case "ask":
                await updater.start_work()
                await self._ask(updater, order["state"], [{"text": SECOND}])
            case _:
                await updater.start_work()
                parts = [Part(text=DONE), *context.message.parts]
                await updater.add_artifact(parts, artifact_id="artifact-1")
                await updater.complete()

    async def _ask(self, updater: TaskUpdater, state: str, parts: list[Json]) -> None:
        asked = updater.new_agent_message([ParseDict(part, Part()) for part in parts])
        await updater.update_status(_STATES[state], asked)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


class _Noting(grpc.aio.ServerInterceptor):
    """Records what arrives over gRPC, before the SDK has it."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def intercept_service(
        self,
        continuation: Any,  # noqa: ANN401  generic in the handler of each method
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401
        handler = await continuation(handler_call_details)
        operation = handler_call_details.method.rpartition("/")[2]
        if operation not in {"SendMessage", "SendStreamingMessage"}:
            return handler
        metadata = handler_call_details.invocation_metadata
        headers = {str(name): str(value) for name, value in metadata}

        def read(body: bytes) -> Message:
            if handler_call_details.method.startswith("/a2a.v1."):
                older, said = read_sent(body)
                self._log.keep(Received(operation, said, headers))
                return older
            request = a2a_pb2.SendMessageRequest.FromString(body)
            self._log.keep(Received(operation, MessageToDict(request), headers))
            return request

        return handler._replace(request_deserializer=read)


@dataclass(frozen=True, slots=True)
class SdkAgents:
    """The addresses of the streaming and the non-streaming agent: HTTP, and the gRPC port."""

    urls: Mapping[bool, str]
    ports: Mapping[bool, int]


@asynccontextmanager
async def run_sdk_agents(log: Log) -> AsyncGenerator[SdkAgents]:
    """Serves both on free loopback ports."""
    routes: list[Any] = []
    ports: dict[bool, int] = {}
    dialled: list[grpc.aio.Server] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for streams in (True, False):
            extensions = [AgentExtension(uri=EXTENSION)]
            able = AgentCapabilities(streaming=streams, extensions=extensions)
            card = AgentCard(name="sdk", version="1", capabilities=able)
            handler = DefaultRequestHandler(Talker(log), InMemoryTaskStore(), card)
            # The routes of the library match any longer path, so each app is mounted separately.
            base = f"/{'s' if streams else 'n'}"
            rpc = create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True)
            rest = create_rest_routes(handler, enable_v0_3_compat=True)
            routes += [Mount(f"{base}/rpc", routes=rpc), Mount(f"{base}/rest", routes=rest)]
            server = grpc.aio.server(interceptors=[_Noting(log)])
            ports[streams] = server.add_insecure_port("127.0.0.1:0")
            a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler), server)  # type: ignore[no-untyped-call]  # generated code
            older = CompatGrpcHandler(handler)
            a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server(older, server)  # type: ignore[no-untyped-call]  # generated code
            await server.start()
            dialled.append(server)
        config = uvicorn.Config(
            Starlette(routes=routes),
            log_level="critical",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        http = PromptServer(config)
        serving = asyncio.create_task(http.serve(sockets=[listener]))
        try:
            yield SdkAgents({True: f"{url}/s", False: f"{url}/n"}, ports)
        finally:
            await asyncio.gather(*(server.stop(0.1) for server in dialled))
            http.end()
            await serving

"""A real a2a-sdk agent in the test's loop: an independent implementation of A2A.

It supports some first words of the scripted peer: ``message``, ``ask``, ``auth``, ``chunks``, ``silent``, and
``boom`` (it raises); anything else is echoed as the artifact of a completed task.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio
import uvicorn
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.routes import (
    create_agent_card_routes,
    create_jsonrpc_routes,
    create_rest_routes,
)
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
    a2a_pb2_grpc,
)
from starlette.applications import Starlette

from passerelle.gateway.server import PromptServer


@dataclass
class SdkExecutor(AgentExecutor):
    """Runs the behaviour of the first word; ``silence`` ends the wait of ``silent``."""

    silence: asyncio.Event = field(default_factory=asyncio.Event)

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        word, _, rest = context.get_user_input().partition(" ")
        if word == "message":
            reply = Message(
                message_id=f"{context.context_id}-reply",
                role=Role.ROLE_AGENT,
                context_id=context.context_id,
                parts=[Part(text=rest or "hello")],
            )
            await event_queue.enqueue_event(reply)
            return
        task_id, context_id = context.task_id or "", context.context_id or ""
        if context.current_task is None:
            status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            history = [context.message] if context.message else []
            made = Task(id=task_id, context_id=context_id, status=status, history=history)
            await event_queue.enqueue_event(made)
        await self._work(TaskUpdater(event_queue, task_id, context_id), word, rest, context)

    async def _work(
        self, updater: TaskUpdater, word: str, rest: str, context: RequestContext
    ) -> None:
        await updater.start_work()
        match word:
            case "ask":
                await updater.requires_input(updater.new_agent_message([Part(text=rest)]))
            case "auth":
                await updater.requires_auth(updater.new_agent_message([Part(text=rest)]))
            case "silent":
                await self.silence.wait()
                await updater.complete()
            case "boom":
                raise RuntimeError("boom")
            case "chunks":
                total = int(rest)
                for number in range(1, total + 1):
                    await updater.add_artifact(
                        [Part(text=f"chunk-{number} ")],
                        artifact_id="artifact-1",
                        append=number > 1,
                        last_chunk=number == total,
                    )
                await updater.complete()
            case _:
                await updater.add_artifact(
                    [Part(text=context.get_user_input())], artifact_id="artifact-1"
                )
                await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


def build_card(
    url: str, kinds: Sequence[str] = ("JSONRPC/1.0",), grpc_port: int = 0, *, streams: bool = True
) -> AgentCard:
    """A card with one interface of each kind; HTTP interfaces share ``url``."""
    interfaces: list[AgentInterface] = []
    for kind in kinds:
        binding, _, version = kind.rpartition("/")
        at = f"127.0.0.1:{grpc_port}" if binding == "GRPC" else url
        interfaces.append(
            AgentInterface(url=at, protocol_binding=binding, protocol_version=version)
        )
    return AgentCard(
        name="sdk",
        description="An agent of the SDK.",
        version="1.0.0",
        supported_interfaces=interfaces,
        capabilities=AgentCapabilities(streaming=streams),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="echo", name="echo", description="Echoes.", tags=["test"])],
    )


def make_app(handler: DefaultRequestHandler, card: AgentCard) -> Starlette:
    """The application that serves a stock agent."""
    routes = [
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
        *create_rest_routes(handler, enable_v0_3_compat=True),
    ]
    return Starlette(routes=routes)


@dataclass(frozen=True, slots=True)
class SdkAgent:
    """The URL of its card, and its gRPC origin, if it has one."""

    url: str
    dialled: str | None


@asynccontextmanager
async def run_sdk_agent(*kinds: str, streams: bool = True) -> AsyncGenerator[SdkAgent, None]:
    """Serves the agent on free loopback ports; its card offers ``kinds``, and declares whether it ``streams``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        executor = SdkExecutor()
        wants_grpc = any(kind.startswith("GRPC") for kind in kinds)
        dialled = grpc.aio.server() if wants_grpc else None
        grpc_port = dialled.add_insecure_port("127.0.0.1:0") if dialled else 0
        card = build_card(url + "/", kinds or ("JSONRPC/1.0",), grpc_port, streams=streams)
        handler = DefaultRequestHandler(executor, InMemoryTaskStore(), card)
        config = uvicorn.Config(
            make_app(handler, card), log_level="error", lifespan="off", timeout_graceful_shutdown=1
        )
        server = PromptServer(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        if dialled:
            a2a_pb2_grpc.add_A2AServiceServicer_to_server(  # type: ignore[no-untyped-call]  # generated code
                GrpcHandler(handler), dialled
            )
            a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server(  # type: ignore[no-untyped-call]
                CompatGrpcHandler(handler), dialled
            )
            await dialled.start()
        try:
            # The listener already accepts: a request waits in its backlog until the server runs.
            yield SdkAgent(url, f"http://127.0.0.1:{grpc_port}" if grpc_port else None)
        finally:
            executor.silence.set()
            if dialled:
                await dialled.stop(0.1)
            server.end()
            await serving

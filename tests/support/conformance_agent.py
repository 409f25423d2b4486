"""The agent behind the gateway in conformance runs: a2a-sdk with all bindings, push and extended card.

The ``messageId`` selects its behaviour (``tests.support.conformance_behaviours``). A run without the gateway shows
which part of a result is due to the SDK. It runs as a process::

    python -m tests.support.conformance_agent --port 0
    {"url": "http://127.0.0.1:40001", "grpc": "127.0.0.1:40002"}

``--required-extension`` makes the card require an extension of every call. All other calls of a run would then be
invalid, so such an agent runs as a second process. Three paths are for tests and not part of A2A:
``POST /release/<message id>?steps=1`` lets a held behaviour continue, ``GET /received/<message id>`` returns what was
received, and ``GET /versions`` the versions that calls named.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import httpx
import orjson
import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.routes import (
    create_agent_card_routes,
    create_jsonrpc_routes,
    create_rest_routes,
)
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentProvider,
    AgentSkill,
    a2a_pb2_grpc,
)
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from passerelle.gateway.server import PromptServer
from tests.support.conformance_behaviours import Gates, Turn, find_behaviour
from tests.support.conformance_wire import put_faults_on_the_wire

# The stubs that protoc generates have no types.
_register: Callable[[object, object], None] = a2a_pb2_grpc.add_A2AServiceServicer_to_server  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
REQUIRED_EXTENSION: Final = "urn:a2a:tck:required-extension"
SECRET_SKILL: Final = "extended"
_HOST: Final = "127.0.0.1"


@dataclass
class ConformanceExecutor(AgentExecutor):
    """Runs the behaviour that the message id names, and keeps each message."""

    tasks: InMemoryTaskStore = field(default_factory=InMemoryTaskStore)
    gates: Gates = field(default_factory=Gates)
    received: defaultdict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    versions: set[str] = field(default_factory=set[str])
    """The ``A2A-Version`` of each call."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        message_id = context.message.message_id if context.message else ""
        self.versions.add(read_version(context.call_context))
        if context.message:
            self.received[message_id].append(MessageToDict(context.message))
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        gate = self.gates.find(message_id)
        await find_behaviour(message_id)(Turn(context, event_queue, updater, self.tasks, gate))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.versions.add(read_version(context.call_context))
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


def read_version(context: ServerCallContext) -> str:
    """The version that a call named; empty if none."""
    headers: dict[str, str] = context.state.get("headers", {})
    return next((value for name, value in headers.items() if name.lower() == "a2a-version"), "")


def make_card(url: str, grpc_address: str, *, requires_extension: bool) -> AgentCard:
    """The public card, with every binding and capability."""
    extension = AgentExtension(
        uri=REQUIRED_EXTENSION, required=True, description="Demanded of every call."
    )
    return AgentCard(
        name="Conformance",
        description="Behaves as the messageId says.",
        version="1.0.0",
        provider=AgentProvider(organization="Passerelle", url="https://example.com"),
        supported_interfaces=[
            AgentInterface(url=address, protocol_binding=binding, protocol_version="1.0")
            for binding, address in (
                ("JSONRPC", f"{url}/"),
                ("HTTP+JSON", url),
                ("GRPC", grpc_address),
            )
        ],
        capabilities=AgentCapabilities(
            streaming=True,
            push_notifications=True,
            extended_agent_card=True,
            extensions=[extension] if requires_extension else [],
        ),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[_make_skill("conformance")],
    )


def make_extended_card(card: AgentCard) -> AgentCard:
    """The card with one more skill."""
    extended = AgentCard()
    extended.CopyFrom(card)
    extended.skills.append(_make_skill(SECRET_SKILL))
    return extended


def _make_skill(name: str) -> AgentSkill:
    return AgentSkill(id=name, name=name, description=f"The {name} skill.", tags=["test"])


def make_app(
    executor: ConformanceExecutor, handler: DefaultRequestHandler, card: AgentCard
) -> ASGIApp:
    """The HTTP side: card, both bindings, the paths for tests, and injected faults."""

    async def release(request: Request) -> Response:
        steps = int(request.query_params.get("steps", "1"))
        executor.gates.release(request.path_params["message_id"], steps)
        return Response(status_code=204)

    async def show(request: Request) -> Response:
        return JSONResponse(executor.received[request.path_params["message_id"]])

    async def show_versions(_request: Request) -> Response:
        return JSONResponse(sorted(executor.versions))

    app = Starlette(
        routes=[
            Route("/release/{message_id}", release, methods=["POST"]),
            Route("/received/{message_id}", show),
            Route("/versions", show_versions),
            *create_agent_card_routes(card),
            *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
            # Added last: their mount for tenants matches every path.
            *create_rest_routes(handler, enable_v0_3_compat=True),
        ]
    )
    return put_faults_on_the_wire(app)


async def serve(port: int, *, requires_extension: bool) -> None:
    """Serves until SIGTERM or SIGINT; prints its addresses as the first line of output."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    executor = ConformanceExecutor()
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=5, trust_env=False))
        listener = stack.enter_context(socket.create_server((_HOST, port)))
        url = f"http://{_HOST}:{listener.getsockname()[1]}"
        calls = grpc.aio.server()
        address = f"{_HOST}:{calls.add_insecure_port(f'{_HOST}:0')}"
        card = make_card(url, address, requires_extension=requires_extension)
        configs = InMemoryPushNotificationConfigStore()
        handler = DefaultRequestHandler(
            executor,
            executor.tasks,
            card,
            push_config_store=configs,
            push_sender=BasePushNotificationSender(http, configs),
            extended_agent_card=make_extended_card(card),
        )
        _register(GrpcHandler(handler), calls)
        await calls.start()
        stack.push_async_callback(calls.stop, 0)
        await _serve_http(make_app(executor, handler, card), listener, stopping, url, address)


async def _serve_http(
    app: ASGIApp, listener: socket.socket, stopping: asyncio.Event, url: str, address: str
) -> None:
    config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    server = PromptServer(config)
    serving = asyncio.create_task(server.serve([listener]))
    sys.stdout.write(orjson.dumps({"url": url, "grpc": address}).decode() + "\n")
    sys.stdout.flush()
    await stopping.wait()
    server.end()
    await serving


def main() -> None:
    """Parses the command line and serves."""
    parser = argparse.ArgumentParser(prog="conformance_agent")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--required-extension", action="store_true")
    flags = parser.parse_args()
    asyncio.run(serve(flags.port, requires_extension=flags.required_extension))


if __name__ == "__main__":
    main()

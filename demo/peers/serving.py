"""Serves one agent: card, JSON-RPC, HTTP+JSON, and statistics of the messages received.

``GET /stats`` counts messages by message id, so a test can prove that a message arrived once.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator
from types import FrameType
from typing import Final

import orjson
import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import (
    create_agent_card_routes,
    create_jsonrpc_routes,
    create_rest_routes,
)
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentExtension, AgentInterface, AgentSkill
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from passerelle.core.errors import ConfigInvalid
from passerelle.gateway.server import bind

HOST: Final = "127.0.0.1"
SHUTDOWN_S: Final = 1
_BINDINGS: Final = ("JSONRPC", "HTTP+JSON")


class SampleAgent(AgentExecutor):
    """An agent that counts its messages. A subclass implements :meth:`answer`."""

    name: str
    description: str
    extension: str | None = None

    def __init__(self) -> None:
        self._received: Counter[str] = Counter()
        self._cancelled: list[str] = []

    @abstractmethod
    async def answer(self, context: RequestContext, queue: EventQueue) -> None:
        """Handles one message."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        if context.message is not None:
            self._received[context.message.message_id] += 1
        await self.answer(context, event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self._cancelled.append(context.task_id or "")
        await open_updater(context, event_queue).cancel()

    async def report_stats(self, _: Request) -> JSONResponse:
        """Returns how often each message id arrived, and which tasks were cancelled."""
        return JSONResponse(
            {"agent": self.name, "received": self._received, "cancelled": self._cancelled}
        )


def open_updater(context: RequestContext, queue: EventQueue) -> TaskUpdater:
    """Returns the SDK's writer of task events for the task of ``context``."""
    return TaskUpdater(queue, context.task_id or "", context.context_id or "")


def make_card(agent: SampleAgent, url: str) -> AgentCard:
    """Returns the card of an agent that is served at ``url``."""
    extensions = [AgentExtension(uri=agent.extension)] if agent.extension else []
    return AgentCard(
        name=agent.name,
        description=agent.description,
        version="1.0",
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding=binding, protocol_version="1.0")
            for binding in _BINDINGS
        ],
        capabilities=AgentCapabilities(streaming=True, extensions=extensions),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[
            AgentSkill(
                id=agent.name, name=agent.name, description=agent.description, tags=["sample"]
            )
        ],
    )


def make_app(agent: SampleAgent, url: str) -> Starlette:
    """Returns the application of one agent."""
    card = make_card(agent, url)
    handler = DefaultRequestHandler(agent, InMemoryTaskStore(), card)

    @contextlib.asynccontextmanager
    async def close_with(_: Starlette) -> AsyncGenerator[None]:
        yield
        await handler.aclose()

    return Starlette(
        routes=[
            Route("/stats", agent.report_stats),
            *create_agent_card_routes(card),
            *create_jsonrpc_routes(handler, "/"),
            *create_rest_routes(handler),
        ],
        lifespan=close_with,
    )


def serve(agent: SampleAgent) -> None:
    """Serves until SIGTERM or SIGINT, then exits with status 0 within about a second."""
    parser = argparse.ArgumentParser(description=agent.description)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port (default)")
    try:
        listener = bind(HOST, parser.parse_args().port)
    except ConfigInvalid as error:
        parser.error(error.message)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again after its shutdown
        signal.signal(number, _leave)
    # the SDK warns about each stream that a shutdown closes
    logging.getLogger("a2a").setLevel(logging.ERROR)
    line = {"agent": agent.name, "url": listener.url, "port": listener.port}
    print(orjson.dumps(line).decode(), flush=True)
    config = uvicorn.Config(
        make_app(agent, listener.url),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    uvicorn.Server(config).run(sockets=[listener.socket])


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)

"""A minimal agent: tens of thousands of open tasks in one process, and statistics of the calls.

``python -m bench.light_peer`` listens on loopback and prints one JSON line with its URL. Its tasks run until ``POST
/finish``. Every call takes ``--takes`` seconds, so that concurrent calls overlap; ``GET /stats`` returns their
maximum since ``POST /reset``. An event stream counts as a call until its first event.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

import orjson

from bench.http_connection import AgentConnection, serve_agent
from bench.light_tasks import WORKING, LightTasks, refuse
from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.server import run
from passerelle.runtime.common.clock import SystemClock

_ENDED: Final = -32004


@dataclass(frozen=True, slots=True)
class LightAgent:
    """State shared by all connections."""

    tasks: LightTasks
    takes_s: float
    card: bytes


class LightConnection(AgentConnection):
    """One connection; its calls run one after the other."""

    def __init__(self, agent: LightAgent) -> None:
        super().__init__()
        self._agent = agent
        self._waiting: asyncio.TimerHandle | None = None
        self._unfollow: Callable[[], None] = lambda: None

    def on_closed(self, error: Exception | None) -> None:  # noqa: ARG002  whatever it was, its calls are over
        self._unfollow()
        if self._waiting is not None:
            self._waiting.cancel()
            self._leave()

    def take(self, body: bytes) -> None:
        path, tasks = self.take_path(), self._agent.tasks
        if self.method == b"GET":
            self.answer(orjson.dumps(tasks.report()) if path == b"/stats" else self._agent.card)
        elif path == b"/reset":
            tasks.counts.reset()
            self.answer(b"{}")
        elif path == b"/finish":
            tasks.finish()
            self.answer(b"{}")
        else:
            self._begin(cast("JsonObject", orjson.loads(body)))

    def _begin(self, call: JsonObject) -> None:
        params = object_at(call, "params")
        self._agent.tasks.counts.enter(text_at(call, "method"), text_at(params, "id"))
        loop = asyncio.get_running_loop()
        self._waiting = loop.call_later(self._agent.takes_s, self._execute, call, params)

    def _execute(self, call: JsonObject, params: JsonObject) -> None:
        self._leave()
        tasks, method = self._agent.tasks, text_at(call, "method")
        if method not in {"SendStreamingMessage", "SubscribeToTask"}:
            self.answer_call(call, tasks.answer(method, params))
            return
        task = tasks.begin(params) if method == "SendStreamingMessage" else tasks.find(params)
        if task is None or task.state != WORKING:
            self.answer_call(call, refuse(_ENDED, "the task has ended"))
            return
        self.open_stream()
        self.send_event(call, {"task": task.show()})
        self._unfollow = task.follow(partial(self.send_last_event, call))

    def _leave(self) -> None:
        self._waiting = None
        self._agent.tasks.counts.leave()


def _prepare(takes_s: float, card: bytes) -> Callable[[], LightConnection]:
    agent = LightAgent(LightTasks(SystemClock().now_ms), takes_s, card)
    return lambda: LightConnection(agent)


def main() -> None:
    """Serves until it is terminated."""
    parser = argparse.ArgumentParser(prog="python -m bench.light_peer", description=__doc__)
    parser.add_argument("--takes", type=float, default=0.02, help="seconds that each call takes")
    parser.add_argument("--streams", action="store_true", help="says that it streams, and does")
    flags = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        run(serve_agent("light", partial(_prepare, flags.takes), streams=flags.streams))


if __name__ == "__main__":
    main()

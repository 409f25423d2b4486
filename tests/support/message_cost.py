"""Counts the cost of one message: store round trips, JSON parses and dumps, functions, package changes.

Counts only the product: the agent and the caller of a test run in the same process.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import orjson
import pytest

from passerelle.store.batcher import Batcher

ROOT: Final = Path(__file__).resolve().parents[2]
_BESIDE: Final = frozenset({"tests", "bench", "tools", "demo", ".venv"})


@dataclass
class Cost:
    """Counts since creation."""

    store_calls: int = 0
    written: int = 0
    read: int = 0
    functions: int = 0
    rooms: int = 0
    _room: str = field(default="", repr=False)

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """A profile function."""
        room = find_room(frame) if event == "call" else ""
        if room:
            self.functions += 1
            self.rooms += room != self._room
            self._room = room


def find_room(frame: FrameType | None) -> str:
    """The top-level folder of the product that contains a function; empty if it is not part of the product."""
    if frame is None:
        return ""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(ROOT):
        return ""
    first, *others = path.relative_to(ROOT).parts
    room = others[1] if first == "src" else first
    return "" if room in _BESIDE or not others else room


async def measure(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[object]]) -> Cost:
    """The cost of ``work``, once everything that it started in its own iteration of the loop is over."""
    cost = Cost()

    def count_json(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:  # noqa: ANN401  whatever orjson takes
            here = inspect.currentframe()
            if find_room(here.f_back if here else None):
                setattr(cost, name, getattr(cost, name) + 1)
            return function(*given, **named)

        return counted

    call = Batcher.call

    async def counted_call(batcher: Batcher, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        cost.store_calls += 1
        return await call(batcher, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(orjson, "dumps", count_json(orjson.dumps, "written"))
        patch.setattr(orjson, "loads", count_json(orjson.loads, "read"))
        patch.setattr(Batcher, "call", counted_call)
        sys.setprofile(cost.note)
        try:
            await work()
        finally:
            sys.setprofile(None)
    return cost

"""The agent of graphs, jobs, queues and schedules: it runs in this process, so its messages are known for certain.

The second word of a message is a label, under which its arrival and its end are recorded. The first one is the
behaviour:

    work LABEL 0.3     an artifact after that many seconds, then COMPLETED
    gate LABEL         the same once the gate of the label is open
    fail LABEL         FAILED, each time
    flaky LABEL        FAILED the first time, then COMPLETED
    silent LABEL       nothing until it is cancelled
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.support.scripted_peer import ScriptedPeer

if TYPE_CHECKING:
    from tests.support.scripted_tasks import Turn

AGENT: Final = "worker"
NARROW: Final = "narrow"
"""The same agent under a name with one slot."""


@dataclass(slots=True)
class WorkAgent:
    """``arrived`` and ``ended`` are monotonic times by label, of the first arrival and the last end."""

    peer: ScriptedPeer = field(default_factory=lambda: ScriptedPeer(AGENT))
    arrived: dict[str, float] = field(default_factory=dict[str, float])
    ended: dict[str, float] = field(default_factory=dict[str, float])
    _tries: Counter[str] = field(default_factory=Counter[str])
    _gates: dict[str, asyncio.Event] = field(
        default_factory=lambda: defaultdict[str, asyncio.Event](asyncio.Event)
    )

    def __post_init__(self) -> None:
        for word, script in (
            ("work", self._work),
            ("gate", self._wait),
            ("fail", self._fail),
            ("flaky", self._try),
            ("silent", self._stay),
        ):
            self.peer.on(word, script)

    def open_gate(self, label: str) -> None:
        """Lets the task of a label complete."""
        self._gates[label].set()

    def list_labels(self) -> list[str]:
        """The labels of the messages, in order of arrival."""
        return [text.split()[1] for text in self.peer.texts]

    def count_messages(self) -> Counter[str]:
        """Number of arrivals of each message."""
        return Counter(str(message["messageId"]) for message in self.peer.messages)

    def _note(self, turn: Turn) -> str:
        label = turn.text.split()[1]
        self.arrived.setdefault(label, time.monotonic())
        return label

    async def _work(self, turn: Turn) -> None:
        label = self._note(turn)
        await turn.status("WORKING")
        await asyncio.sleep(float(turn.text.split()[2]))
        await self._complete(turn, label)

    async def _wait(self, turn: Turn) -> None:
        label = self._note(turn)
        await turn.status("WORKING")
        await self._gates[label].wait()
        await self._complete(turn, label)

    async def _fail(self, turn: Turn) -> None:
        self._note(turn)
        await turn.status("WORKING")
        await turn.status("FAILED", "It cannot be done.")

    async def _try(self, turn: Turn) -> None:
        label = self._note(turn)
        self._tries[label] += 1
        is_first = self._tries[label] == 1
        await turn.status("WORKING")
        if is_first:
            await turn.status("FAILED", "Not yet.")
        else:
            await self._complete(turn, label)

    async def _stay(self, turn: Turn) -> None:
        self._note(turn)
        await turn.status("WORKING")

    async def _complete(self, turn: Turn, label: str) -> None:
        await turn.artifact(f"{label} is done")
        self.ended[label] = time.monotonic()
        await turn.status("COMPLETED")

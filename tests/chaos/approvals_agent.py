"""The agent of the errands: requests approval in any dialect, a second time if wanted, and completes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from passerelle.core.wire.times import format_ms
from passerelle.runtime.common.clock import SystemClock
from tests.chaos.approvals_pauses import read_pause
from tests.chaos.approvals_plan import HELD_BACK, OWN, WORDS, Death, Errand
from tests.support.asking import ask_leave
from tests.support.scripted_behaviours import go_on
from tests.support.scripted_peer import ScriptedPeer

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.support.scripted_tasks import Turn

AGENT: Final = "asker"
VAULT: Final = "vault"
"""The same agent under a name that requires approval before each message."""
QUIET: Final = "quiet"
"""The same agent without streaming."""
GREETING: Final = "hello"
"""A message that every agent accepts and completes at once."""
LIFE_S: Final = 2


def name_agent(errand: Errand) -> str:
    """The name under which the agent of an errand is called."""
    if errand.death in HELD_BACK:
        return VAULT
    return AGENT if errand.streams else QUIET


@dataclass(slots=True)
class AskingAgent:
    """``errands`` by label; ``nudges`` are awaited by an agent before its second request."""

    peer: ScriptedPeer = field(default_factory=lambda: ScriptedPeer(AGENT))
    quiet: ScriptedPeer = field(default_factory=lambda: ScriptedPeer(QUIET))
    errands: dict[str, Errand] = field(default_factory=dict[str, Errand])
    nudges: dict[str, asyncio.Event] = field(
        default_factory=lambda: defaultdict[str, asyncio.Event](asyncio.Event)
    )
    begun: dict[str, list[str]] = field(default_factory=lambda: defaultdict[str, list[str]](list))
    """The agent's tasks by label: one for each time that it received the errand."""
    _asked_again: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.quiet.refuses = frozenset({"SendStreamingMessage", "SubscribeToTask"})
        for peer in (self.peer, self.quiet):
            peer.on("ask", self._begin)
            peer.on(GREETING, go_on)
            for word in ("", "Approved"):  # the approval form of kagent also accepts a word
                peer.on(word, self._take)

    def find_tasks(self, errand: Errand) -> list[str]:
        """The agent's tasks of an errand."""
        return self.begun[errand.label]

    def list_answers(self, errand: Errand) -> list[JsonObject]:
        """Messages to its tasks after their first."""
        tasks = self.begun[errand.label]
        peer = self.peer if errand.streams else self.quiet
        return [one for one in peer.messages if one.get("taskId") in tasks]

    async def _begin(self, turn: Turn) -> None:
        errand = self.errands[turn.argument.split()[0]]
        self.begun[errand.label].append((await turn.open()).id)
        await _ask(turn, errand, 0)
        if errand.death is Death.IN_SUPERSEDE:
            await self.nudges[errand.label].wait()
            await _ask(turn, errand, 1)

    async def _take(self, turn: Turn) -> None:
        """Handles an answer: repeats the request if a grant is to answer it, else completes the work."""
        task = await turn.open()
        label = next(label for label, ids in self.begun.items() if task.id in ids)
        errand = self.errands[label]
        if errand.death is not Death.IN_GRANT_USE or label in self._asked_again:
            await go_on(turn)
            return
        self._asked_again.add(label)
        await turn.status("WORKING")
        await self.nudges[label].wait()
        await _ask(turn, errand, 1)


async def _ask(turn: Turn, errand: Errand, number: int) -> None:
    if errand.dialect == WORDS:
        await turn.status("INPUT_REQUIRED", f"Which colour for {errand.label}?")
    elif errand.dialect == OWN:
        await _ask_own(turn, errand, number)
    else:
        await _show(turn, read_pause(errand, number))


async def _ask_own(turn: Turn, errand: Errand, number: int) -> None:
    more: JsonObject = {}
    if errand.death is Death.IN_EXPIRY:
        more["expires_at"] = format_ms(SystemClock().now_ms() + LIFE_S * 1000)
    subject: JsonObject = {"type": "tool_call", "name": errand.label}
    name = f"{errand.label}-{number}"
    await ask_leave(name, subject, "INPUT_REQUIRED", **more)(turn)


async def _show(turn: Turn, recorded: JsonObject) -> None:
    task = await turn.open()
    for artifact in cast("list[JsonObject]", recorded.get("artifacts", [])):
        name = str(artifact["artifactId"])
        parts = deepcopy(artifact["parts"])
        assert isinstance(parts, list)
        task.artifact(parts, artifact_id=name, name=str(artifact["name"]))
    status = {**cast("JsonObject", recorded["status"]), "timestamp": task.ticks.stamp()}
    task.record["status"] = status
    update: JsonObject = {"taskId": task.id, "contextId": task.context_id, "status": status}
    task.tell({"statusUpdate": deepcopy(update)})

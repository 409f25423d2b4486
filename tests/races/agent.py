"""The agent: it requests approval of a payment, follows the typed answer to its latest request, and counts."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.wire.times import format_ms
from passerelle.runtime.common.clock import SystemClock
from tests.races.plan import LIFE_MS, OPTIONS, Story
from tests.support.scripted_peer import ScriptedPeer

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.support.scripted_tasks import Turn

NAME: Final = "cashier"
_KINDS: Final = {"pay": "allow_once", "leave": "reject_once"}
_LIVES: Final = frozenset({Story.SUPERSEDE, Story.MOVED_ON})
"""Stories in which the agent itself acts while it waits."""


@dataclass(slots=True)
class Cashier:
    """The agent. ``answers`` are the received options, by request; ``done`` the executed actions, by request."""

    peer: ScriptedPeer = field(default_factory=lambda: ScriptedPeer(NAME))
    answers: dict[str, list[str]] = field(default_factory=lambda: defaultdict[str, list[str]](list))
    done: dict[str, list[str]] = field(default_factory=lambda: defaultdict[str, list[str]](list))
    latest: dict[str, str] = field(default_factory=dict[str, str])
    _stirred: dict[str, asyncio.Event] = field(
        default_factory=lambda: defaultdict[str, asyncio.Event](asyncio.Event)
    )

    def __post_init__(self) -> None:
        self.peer.on("race", self._begin)
        self.peer.on("", self._take)
        self.peer.on("yes,", self._take)

    def act_alone(self, label: str) -> None:
        """Makes it act by itself, according to the story of a request."""
        self._stirred[label].set()

    async def _begin(self, turn: Turn) -> None:
        label, _, story = turn.argument.partition(" ")
        task = await turn.open()
        await turn.status("WORKING")
        life_ms = LIFE_MS if story == Story.TIMEOUT else None
        await self._ask(turn, label, life_ms)
        if story not in _LIVES:
            return
        await self._stirred[label].wait()
        if task.state != "INPUT_REQUIRED":
            return
        if story == Story.SUPERSEDE:
            await self._ask(turn, f"{label}-again", None)
        else:
            self.latest.pop(task.id, None)
            await turn.status("WORKING")
            await turn.status("COMPLETED")

    async def _ask(self, turn: Turn, label: str, life_ms: int | None) -> None:
        task = await turn.open()
        self.latest[task.id] = label
        form: JsonObject = {
            "action_id": label,
            "rev": 1,
            "digest": f"sha256:{label}",
            "kind": "permission",
            "title": "Pay a bill",
            "subject": {"type": "tool_call", "name": "pay", "arguments": {"bill": label}},
            "options": [
                {"option_id": one, "name": one.title(), "kind": _KINDS[one]} for one in OPTIONS
            ],
        }
        if life_ms is not None:
            form["expires_at"] = format_ms(SystemClock().now_ms() + life_ms)
        await turn.status("INPUT_REQUIRED", parts=[{"data": {PERMISSION: form}}])

    async def _take(self, turn: Turn) -> None:
        """A typed answer to its latest request is followed; anything else is answered by another request."""
        task = await turn.open()
        parts = objects_at(turn.message, "parts")
        forms = [object_at(object_at(part, "data"), PERMISSION) for part in parts]
        form = next((form for form in forms if form), None)
        label = text_at(form or {}, "action_id")
        option = text_at(form or {}, "option_id")
        if form is not None:
            self.answers[label].append(option)
        if form is None or self.latest.get(task.id) != label:
            task.show()
            return
        del self.latest[task.id]
        self.done[label].append(option)
        await turn.status("WORKING")
        await turn.artifact(option)
        await turn.status("COMPLETED")


def read_question(task: JsonObject) -> JsonObject | None:
    """What an answer to the gateway's request has to name, read from the Task that its caller sees."""
    message = object_at(object_at(task, "status"), "message")
    for part in objects_at(message, "parts"):
        form = object_at(object_at(part, "data"), PERMISSION)
        if form:
            return {"actionId": form["action_id"], "rev": form["rev"], "digest": form["digest"]}
    return None

"""A scripted agent as a process that may be killed: ``python -m tests.chaos.agent NAME JOURNAL PORT URL``.

``URL`` is on its card: callers reach it through a proxy. It keeps its tasks in a journal, written before any answer,
and continues them after a restart. Every message is counted by its id, in the same journal line as its task. ``GET
/truth`` returns everything. A text is ``<label> <verb> …``:

    work chunks=5 every=0.1     that many chunks of one artifact, seconds apart, then COMPLETED
    ask chunks=5 every=0.1      INPUT_REQUIRED first, then the same
    say                         a bare Message
    fail                        FAILED
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Final, cast

import orjson
from aiohttp import web

from passerelle.core.wire.json import JsonObject
from tests.support.scripted_peer import ScriptedPeer, make_card
from tests.support.scripted_tasks import TERMINAL, RemoteTask, Transcript, Turn, TurnScript

_PACE: Final = re.compile(r"chunks=(\d+) every=([\d.]+)")
_TICKS_PER_LINE: Final = 4
"""Upper bound of the ticks per journal line: the times of a later life are later."""
_RESTING: Final = TERMINAL | {"INPUT_REQUIRED"}


async def work(turn: Turn) -> None:
    """Continues from the task's state, so that a restart can begin in the middle."""
    found = _PACE.search(_first_text(turn))
    chunks, every_s = (int(found[1]), float(found[2])) if found else (1, 0.0)
    task = await turn.open()
    label = _first_text(turn).split()[0]
    if task.state != "WORKING":
        task.status("WORKING")
    for number in range(_count_chunks(task) + 1, chunks + 1):
        await asyncio.sleep(every_s)
        text = f"{label} chunk {number} of {chunks}\n"
        task.artifact([{"text": text}], append=number > 1, last=number == chunks)
    task.status("COMPLETED")


async def ask(turn: Turn) -> None:
    """Requests input once, before anything else."""
    task = await turn.open()
    task.status("INPUT_REQUIRED", "Shall I?")


async def fail(turn: Turn) -> None:
    """Works, then fails."""
    task = await turn.open()
    task.status("WORKING")
    task.status("FAILED", "It cannot be done.")


def _count_chunks(task: RemoteTask) -> int:
    artifacts = cast("list[JsonObject]", task.record.get("artifacts", []))
    return sum(len(cast("list[JsonObject]", one["parts"])) for one in artifacts)


def _first_text(turn: Turn) -> str:
    """The text of the task's first message, whichever message this turn is about."""
    history = turn.task.record.get("history") if turn.task else None
    first = cast("list[JsonObject]", history)[0] if history else turn.message
    parts = cast("list[JsonObject]", first["parts"])
    return str(parts[0]["text"])


class LastingPeer(ScriptedPeer):
    """The scripted peer with a journal."""

    def __init__(self, name: str, journal: Path, port: int, url: str) -> None:
        super().__init__(name)
        self.card = make_card(name, f"{url}/")
        self._port = port
        self._received: Counter[str] = Counter()
        lines = journal.read_bytes().splitlines() if journal.exists() else []
        self._journal = journal.open("ab", buffering=0)
        self._ticks.skip(len(lines) * _TICKS_PER_LINE)
        for line in lines:
            self._remember(cast("JsonObject", orjson.loads(line)))

    def resume(self) -> None:
        """Continues every task that was working when the last life ended."""
        for task in self.tasks.values():
            if task.state not in _RESTING:
                history = cast("list[JsonObject]", task.record["history"])
                turn = Turn(
                    history[-1],
                    task.context_id,
                    task,
                    task.transcript,
                    0,
                    self._gate.enter,
                    self._make,
                )
                self._start(turn, work)

    def list_routes(self) -> list[web.RouteDef]:
        return [*super().list_routes(), web.get("/truth", self._show_truth)]

    async def _show_truth(self, _: web.Request) -> web.Response:
        entry = {"messages": self._received, "tasks": [task.record for task in self.tasks.values()]}
        return web.Response(body=orjson.dumps(entry), content_type="application/json")

    def _remember(self, line: JsonObject) -> None:
        if "message" in line:
            self._received[str(line["message"])] += 1
        if "task" in line:
            record = cast("JsonObject", line["task"])
            task = RemoteTask(record, Transcript(), self._ticks, saved=self._save)
            self.tasks[task.id] = task

    def _save(self, task: RemoteTask) -> None:
        self._journal.write(orjson.dumps({"task": task.record}) + b"\n")

    def _begin(self, params: JsonObject) -> Turn:
        turn = super()._begin(params)
        if turn.task is not None:
            self._count(turn.message, turn.task)
        return turn

    def _make(self, turn: Turn) -> RemoteTask:
        label = turn.text.split()[0]
        name = f"{self.name}-{label}"
        again = sum(known.startswith(name) for known in self.tasks)
        self.use_task_ids(f"{name}-{again + 1}")
        task = super()._make(turn)
        task.saved = self._save
        self._count(turn.message, task)
        return task

    def _count(self, message: JsonObject, task: RemoteTask | None) -> None:
        """The message and its task in one line: a life that is killed writes both or neither."""
        entry: JsonObject = {"message": message["messageId"]}
        if task is not None:
            entry["task"] = task.record
        self._journal.write(orjson.dumps(entry) + b"\n")
        self._received[str(message["messageId"])] += 1

    def _choose(self, turn: Turn) -> TurnScript:
        if turn.task is not None:
            return work
        verb = turn.text.split()[1]
        return {"ask": ask, "fail": fail, "say": self._say}.get(verb, work)

    async def _say(self, turn: Turn) -> None:
        self._count(deepcopy(turn.message), None)
        await turn.answer(f"{turn.text} it is")


async def _serve(name: str, journal: Path, port: int, url: str) -> None:
    peer = LastingPeer(name, journal, port, url)
    await peer.start()
    peer.resume()
    print(orjson.dumps({"agent": name, "url": peer.url}).decode(), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Serves until it is killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.agent", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("journal", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("url")
    flags = parser.parse_args()
    asyncio.run(_serve(flags.name, flags.journal, flags.port, flags.url))


if __name__ == "__main__":
    main()

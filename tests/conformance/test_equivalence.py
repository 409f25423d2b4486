"""The same story over every binding has the same answers (A2A 1.0 section 5.1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import pytest

from tests.conformance.callers import WEBSOCKET, Caller, Json, make_params
from tests.conformance.conftest import BINDINGS
from tests.conformance.site import Site, write

pytestmark = pytest.mark.anyio

TIMES = frozenset({"timestamp", "lastModified"})


class Names:
    """Replaces the ids of a run by symbols, in order of appearance."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def replace(self, said: object, name: str = "") -> object:
        """``said`` with symbols for ids, and without times."""
        if isinstance(said, dict):
            members = cast("Json", said).items()
            return {key: self.replace(value, key) for key, value in members if key not in TIMES}
        if isinstance(said, list | tuple):
            return [self.replace(value, name) for value in cast("list[object]", said)]
        if isinstance(said, str) and (name == "id" or name.endswith("Id")):
            return self._known.setdefault(said, f"<{len(self._known)}>")
        return said


async def play_story(caller: Caller) -> AsyncIterator[object]:
    """One story: every operation that a caller has for a task."""
    done = await caller.send(write("tck-artifact-data"))
    yield done
    yield await caller.send(write("tck-message-response"))
    yield await caller.collect(write("tck-stream-artifact-chunked"))
    waiting = await caller.make_task(write("tck-input-required"), historyLength=0)
    yield waiting
    yield await caller.make_task(write("tck-complete-task", taskId=waiting["id"]))
    yield await caller.read_task(waiting["id"], historyLength=1)
    cancelled = await caller.make_task(write("tck-input-required"))
    yield (await caller.call("CancelTask", {"id": cancelled["id"]})).said
    context = done["task"]["contextId"]
    yield (await caller.call("ListTasks", {"contextId": context, "includeArtifacts": True})).said
    for operation, params in list_refused(waiting["id"]):
        refused = (await caller.call(operation, params)).refused
        yield operation, refused.reason, refused.message


def list_refused(ended: str) -> list[tuple[str, Json]]:
    """Calls that every binding refuses."""
    return [
        ("GetTask", {"id": "no-such-task"}),
        ("CancelTask", {"id": ended}),
        ("SendMessage", make_params(write("tck-complete-task", taskId=ended))),
        ("SendMessage", make_params(write("psl-refuse-type"))),
        ("ListTasks", {"pageSize": 1000}),
    ]


@pytest.mark.kit("BIND-EQUIV-001", "BIND-EQUIV-002", "BIND-EQUIV-003")
async def test_story_is_the_same_over_every_binding(site: Site) -> None:
    reported: list[object] = []
    for binding in (*BINDINGS, WEBSOCKET):
        names = Names()
        async with site.open_caller(binding) as caller:
            reported.append([names.replace(said) async for said in play_story(caller)])
    assert len(reported) == len(BINDINGS) + 1
    assert all(one == reported[0] for one in reported[1:])

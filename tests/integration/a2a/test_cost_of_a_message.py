"""What a message costs: how often the store is asked, and how much JSON is written and read.

Counted, so a change that adds to the ordinary way shows here whatever the machine is doing. Functions and changes of
room are printed beside it (``pytest -s``): they differ by a few from one Python to the next.
"""

from __future__ import annotations

import pytest

from tests.integration.a2a.rig import Rig
from tests.support.message_cost import Cost, measure

pytestmark = pytest.mark.anyio

FIRST: tuple[int, int, int] = (2, 9, 2)
"""Of a message that opens a context: trips to the store, JSON written, JSON read."""
FURTHER: tuple[int, int, int] = (3, 11, 2)
"""Of one that goes on in it."""


async def talk(rig: Rig, monkeypatch: pytest.MonkeyPatch, context: str | None) -> Cost:
    members = {} if context is None else {"contextId": context}
    params = rig.message("echo hello", configuration=None, **members)
    return await measure(monkeypatch, lambda: rig.call("SendMessage", params))


@pytest.mark.parametrize(
    ("goes_on", "counts"), [(False, FIRST), (True, FURTHER)], ids=["first", "further"]
)
async def test_a_message_costs_what_it_did(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, goes_on: bool, counts: tuple[int, int, int]
) -> None:
    tasks = [await rig.send("echo hello") for _ in range(5)]
    context = str(tasks[0]["contextId"]) if goes_on else None
    for _ in range(5):
        await talk(rig, monkeypatch, context)
    cost = await talk(rig, monkeypatch, context)
    print(f"functions entered: {cost.functions}, changes of room: {cost.rooms}")  # noqa: T201  for who reads the counts
    assert (cost.store_calls, cost.written, cost.read) == counts

"""The cost of a message: store calls, and JSON documents written and read.

The counts do not depend on the load of the machine, so any addition to the ordinary path shows here. Function calls and
switches between rooms (packages) are printed as well (``pytest -s``): they differ slightly between Python versions.
"""

from __future__ import annotations

import pytest

from tests.integration.a2a.rig import Rig
from tests.support.message_cost import Cost, measure

pytestmark = pytest.mark.anyio

FIRST: tuple[int, int, int] = (2, 9, 2)
"""Of a message that opens a context: store calls, JSON documents written, JSON documents read."""
FURTHER: tuple[int, int, int] = (3, 11, 2)
"""Of a further message in the context."""


async def talk(rig: Rig, monkeypatch: pytest.MonkeyPatch, context: str | None) -> Cost:
    members = {} if context is None else {"contextId": context}
    params = rig.message("echo hello", configuration=None, **members)
    return await measure(monkeypatch, lambda: rig.call("SendMessage", params))


@pytest.mark.parametrize(
    ("goes_on", "counts"), [(False, FIRST), (True, FURTHER)], ids=["first", "further"]
)
async def test_cost_of_a_message_is_unchanged(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, goes_on: bool, counts: tuple[int, int, int]
) -> None:
    tasks = [await rig.send("echo hello") for _ in range(5)]
    context = str(tasks[0]["contextId"]) if goes_on else None
    for _ in range(5):
        await talk(rig, monkeypatch, context)
    cost = await talk(rig, monkeypatch, context)
    print(f"functions entered: {cost.functions}, changes of room: {cost.rooms}")  # noqa: T201  for who reads the counts
    assert (cost.store_calls, cost.written, cost.read) == counts

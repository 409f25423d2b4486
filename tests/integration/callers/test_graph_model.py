"""Random task graphs at a running gateway, compared with a reference model of a few sets.

A task is not sent while one of its dependencies is open, no edge closes a cycle, and the cost of a tree is the sum over
its tasks, each counted once.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, cast

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.callers.rig import Rig

pytestmark = pytest.mark.anyio
ADA: Final = {"name": "ada", "scopes": ["tasks:read", "tasks:write", "a2a:call"]}
COST: Final = 100_000
"""Of one attempt, in micros."""
_WITHIN_S: Final = 15.0
_PICK: Final = st.integers(0, 99)


def reach(edges: set[tuple[int, int]], start: int) -> set[int]:
    """Returns what is reachable over the edges from ``start``."""
    found, left = set[int](), [start]
    while left:
        at = left.pop()
        fresh = {far for near, far in edges if near == at} - found
        found |= fresh
        left += fresh
    return found


class GraphLife(RuleBasedStateMachine):
    """Tasks are numbers. ``waits`` holds open dependencies (task, prerequisite); ``below`` holds (parent, child)."""

    def __init__(self, http: httpx.Client) -> None:
        super().__init__()
        self.http = http
        self.names: list[str] = []
        self.waits: set[tuple[int, int]] = set()
        self.below: set[tuple[int, int]] = set()
        self.done: set[int] = set()
        self.paused: set[int] = set()

    def post(self, path: str, **body: object) -> httpx.Response:
        return self.http.post(path, json=body)

    def read(self, number: int) -> dict[str, Any]:
        answer = self.http.get(f"/v1/tasks/{self.names[number]}")
        assert answer.is_success, answer.text
        return cast("dict[str, Any]", answer.json())

    def wait_for(self, number: int, holds: Callable[[dict[str, Any]], bool], said: str) -> None:
        until = time.monotonic() + _WITHIN_S
        while not holds(record := self.read(number)):
            assert time.monotonic() < until, (said, record["status"], record["relationships"])

    def pick(self, number: int) -> int:
        return number % len(self.names)

    def make(self, parent: int | None = None) -> bool:
        above = {} if parent is None else {"parentTaskId": self.names[parent]}
        answer = self.post("/v1/tasks", agent="echo", objective="echo it", **above)
        if answer.is_success:
            self.names.append(str(answer.json()["task"]["taskId"]))
        return answer.is_success

    @initialize()
    def begin(self) -> None:
        assert self.make()
        assert self.make()

    @rule()
    def create(self) -> None:
        assert self.make()

    @rule(at=_PICK)
    def create_child(self, at: int) -> None:
        parent = self.pick(at)
        assert self.make(parent) is (parent not in self.done)
        if parent not in self.done:
            self.below.add((parent, len(self.names) - 1))

    @rule(at=_PICK, to=_PICK, turned=st.booleans())
    def wait(self, at: int, to: int, *, turned: bool) -> None:
        near, far = self.pick(at), self.pick(to)
        ends = (far, "blocks", near) if turned else (near, "blocked_by", far)
        code = self.link(*ends)
        if near == far:
            assert code == "invalid_input"
        elif (near, far) in self.waits:
            assert code is None
        elif near in reach(self.waits, far):
            assert code == "task_graph_cycle"
        else:
            assert code is None
            if far not in self.done:
                self.waits.add((near, far))

    @rule(at=_PICK, to=_PICK)
    def adopt(self, at: int, to: int) -> None:
        near, far = self.pick(at), self.pick(to)
        code = self.link(near, "child", far)
        if near == far:
            assert code == "invalid_input"
        elif (near, far) not in self.below and near in reach(self.below, far):
            assert code == "task_graph_cycle"
        else:
            assert code is None
            self.below.add((near, far))

    def link(self, near: int, kind: str, far: int) -> str | None:
        """Returns the error code when the edge is refused, else None."""
        answer = self.post(f"/v1/tasks/{self.names[near]}/link", kind=kind, target=self.names[far])
        return None if answer.is_success else str(answer.json()["code"])

    @precondition(lambda self: self.waits)
    @rule(at=_PICK)
    def unlink(self, at: int) -> None:
        near, far = sorted(self.waits)[at % len(self.waits)]
        answer = self.post(
            f"/v1/tasks/{self.names[near]}/unlink", kind="blocked_by", target=self.names[far]
        )
        assert answer.is_success, answer.text
        self.waits.remove((near, far))

    @rule(at=_PICK)
    def pause(self, at: int) -> None:
        number = self.pick(at)
        taken = self.post(f"/v1/tasks/{self.names[number]}/pause").is_success
        assert taken is (number not in self.done | self.paused)
        if taken:
            self.paused.add(number)

    @rule(at=_PICK)
    def resume(self, at: int) -> None:
        number = self.pick(at)
        taken = self.post(f"/v1/tasks/{self.names[number]}/resume").is_success
        # A task with an open dependency continues only when that completes.
        assert taken is (number in self.paused)
        self.paused.discard(number)

    @rule(at=_PICK)
    def start(self, at: int) -> None:
        number = self.pick(at)
        waits = any(near == number for near, _ in self.waits)
        taken = self.post(f"/v1/tasks/{self.names[number]}/start").is_success
        assert taken is not (waits or number in self.done | self.paused)
        if not taken:
            return
        self.wait_for(number, lambda record: record["status"] == "completed", "it completes")
        self.done.add(number)
        freed = {near for near, far in self.waits if far == number}
        self.waits -= {(near, number) for near in freed}
        for near in freed:
            self.wait_for(near, lambda one: not self.is_held_by(one, number), "it is let go")

    def is_held_by(self, record: dict[str, Any], far: int) -> bool:
        return self.names[far] in list_blockers(record)

    def teardown(self) -> None:
        for number, name in enumerate(self.names):
            record = self.read(number)
            blockers = {self.names[far] for near, far in self.waits if near == number}
            assert list_blockers(record) == blockers, name
            assert len(record["attempts"]) == (number in self.done)
            assert (record["status"] == "completed") is (number in self.done)
            if number not in self.done:
                expected = "blocked" if blockers else "accepted"
                assert record["status"] == ("paused" if number in self.paused else expected)
            spent = len(self.done & ({number} | reach(self.below, number)))
            costs = record.get("spending", {}).get("tree", {"costs": []})["costs"]
            assert sum(one["amountMicros"] for one in costs) == spent * COST


def list_blockers(record: dict[str, Any]) -> set[str]:
    return {
        edge["target"]
        for edge in record["relationships"]
        if edge["kind"] == "blocked_by" and edge["status"] == "open"
    }


@pytest.mark.requirement("GR-1", "GR-2", "EXT-7")
async def test_random_graphs_match_the_reference(rig: Rig) -> None:
    price = {"currency": "EUR", "per_call": "0.10"}
    one = await rig.start(clients=[ADA], agent={"price": price})
    headers = {"Authorization": "Bearer ada-key"}

    def play() -> None:
        with httpx.Client(base_url=one.http.base_url, headers=headers, timeout=20) as http:

            class Life(GraphLife):
                def __init__(self) -> None:
                    super().__init__(http)

            run_state_machine_as_test(
                Life,
                settings=settings(
                    max_examples=6,
                    stateful_step_count=25,
                    # No shrinking: each step takes several requests.
                    phases=(Phase.generate,),
                    deadline=None,
                    suppress_health_check=[HealthCheck.too_slow],
                ),
            )

    await asyncio.to_thread(play)

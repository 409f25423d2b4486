"""Runs of an agent that sends much: the thousandth message costs no more than the hundredth."""

from __future__ import annotations

from functools import partial
from typing import cast

from passerelle.core.wire.json import JsonObject
from tests.support.counting import count_calls
from tests.unit.delegation.pump import Pump, status, task


def make_status(number: int) -> JsonObject:
    return status("WORKING", f"word {number}", at=number % 60, message_id=f"pm-{number}")


def test_a_status_is_the_same_work_however_many_there_were() -> None:
    pump, counted = Pump(), dict[int, int]()
    pump.receive(task("WORKING"))
    for number in range(1_001):
        counted[number] = count_calls(partial(pump.receive, make_status(number)))
    assert counted[1_000] < counted[100] * 1.2
    content = cast("JsonObject", pump.context.content)
    assert len(cast("list[JsonObject]", content["history"])) == 1_001

"""The waiting turns of a thread, as text."""

from __future__ import annotations

import pytest

from passerelle.cli.verbs.turns import describe_queue
from passerelle.core.session.requests import GatedTurn, QueuedTurn, TurnQueue
from passerelle.core.wire.codec import to_wire

AT = "2026-11-20T00:00:00.000Z"
LINED = QueuedTurn("turn_2", "task_2", 1, "echo", "ada", AT, "waiting", behind=("turn_1",))


@pytest.mark.requirement("CF-2", "CMD-15")
def test_turns_in_line_come_first_and_those_at_a_gate_name_what_they_wait_for() -> None:
    gated = [
        GatedTurn("turn_3", "task_3", "echo", "ada", AT, "act_1", "Send it?", ("vault", "night")),
        GatedTurn("turn_4", "task_4", "echo", "ada", AT, "act_2", "Send it?"),
    ]
    queue = TurnQueue("th_1", "queue", (LINED,), ("turn_1",), tuple(gated))
    head, line, *rest = describe_queue(to_wire(queue))
    assert head.split() == ["PLACE", "TURN", "TASK", "AGENT", "SINCE", "STATE"]
    assert line.split() == ["1", "turn_2", "task_2", "echo", AT, "waiting"]
    assert rest == [
        "turn_3 waits for approval act_1 (rule vault, night)",
        "turn_4 waits for approval act_2",
        "policy queue, 1 under way, 1 waiting, 2 for approval",
    ]


@pytest.mark.requirement("CMD-15")
def test_thread_without_a_gate_shows_none() -> None:
    *_, last = describe_queue(to_wire(TurnQueue("th_1", "parallel", (LINED,), ("turn_1",))))
    assert last == "policy parallel, 1 under way, 1 waiting"

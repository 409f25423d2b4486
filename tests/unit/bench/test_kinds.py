"""The kinds of measured work, and the rows computed from their rounds."""

from dataclasses import replace

import pytest

from bench.kinds import CROWD, WHOLE, RoundPlan, WorkKind, WorkMix, make_scenes
from bench.load import LoadRun
from bench.mixed_work import WorkTurn, make_rows
from bench.rows import Row
from bench.testbed import RoundResult
from passerelle.gateway.settings.model import Settings

SCENES = make_scenes(RoundPlan(1, 2.0))
KINDS = [kind for scene in SCENES for kind in scene.kinds]


def find(
    kind: WorkKind, turns: list[WorkTurn], ending: str, per: list[WorkTurn] | None = None
) -> Row:
    """The one row of a kind that ends so."""
    [row] = [row for row in make_rows(kind, turns, per) if row.what.endswith(ending)]
    return row


def make_turn(gateway_us: float, *, base_us: float | None = None) -> WorkTurn:
    """An agent that takes 1,000 µs when it is called directly, and 4,000 behind the gateway."""
    outcome = LoadRun(100, 1.0)
    base = None if base_us is None else RoundResult(outcome, 4_000, base_us)
    return WorkTurn(RoundResult(outcome, 1_000), RoundResult(outcome, 4_000, gateway_us), base)


@pytest.mark.parametrize("scene", SCENES)
def test_a_gateway_can_be_set_up_for_each_scene(scene: WorkMix) -> None:
    made = scene.setting.compose("http://127.0.0.1:1", "http://127.0.0.1:2")
    settings = Settings.model_validate(made)
    names = {agent.name for agent in settings.agents}
    assert {kind.as_agent or scene.setting.agent for kind in scene.kinds} <= names
    assert len(settings.clients) >= max(len(kind.order.keys) for kind in scene.kinds) or (
        settings.auth == "open"
    )


def test_names_of_kinds_are_their_own_and_name_each_other() -> None:
    names = [kind.name for kind in KINDS]
    assert len(set(names)) == len(names)
    assert {kind.per for kind in KINDS} - {""} <= set(names)


def test_the_gateway_is_measured_by_the_agent_called_directly() -> None:
    row = find(WHOLE, [make_turn(200), make_turn(300), make_turn(900)], "gateway CPU ÷ agent CPU")
    assert row.spread is not None
    assert row.spread.median == 0.3
    assert row.verdict == "missed"


def test_a_crowd_is_measured_by_one_caller() -> None:
    [kind] = [kind for kind in KINDS if str(CROWD) in kind.name]
    row = find(kind, [make_turn(220)], "÷ one caller's", [make_turn(200)])
    assert row.spread is not None
    assert row.spread.median == pytest.approx(1.1)


def test_a_stream_is_measured_by_the_event() -> None:
    row = find(replace(WHOLE, events=30), [make_turn(300)], ": gateway CPU")
    assert row.spread is not None
    assert row.spread.median == 10


def test_a_comparison_row_is_added_for_a_base() -> None:
    row = find(WHOLE, [make_turn(300, base_us=200)], "÷ base")
    assert row.spread is not None
    assert (row.spread.median, row.verdict) == (1.5, "missed")
    assert not [row for row in make_rows(WHOLE, [make_turn(300)], None) if "base" in row.what]

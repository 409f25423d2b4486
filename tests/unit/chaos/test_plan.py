"""The plan of ``make chaos``: the same seed plans the same faults, and every named point is hit."""

from __future__ import annotations

from collections import Counter
from random import Random

from tests.chaos.plan import ERRANDS, FAULTS, TALKER, Action, Point, Way, plan_again, plan_round


def test_same_seed_plans_the_same_errands_and_faults_in_the_same_order() -> None:
    assert plan_round(3, Random(7)) == plan_round(3, Random(7))
    assert plan_round(3, Random(7)) != plan_round(3, Random(8))


def test_each_round_meets_every_fault_once_and_kills_a_gateway_at_every_point() -> None:
    plan = plan_round(0, Random(1))
    assert len(plan) == ERRANDS
    assert Counter(one.fault for one in plan if one.fault) == Counter(FAULTS)
    killed = {one.fault.point for one in plan if one.fault and one.fault.action == "gateway killed"}
    assert killed == set(Point)


def test_faults_that_take_a_gateway_come_first_and_the_freeze_last_of_them() -> None:
    plan = plan_round(0, Random(2))
    line = [one for one in plan if one.in_line]
    assert plan[: len(line)] == line
    frozen = [one.fault.action is Action.FREEZE for one in line if one.fault]
    assert frozen == sorted(frozen)


def test_labels_are_unique_and_only_one_agent_answers_with_a_message() -> None:
    plan = plan_round(5, Random(3))
    labels = [one.label for one in plan]
    assert len(set(labels)) == len(labels)
    assert {len(label) for label in labels} == {7}
    assert {one.agent for one in plan if one.way is Way.SAY} <= {TALKER}


def test_fault_that_met_no_task_is_planned_again_under_a_new_label() -> None:
    plan = plan_round(4, Random(1))
    missed = [one for one in plan if one.fault][:3]
    again = plan_again(missed, 4, len(plan))
    assert [one.fault for one in again] == [one.fault for one in missed]
    assert not {one.label for one in again} & {one.label for one in plan}
    assert {one.begins_s for one in again} == {0}
    assert all(one.label in one.text for one in again)

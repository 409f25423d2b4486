"""The plan of ``make races``: the same seed plans the same races, and the shortest run has every scenario."""

from __future__ import annotations

from random import Random

from tests.races.plan import GATEWAYS, RACERS, Act, Story, Way, plan_races


def test_same_seed_plans_the_same_races_in_the_same_order() -> None:
    assert plan_races(20, Random(7)) == plan_races(20, Random(7))
    assert plan_races(20, Random(7)) != plan_races(20, Random(8))


def test_each_story_is_raced_for_through_each_door_at_each_gateway() -> None:
    races = plan_races(16, Random(1))
    assert {race.story for race in races} == set(Story)
    for race in races:
        assert len(race.racers) == RACERS
        doors = {(racer.way, racer.gateway) for racer in race.racers if racer.act is Act.ANSWER}
        assert doors == {(way, gateway) for way in Way for gateway in range(GATEWAYS)}


def test_an_answer_that_is_repeated_and_a_friendly_word_are_in_every_race() -> None:
    for race in plan_races(8, Random(2)):
        acts = [racer.act for racer in race.racers]
        assert (acts.count(Act.REPEAT), acts.count(Act.WORDS)) == (1, 1)

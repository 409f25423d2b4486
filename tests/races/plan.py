"""Which question is raced for by whom, by seed: who answers what, through which door, and what happens beside it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final, Literal, TypeAlias

RACERS: Final = 24
GATEWAYS: Final = 2
LIFE_MS: Final = 1_500
"""How long a question lives that is to expire in the middle of its race."""
_CLOSE_MS: Final = 12.0
"""Racers begin within this time of each other: about as long as an answer takes."""

Option: TypeAlias = Literal["pay", "leave"]
OPTIONS: Final[tuple[Option, ...]] = ("pay", "leave")


class Story(StrEnum):
    """What else can close the question."""

    PEOPLE = "people alone"
    HOST = "the services of a host"
    TIMEOUT = "its end"
    CANCEL = "a cancel of its task"
    SUPERSEDE = "another question of the agent"
    MOVED_ON = "an agent that goes on by itself"


_LEADS_MS: Final = {Story.CANCEL: 400.0, Story.SUPERSEDE: 20.0, Story.MOVED_ON: 20.0}
"""How long before the racers begins, at most, what takes its way through the agent: either may be first."""

STORIES: Final = (*Story, Story.PEOPLE, Story.TIMEOUT)
"""In turn, so that each is played in the shortest run; two of them twice as often."""


class Way(StrEnum):
    """Through which edge."""

    HTTP = "http"
    CHANNEL = "channel"


class Act(StrEnum):
    """What a racer does."""

    ANSWER = "answers"
    REPEAT = "sends one answer through both gateways at once"
    WORDS = "writes to the task that it may go on"


@dataclass(frozen=True, slots=True)
class Racer:
    """One of those who answer; ``after_ms`` its start."""

    number: int
    act: Act
    way: Way
    gateway: int
    option: Option
    after_ms: float


@dataclass(frozen=True, slots=True)
class Race:
    """One question and all who answer it. ``stir_ms``: when what the story is about happens, from the start."""

    number: int
    story: Story
    stir_ms: float
    racers: tuple[Racer, ...]

    @property
    def label(self) -> str:
        """The name of the question at the agent."""
        return f"r{self.number:04}"


def plan_races(count: int, draw: Random) -> list[Race]:
    """The races of a run; the same numbers drawn give the same races.

    Cancels come first: an answer whose task ended is settled when its row comes due again, which takes its time.
    """
    races = [_plan_race(number, STORIES[number % len(STORIES)], draw) for number in range(count)]
    return sorted(races, key=lambda race: race.story is not Story.CANCEL)


def _plan_race(number: int, story: Story, draw: Random) -> Race:
    lead_ms = _LEADS_MS.get(story, 0.0)
    begins_ms = LIFE_MS - _CLOSE_MS / 2 if story is Story.TIMEOUT else lead_ms
    racers = tuple(_plan_racer(one, begins_ms, draw) for one in range(RACERS))
    return Race(number, story, draw.uniform(0, lead_ms + _CLOSE_MS), racers)


def _plan_racer(number: int, begins_ms: float, draw: Random) -> Racer:
    act = {0: Act.WORDS, 1: Act.REPEAT}.get(number, Act.ANSWER)
    return Racer(
        number=number,
        act=act,
        way=Way.CHANNEL if number % 2 else Way.HTTP,
        gateway=number // 2 % GATEWAYS,
        option=draw.choice(OPTIONS),
        after_ms=begins_ms + draw.uniform(0, _CLOSE_MS),
    )

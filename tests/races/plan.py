"""The plan of each race, by seed: racers, their answers and edges, and concurrent events."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final, Literal, TypeAlias

RACERS: Final = 24
GATEWAYS: Final = 2
LIFE_MS: Final = 1_500
"""Lifetime of a request that is to expire during its race."""
_CLOSE_MS: Final = 12.0
"""Racers begin within this time: about as long as an answer takes."""

Option: TypeAlias = Literal["pay", "leave"]
OPTIONS: Final[tuple[Option, ...]] = ("pay", "leave")


class Story(StrEnum):
    """What else can close the request."""

    PEOPLE = "people alone"
    HOST = "the services of a host"
    TIMEOUT = "its end"
    CANCEL = "a cancel of its task"
    SUPERSEDE = "another question of the agent"
    MOVED_ON = "an agent that goes on by itself"


_LEADS_MS: Final = {Story.CANCEL: 400.0, Story.SUPERSEDE: 20.0, Story.MOVED_ON: 20.0}
"""Maximum lead of an event that reaches the gateway through the agent: either may be first."""

STORIES: Final = (*Story, Story.PEOPLE, Story.TIMEOUT)
"""In turn, so that the shortest run has each; two of them twice as often."""


class Way(StrEnum):
    """The edge that is used."""

    HTTP = "http"
    CHANNEL = "channel"


class Act(StrEnum):
    """What a racer does."""

    ANSWER = "answers"
    REPEAT = "sends one answer through both gateways at once"
    WORDS = "writes to the task that it may go on"


@dataclass(frozen=True, slots=True)
class Racer:
    """One racer; ``after_ms`` is its start."""

    number: int
    act: Act
    way: Way
    gateway: int
    option: Option
    after_ms: float


@dataclass(frozen=True, slots=True)
class Race:
    """One approval and all of its racers. ``stir_ms``: time of the story's event, from the start."""

    number: int
    story: Story
    stir_ms: float
    racers: tuple[Racer, ...]

    @property
    def label(self) -> str:
        """The name of the request at the agent."""
        return f"r{self.number:04}"


def plan_races(count: int, draw: Random) -> list[Race]:
    """The races of a run; the same random numbers give the same races.

    Cancels come first: an answer whose task ended is settled when its row is due again, which takes a while.
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

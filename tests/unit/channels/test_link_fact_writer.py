"""Facts about a link: written one after another, whatever the outcome of the one before, within a time limit."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from passerelle.channels.services import ChannelLink
from passerelle.channels.story import LinkEnded, LinkFact, LinkFactWriter, LinkStarted
from passerelle.core.batch import Incarnation
from passerelle.core.errors import StoreUnavailable

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("EXT-8")]

BEGAN = LinkStarted(resumed=False, streams=())
AGAIN = LinkStarted(resumed=True, streams=())
OVER = LinkEnded("left", None, {})


@dataclass(frozen=True)
class Link:
    owner: str = "pr"
    channel: str = "ch"
    generation: int = 1
    since: str = "now"


@dataclass
class Facts:
    """Receives the facts, each with a future of its own."""

    begun: list[tuple[LinkFact, asyncio.Future[None]]] = field(
        default_factory=list[tuple[LinkFact, "asyncio.Future[None]"]]
    )

    def find_driver(self, owner: str) -> Incarnation | None:
        return None

    def record(self, link: ChannelLink, fact: LinkFact) -> asyncio.Future[None]:
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begun.append((fact, told))
        return told

    @property
    def facts(self) -> list[LinkFact]:
        return [fact for fact, _ in self.begun]


async def test_a_link_fact_is_written_after_the_one_before_is_settled_or_failed() -> None:
    facts = Facts()
    writer = LinkFactWriter(facts)
    writer.add(Link(), (BEGAN,))
    writer.add(Link(), (AGAIN,))
    ending = asyncio.create_task(writer.finish(Link(), (OVER,), 60.0))
    await asyncio.sleep(0)
    assert facts.facts == [BEGAN]
    facts.begun[0][1].set_exception(StoreUnavailable("away", "no"))
    await asyncio.sleep(0)
    assert facts.facts == [BEGAN, AGAIN]
    facts.begun[1][1].set_result(None)
    await asyncio.sleep(0)
    assert facts.facts == [BEGAN, AGAIN, OVER]
    assert not ending.done()
    facts.begun[2][1].set_result(None)
    await ending


async def test_the_end_of_a_link_takes_nothing_back_and_does_not_wait_for_ever() -> None:
    facts = Facts()
    writer = LinkFactWriter(facts)
    writer.add(Link(), (BEGAN,))
    await writer.finish(Link(), (OVER,), 0.01)
    assert not facts.begun[0][1].cancelled()
    facts.begun[0][1].set_result(None)
    await asyncio.sleep(0)
    assert facts.facts == [BEGAN]

"""A gateway dies at every point in the life of an approval; afterwards nothing is lost or done twice.

Checked against the stored facts and the agent's messages: each approval was closed once, each pending delivery has
one end, and the agent received at most one answer to each request, and none to a withdrawn one. Each answer "always"
has one grant. Devices that reconnect are shown open approvals first.

Errands are independent, so a few run concurrently, each in its own lane.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiohttp

from tests.chaos.approvals_asker import Asker, list_notifications
from tests.chaos.approvals_devices import Onlooker
from tests.chaos.approvals_phone import Pushes, run_pushes
from tests.chaos.approvals_plan import FOR_ALWAYS, NOTIFIED, Death, Errand, plan
from tests.chaos.approvals_site import PERSON, ApprovalSite, name_key, run_approval_site
from tests.chaos.approvals_snares import GATEWAYS
from tests.chaos.records import open_records
from tests.races.proofs import Question, read_questions
from tests.support.fork_server import run_fork_server
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from random import Random

_LANES: Final = 3
_GRANTED_S: Final = 20.0
"""A grant is created by a due row: if its claimer died, the row is due again after 10 s."""
_RELAYED_S: Final = 10.0
"""A task may end before its approval is in the inbox: if the relay's instance died, its lease has to expire first."""
_ENDED_S: Final = 60.0
"""A task may end before the outcome of the answer is known: the agent's time limit, and the claim of a dead instance.
"""
_HTTP_S: Final = 20.0


@dataclass(slots=True)
class Lane:
    """One site, the errands that run there, and their checks."""

    site: ApprovalSite
    http: aiohttp.ClientSession
    pushes: Pushes
    onlookers: tuple[Onlooker, ...] = field(init=False)
    askers: list[Asker] = field(default_factory=list[Asker])
    faults: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        places = range(GATEWAYS)
        self.onlookers = tuple(
            Onlooker(self.site, self.http, name_key(PERSON), place) for place in places
        )

    async def run(self, errands: deque[Errand]) -> None:
        """Starts one errand after the other as long as there are any; their tasks run concurrently."""
        looking = [asyncio.create_task(one.run()) for one in self.onlookers]
        running: list[asyncio.Task[None]] = []
        try:
            while errands:
                errand = errands.popleft()
                await self.site.await_one_up()
                if errand.death is Death.STORE:
                    await (
                        self.site.settle()
                    )  # an errand that begins while its store is down ends at once
                snare = self.site.arm(errand)
                self.askers.append(Asker(self.site, self.http, self.pushes, self.onlookers, snare))
                running.append(asyncio.create_task(self._run(self.askers[-1])))
                sprung = asyncio.create_task(snare.sprung.wait())
                await asyncio.wait({sprung, running[-1]}, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait({sprung}, timeout=_RELAYED_S)
                sprung.cancel()
                snare.is_taken = True
            await asyncio.gather(*running)
            await self.site.settle()
            await self._judge()
        finally:
            for one in looking:
                one.cancel()
            await asyncio.gather(*looking, *running, return_exceptions=True)

    async def _run(self, asker: Asker) -> None:
        try:
            await asker.run()
        except AssertionError as error:
            errand = asker.errand
            name = f"{errand.label} ({errand.death}, {errand.dialect})"
            self.faults.append(f"{name}: {error}")

    # ------------------------------------------------------------ checks

    async def _judge(self) -> None:
        snares = self.site.trapper.snares
        missed = [one.errand for one in snares if not one.sprung.is_set()]
        self.faults += [f"{one.label}: no gateway died {one.death}" for one in missed]
        self.faults += self.site.faults
        self.faults += [fault for one in self.onlookers for fault in one.faults]
        async with open_records(self.site.engine.url, self.site.folder) as records:
            await records.read()
            sessions = sorted({record.session_id for record in records.tasks.values()})

            async def is_reported() -> bool:
                return not list_pending(await read_questions(records.store, sessions))

            with suppress(AssertionError):  # an approval without an end is reported below
                await wait_until(is_reported, _ENDED_S, "every answer has its end")
            questions = await read_questions(records.store, sessions)
        self.faults += judge_questions(questions)
        for asker in self.askers:
            self.faults += self._judge_answers(asker.errand)
            try:
                self.faults += await self._judge_people(asker)
            except AssertionError as error:
                self.faults.append(f"{asker.errand.label}: {error}")

    def _judge_answers(self, errand: Errand) -> list[str]:
        """The agent's messages: the errand once, one answer to each request, and none to a withdrawn one."""
        agent = self.site.agent
        begun, answers = agent.find_tasks(errand), agent.list_answers(errand)
        faults: list[str] = []
        if len(begun) > 1:
            faults.append(f"{errand.label}: the agent was sent it {len(begun)} times: {begun}")
        if len(answers) > (2 if errand.death is Death.IN_GRANT_USE else 1):
            faults.append(f"{errand.label}: the agent was sent {len(answers)} answers: {answers}")
        stale = f"{errand.label}-0"
        if errand.death is Death.IN_SUPERSEDE and any(stale in str(one) for one in answers):
            faults.append(f"{errand.label}: the agent was sent an answer that is stale: {answers}")
        return faults

    async def _judge_people(self, asker: Asker) -> list[str]:
        """The notifications of people, and their grants."""
        errand, faults = asker.errand, list[str]()
        for action in asker.decided:
            facts = await asker.list_facts(action)
            if errand.death in FOR_ALWAYS and action == next(iter(asker.decided)):

                async def is_given(action: str = action) -> bool:
                    return any(one["actionId"] == action for one in await asker.list_grants())

                await wait_until(is_given, _GRANTED_S, f"{action} has given a grant")
                given = [one for one in await asker.list_grants() if one["actionId"] == action]
                if len(given) != 1:
                    faults.append(f"{errand.label}: {action} has given {len(given)} grants")
            sent = list_notifications(facts).count(NOTIFIED[Death.AFTER_PUSH])
            topics = await self.pushes.list_topics(action)
            is_pushed = errand.death is Death.AFTER_PUSH
            # A push that is sent again replaces itself; a death between the push and its fact repeats it.
            if sent != is_pushed or len(set(topics)) != is_pushed:
                faults.append(f"{errand.label}: {sent} pushes are stored, {len(topics)} were sent")
        return faults


def list_pending(questions: dict[str, Question]) -> list[str]:
    """Closed approvals whose answer has no outcome yet."""
    return [
        action
        for action, question in questions.items()
        if action and any(one.returns for one in question.closings) and not question.ends
    ]


def judge_questions(questions: dict[str, Question]) -> list[str]:
    """Each approval is closed once, and a pending delivery has one end."""
    faults: list[str] = []
    for action, question in questions.items():
        if not action:
            continue
        if len(question.closings) != 1:
            faults.append(f"{action} was closed {len(question.closings)} times")
        elif len(question.ends) != question.closings[0].returns:
            faults.append(f"{action}: its answer came to {question.ends}")
    return faults


async def run_approvals(folder: Path, draw: Random, *, whole: bool) -> list[str]:
    """Runs every errand; returns one line per fault found."""
    began_s = time.monotonic()
    planned = plan(draw, whole=whole)
    errands = deque(planned)
    async with AsyncExitStack() as stack:
        fork_server = await stack.enter_async_context(run_fork_server())
        pushes = await stack.enter_async_context(run_pushes())
        timeout = aiohttp.ClientTimeout(total=_HTTP_S)
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        lanes: list[Lane] = []

        async def run_lane(number: int) -> None:
            home = folder / f"lane-{number}"
            async with run_approval_site(home, fork_server, pushes.origin) as site:
                lanes.append(Lane(site, http, pushes))
                await lanes[-1].run(errands)

        async with asyncio.TaskGroup() as group:
            for number in range(_LANES):
                group.create_task(run_lane(number))
    deaths = sum(lane.site.deaths for lane in lanes)
    welcomes = sum(one.welcomes for lane in lanes for one in lane.onlookers)
    faults = [fault for lane in lanes for fault in lane.faults]
    if not welcomes:
        faults.append("no device came back while something was open")
    print(
        f"chaos: {len(planned)} questions, {deaths} deaths of a gateway, {welcomes} times a device was shown again what"
        f" was open, in {time.monotonic() - began_s:.0f} s",
        flush=True,
    )
    return faults

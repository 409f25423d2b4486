"""Rounds of errands and faults against one site, and the checks of all of them together."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx

from tests.chaos.archived_reads import prove_reads
from tests.chaos.callers import WITHIN_S, Caller, CallerLog
from tests.chaos.merges import merge_meanwhile
from tests.chaos.plan import Action, Errand, plan_again, plan_round
from tests.chaos.proofs import Proof
from tests.chaos.records import Records, open_records
from tests.chaos.shown import Shown
from tests.chaos.site import KEY, Site, run_site
from tests.chaos.takeovers import describe_delays
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.verdict import Verdict

_TIMES_AGAIN: Final = 2
_MOST_FACTS: Final = 60
_TOLD_LABELS: Final = 5


async def run_rounds(folder: Path, draw: Random, rounds: int, errands: int) -> list[str]:
    """Prints a line for each round and one for the result; returns one line per fault found."""
    async with (
        run_site(folder) as site,
        open_records(site.store.url, folder) as records,
        _open_http() as http,
    ):
        caller = Caller(site, http)
        logs: list[CallerLog] = []
        async with merge_meanwhile(records.store) as merges:
            for number in range(rounds):
                logs += await _run_round(site, caller, number, plan_round(number, draw, errands))
            await site.settle()
        proof = Proof(site, records, logs)
        verdict = await proof.prove()
        shown = Shown(site, caller, records, proof.truth, verdict)
        await asyncio.gather(shown.prove(logs), _verify(site, verdict))
        _say(await prove_reads(site, records.store, merges, KEY, verdict))
        await _verify(site, verdict)
        _say(_summarize(site, logs, verdict))
        return await _describe_faults(records, verdict)


def _open_http() -> httpx.AsyncClient:
    headers = {
        "Authorization": f"Bearer {KEY}",
        "A2A-Version": "1.0",
        "Content-Type": "application/json",
    }
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(headers=headers, trust_env=False, limits=limits)


async def _run_round(
    site: Site, caller: Caller, number: int, plan: list[Errand]
) -> list[CallerLog]:
    """One round, followed by the faults that did not occur in it."""
    began_s = time.monotonic()
    logs = await _run_plan(site, caller, plan)
    for _ in range(_TIMES_AGAIN):
        if missed := site.traps.disarm_missed():
            logs += await _run_plan(site, caller, plan_again(missed, number, len(logs)))
    sprung = sum(trap.sprung.is_set() for trap in site.traps.armed.values())
    took_s = time.monotonic() - began_s
    _say(f"chaos: round {number}: {len(logs)} errands in {took_s:.0f} s, {sprung} faults so far")
    return logs


async def _run_plan(site: Site, caller: Caller, plan: list[Errand]) -> list[CallerLog]:
    others = {
        one.label: asyncio.create_task(_run_later(site, caller, one))
        for one in plan
        if not one.in_line
    }
    deadly = {
        one.label: others[one.label]
        for one in plan
        if one.fault is not None and one.fault.action is Action.KILL_PEER
    }
    in_line = await _run_line(site, caller, [one for one in plan if one.in_line], deadly)
    return [*await asyncio.gather(*others.values()), *in_line]


async def _run_later(site: Site, caller: Caller, errand: Errand) -> CallerLog:
    await asyncio.sleep(errand.begins_s)
    site.traps.arm(errand)
    return await caller.run(errand)


async def _run_line(
    site: Site, caller: Caller, line: list[Errand], deadly: dict[str, asyncio.Task[CallerLog]]
) -> list[CallerLog]:
    """Faults that affect a whole gateway, one after the other: the next one begins when both gateways are up.

    While one is frozen no agent dies: the messages that it sends later have to arrive.
    """
    running: list[asyncio.Task[CallerLog]] = []
    for errand in line:
        for gateway in range(len(site.gateways)):
            await site.await_up(gateway)
        if errand.fault is not None and errand.fault.action is Action.FREEZE:
            await _await_deaths(site, deadly)
        trap = site.traps.arm(errand)
        running.append(asyncio.create_task(caller.run(errand)))
        if trap is not None:
            sprung = asyncio.create_task(trap.sprung.wait())
            await asyncio.wait({sprung, running[-1]}, return_when=asyncio.FIRST_COMPLETED)
            if trap.is_taken:
                await sprung
            sprung.cancel()
    return list(await asyncio.gather(*running))


async def _await_deaths(site: Site, deadly: dict[str, asyncio.Task[CallerLog]]) -> None:
    """Waits until each agent that was to die has died or was spared, and is back."""

    def are_over() -> bool:
        return all(
            errand.done() or site.traps.has_sprung(label) for label, errand in deadly.items()
        )

    await wait_until(are_over, WITHIN_S, "the agents that were to die have died")
    await site.settle()


async def _verify(site: Site, verdict: Verdict) -> None:
    """Runs ``passerelle verify``, as an operator would."""
    home = site.gateways[0].folder
    command = (sys.executable, "-m", "passerelle", "verify", "--config", "passerelle.yaml")
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=home,
        env=site.environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    lines = said.decode(errors="replace").splitlines()
    _say(f"chaos: {lines[-1] if lines else 'verify said nothing'}")
    if process.returncode:
        for text in lines[-_MOST_FACTS:]:
            verdict.blame("", text)


def _summarize(site: Site, logs: list[CallerLog], verdict: Verdict) -> str:
    states = Counter(
        log.task["status"]["state"].removeprefix("TASK_STATE_").lower() if log.task else "message"
        for log in logs
    )
    ended = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    dead = f"{len(site.deaths)} gateways and {site.agent_deaths} agents died"
    read = f"{verdict.streams} streams and {verdict.sessions} sessions were read back"
    lines = [
        f"chaos: {len(logs)} errands ({ended})",
        f"chaos: {verdict.refused} messages were refused and sent anew, {verdict.away} never left (agent away)",
        f"chaos: {dead}; {read}",
        describe_delays(verdict.taken_up),
        *(f"chaos: frozen around a send: {line}" for line in verdict.frozen),
    ]
    return "\n".join(lines)


async def _describe_faults(records: Records, verdict: Verdict) -> list[str]:
    """Lists each fault, and after the last one the facts of the errands that show them."""
    lines = [f"{fault.label}: {fault.what}" for fault in verdict.faults]
    for note in verdict.notes:
        _say(note)
    labels = list(dict.fromkeys(fault.label for fault in verdict.faults if fault.label))
    for label in labels[:_TOLD_LABELS]:
        for record in records.by_label.get(label, [])[:1]:
            _say(f"\nfacts of {label}, {record.session_id}:")
            for line in (await records.describe_facts(record.session_id))[:_MOST_FACTS]:
                _say(line)
    return lines


def _say(text: str) -> None:
    print(text, flush=True)

"""Checks at the end of a round, compared with the agents' own records.

No message is lost or processed twice, every task has its agent's status, orphaned runs were taken over in time, and
nothing is left behind. One exception cannot be avoided and is reported: a gateway that was frozen around a send.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.task.status import ENDED, Status
from tests.chaos.plan import SDK, Action
from tests.chaos.takeovers import prove_takeovers
from tests.chaos.verdict import Verdict
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.chaos.callers import CallerLog
    from tests.chaos.records import Records
    from tests.chaos.site import Site

_SETTLE_S: Final = 15.0
_MOST_AWAY: Final = 0.01
"""Share of all errands: agents are killed one by one, and rarely during a second attempt."""
_STATES: Final = {
    Status.COMPLETED: "TASK_STATE_COMPLETED",
    Status.FAILED: "TASK_STATE_FAILED",
    Status.CANCELLED: "TASK_STATE_CANCELED",
}


@dataclass(slots=True)
class Truth:
    """The agents' records: how often each message arrived, and their tasks by id."""

    messages: Counter[str] = field(default_factory=Counter[str])
    tasks: dict[str, JsonObject] = field(default_factory=dict[str, "JsonObject"])


async def read_truth(site: Site) -> Truth:
    """Asks every agent directly, without the proxies."""
    truth = Truth()
    for agent in site.agents.values():
        log = await agent.read_truth()
        counted = object_at(log, "received" if agent.name == SDK else "messages")
        truth.messages.update(cast("dict[str, int]", counted))
        tasks = await agent.list_tasks() if agent.name == SDK else objects_at(log, "tasks")
        truth.tasks |= {text_at(task, "id"): task for task in tasks}
    return truth


@dataclass(slots=True)
class Proof:
    """Compares the stored data and the callers' logs with the agents' records."""

    site: Site
    records: Records
    logs: list[CallerLog]
    verdict: Verdict = field(default_factory=Verdict)
    truth: Truth = field(default_factory=Truth)

    async def prove(self) -> Verdict:
        """Runs all checks, one after the other."""
        self._prove_callers()
        await self._await_rest()
        self.truth = await read_truth(self.site)
        self._prove_messages()
        self._prove_tasks()
        prove_takeovers(self.site, self.records, self.verdict)
        for leak in self.site.store.find_leaks():
            self.verdict.blame("", leak)
        for fault in self.site.faults:
            self.verdict.blame("", fault)
        return self.verdict

    # ------------------------------------------------------------ nothing lost, nothing doubled

    def _prove_callers(self) -> None:
        for log in self.logs:
            for fault in log.faults:
                self.verdict.blame(log.errand.label, fault)
            trap = self.site.traps.armed.get(log.errand.label)
            if trap is not None and not trap.sprung.is_set():
                self.verdict.blame(log.errand.label, f"no bytes passed for {trap.fault}")

    async def _await_rest(self) -> None:
        """Tasks without a waiting caller end as well: those of messages that were given up."""

        async def have_ended() -> bool:
            await self.records.read()
            return all(record.status in ENDED for record in self.records.tasks.values())

        try:
            await wait_until(have_ended, _SETTLE_S * 4, "every task has ended")
            await wait_until(
                lambda: not self.site.store.find_leaks(), _SETTLE_S, "nothing is owed any more"
            )
        except AssertionError:
            for record in self.records.tasks.values():
                if record.status not in ENDED:
                    what = f"{record.task_id} is still {record.status}"
                    self.verdict.blame(record.scope.context_id, what)

    def _prove_messages(self) -> None:
        self.verdict.away = sum(map(self.records.is_away, self.records.tasks.values()))
        if self.verdict.away > _MOST_AWAY * len(self.logs):
            self.verdict.blame("", f"{self.verdict.away} tasks failed as their agent was away")
        owners = Counter(
            attempt.message_id
            for record in self.records.tasks.values()
            for attempt in record.attempts[:1]
        )
        for log in self.logs:
            label = log.errand.label
            for message in log.messages:
                self._prove_count(log, message)
                is_first = not message.endswith("reply")
                if is_first and message not in log.refusals and owners[message] != 1:
                    self.verdict.blame(label, f"{message} has {owners[message]} tasks")
                if is_first and owners[message] > 1:
                    self.verdict.blame(label, f"{message} was accepted {owners[message]} times")

    def _prove_count(self, log: CallerLog, message: str) -> None:
        count = self.truth.messages[message]
        fault = log.errand.fault
        if fault is not None and fault.action is Action.FREEZE and message == log.messages[0]:
            became = f"refused ({log.refusals[message]})" if message in log.refusals else "done"
            self.verdict.frozen.append(
                f"{message} was {became}, and reached the agent {count} times"
            )
            if count > 2:
                self.verdict.blame(log.errand.label, f"{message} reached its agent {count} times")
        elif message in log.refusals:
            self.verdict.refused += 1
            if count > 1:
                self.verdict.blame(log.errand.label, f"{message} reached its agent {count} times")
        elif count != (0 if self.records.is_unsent(log.task_id) else 1):
            self.verdict.blame(log.errand.label, f"{message} reached its agent {count} times")

    # ------------------------------------------------------------ each status is the agent's

    def _prove_tasks(self) -> None:
        bound = {
            attempt.remote_task_id: record
            for record in self.records.tasks.values()
            for attempt in record.attempts
            if attempt.remote_task_id is not None
        }
        frozen = {
            log.messages[0]
            for log in self.logs
            if log.errand.fault is not None and log.errand.fault.action is Action.FREEZE
        }
        for remote, task in self.truth.tasks.items():
            label = _read_label(task)
            record = bound.get(remote)
            if record is None and not frozen & set(_list_messages(task)):
                self.verdict.blame(label, f"{remote} at its agent belongs to no errand")
            elif record is not None and _STATES.get(record.status) != _read_state(task):
                what = f"{record.task_id} is {record.status}, {remote} {_read_state(task)}"
                self.verdict.blame(label, what)


def _read_state(task: JsonObject) -> str:
    return text_at(object_at(task, "status"), "state")


def _read_label(task: JsonObject) -> str:
    messages = objects_at(task, "history")
    parts = objects_at(messages[0], "parts") if messages else []
    return text_at(parts[0], "text").partition(" ")[0] if parts else ""


def _list_messages(task: JsonObject) -> list[str]:
    return [text_at(message, "messageId") for message in objects_at(task, "history")]

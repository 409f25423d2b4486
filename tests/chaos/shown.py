"""What callers see at the end, from either gateway: tasks as at their agents, and streams without gaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.demo.checks import CheckFailed, wait_for
from passerelle.demo.devices import open_device
from tests.chaos.callers import Cut, Refused, read_results
from tests.chaos.plan import GATEWAYS, Way
from tests.chaos.site import KEY

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from passerelle.demo.devices import DemoDevice
    from tests.chaos.callers import Caller, CallerLog
    from tests.chaos.proofs import Truth
    from tests.chaos.records import Records
    from tests.chaos.site import Site
    from tests.chaos.verdict import Verdict

_FOLLOWED: Final = 32
"""Concurrent streams per channel: a channel accepts 60 client frames in ten seconds, and each stream takes one."""


_UNSENT: Final = ("TASK_STATE_CANCELED", "")
"""State and text of a task that was cancelled while its message waited for a busy agent."""


@dataclass(slots=True)
class Shown:
    """Reads everything from both gateways."""

    site: Site
    caller: Caller
    records: Records
    truth: Truth
    verdict: Verdict

    async def prove(self, logs: list[CallerLog]) -> None:
        """Checks each errand's task and stream, and each session."""
        for log in logs:
            try:
                await self._prove_errand(log)
            except (Refused, Cut) as error:
                self.verdict.blame(log.errand.label, f"cannot be read any more: {error!r}")
        await self._prove_sessions()

    async def _prove_errand(self, log: CallerLog) -> None:
        if log.errand.way is Way.SAY:
            # An errand that waited for its agent received a Task, which contains the answer.
            status = object_at(log.task or {}, "status")
            parts = objects_at(log.answer or object_at(status, "message"), "parts")
            if [text_at(part, "text") for part in parts] != [f"{log.errand.text} it is"]:
                self.verdict.blame(log.errand.label, f"its answer is {log.answer or log.task}")
        elif log.task_id is not None:
            remote = self._find_remote(log.task_id)
            for gateway in range(len(GATEWAYS)):
                task = await self.caller.get_task(log, gateway)
                said = _UNSENT if self.records.is_unsent(log.task_id) else read_whole(remote or {})
                if read_whole(task) != said:
                    what = f"{GATEWAYS[gateway]} shows {task}, its agent has {remote}"
                    self.verdict.blame(log.errand.label, what)
            if log.frames:
                await self._prove_stream(log)

    def _find_remote(self, task_id: str) -> JsonObject | None:
        record = self.records.tasks.get(task_id.partition("~")[0])
        name = record.attempts[-1].remote_task_id if record and record.attempts else None
        return self.truth.tasks.get(name or "")

    async def _prove_stream(self, log: CallerLog) -> None:
        """The live stream, over every break, equals the replay of either gateway."""
        self.verdict.streams += 1
        live = read_results(log)[1:]
        for gateway in range(len(GATEWAYS)):
            replayed = await self.caller.replay(log, gateway)
            if replayed != live:
                what = f"{len(live)} frames live, {len(replayed)} again from {GATEWAYS[gateway]}"
                self.verdict.blame(log.errand.label, what)

    # ------------------------------------------------------------ sessions

    async def _prove_sessions(self) -> None:
        """Over channels, from the first event: every sequence once, up to the last stored one."""
        labels = {
            record.session_id: record.scope.context_id for record in self.records.tasks.values()
        }
        self.verdict.sessions = len(labels)
        names = sorted(labels)
        for place, first in enumerate(range(0, len(names), _FOLLOWED)):
            gateway = self.site.gateways[place % len(GATEWAYS)]
            async with open_device(gateway.url, KEY, f"chaos-{place}") as device:
                for name in names[first : first + _FOLLOWED]:
                    device.follow(f"session:{name}")
                for name in names[first : first + _FOLLOWED]:
                    await self._prove_session(device, name, labels[name])

    async def _prove_session(self, device: DemoDevice, session: str, label: str) -> None:
        stream, top = f"session:{session}", await self.records.read_top(session)
        try:
            await wait_for(f"{session} is read", lambda: device.find_end(stream) >= top)
        except CheckFailed as error:
            self.verdict.blame(label, str(error))
        if device.sequences(stream) != list(range(1, top + 1)):
            self.verdict.blame(label, f"its session has {device.sequences(stream)}, up to {top}")


def read_whole(task: JsonObject) -> tuple[str, str]:
    """State and text of a task, which have to be equal on both sides."""
    artifacts = objects_at(task, "artifacts")
    parts = [part for artifact in artifacts for part in objects_at(artifact, "parts")]
    return text_at(object_at(task, "status"), "state"), "".join(
        text_at(part, "text") for part in parts
    )

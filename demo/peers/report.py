"""``report`` streams one artifact in chunks, over a few seconds.

``chunks=12 every=0.4`` in the text sets the number of chunks and the seconds between them; these are the defaults.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Final

from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from passerelle.demo.peers.serving import SampleAgent, open_updater, serve

CHUNKS_MAX: Final = 1000
EVERY_MAX_S: Final = 10.0
_CHUNKS: Final = re.compile(r"\bchunks=([0-9]{1,4})\b")
_EVERY: Final = re.compile(r"\bevery=([0-9]{1,2}(?:\.[0-9]{1,3})?)\b")


@dataclass(frozen=True, slots=True)
class ReportPace:
    """Number of chunks, and the seconds between two of them."""

    chunks: int
    every_s: float


DEFAULT: Final = ReportPace(chunks=12, every_s=0.4)


def read_pace(text: str) -> ReportPace:
    """Reads the pace from a text, within bounds."""
    chunks, every = _CHUNKS.search(text), _EVERY.search(text)
    return ReportPace(
        min(max(int(chunks[1]), 1), CHUNKS_MAX) if chunks else DEFAULT.chunks,
        min(float(every[1]), EVERY_MAX_S) if every else DEFAULT.every_s,
    )


class ReportAgent(SampleAgent):
    """Streams one artifact, one line per chunk."""

    name = "report"
    description = "Writes a report, a line at a time."

    async def answer(self, context: RequestContext, queue: EventQueue) -> None:
        if context.current_task is None and context.message is not None:
            await queue.enqueue_event(new_task_from_user_message(context.message))
        pace = read_pace(context.get_user_input())
        task = open_updater(context, queue)
        await task.start_work()
        for line in range(1, pace.chunks + 1):
            if line > 1:
                await asyncio.sleep(pace.every_s)
            await task.add_artifact(
                [new_text_part(f"line {line} of {pace.chunks}\n")],
                artifact_id="report",
                name="report",
                append=line > 1,
                last_chunk=line == pace.chunks,
            )
        await task.complete(task.new_agent_message([new_text_part("the report is written")]))


if __name__ == "__main__":
    serve(ReportAgent())

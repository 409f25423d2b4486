"""What callers send and what they expect: requests made of a template, a number and the ids that an answer named."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import orjson

NUMBER: Final = "########"
"""Stands for a number of eight digits that no other request has."""
CONTEXT: Final = "<context>"
TASK: Final = "<task>"
"""Stand for the ids that an answer named before."""
SHOWN: Final = 300
"""Bytes of a wrong answer that are told."""
_numbers: Final = itertools.count(1)


def _make_headers() -> dict[str, str]:
    return {"A2A-Version": "1.0"}


@dataclass(frozen=True, slots=True)
class RequestStep:
    """One request, to ``path`` below the URL of an order; ``body`` and ``headers`` have marks.

    Its answer has to contain ``expected``, and ``counted`` exactly ``times`` times. One that ``teaches`` names a task
    and its context for the steps behind it.
    """

    body: str
    expected: str
    path: str = ""
    headers: dict[str, str] = field(default_factory=_make_headers)
    counted: str = ""
    times: int = 0
    teaches: bool = False


@dataclass(slots=True)
class CallerProgress:
    """Where a caller is: the step that comes next, and the ids that it was told."""

    context: str = ""
    task: str = ""
    at: int = 0

    def learn(self, answer: bytes) -> None:
        """Takes the ids of the task in an answer, of either binding."""
        said = orjson.loads(answer)
        task = said.get("result", said)["task"]
        self.context, self.task = task["contextId"], task["id"]


class PreparedRequest:
    """A step towards one URL."""

    def __init__(self, url: str, step: RequestStep) -> None:
        self.step = step
        host, target = split_url(url)
        headers = {"Host": host, "Content-Type": "application/json", **step.headers}
        lines = [
            f"POST {target.rstrip('/') + step.path if step.path else target} HTTP/1.1",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self._head = "\r\n".join(lines)

    def write(self, key: str, progress: CallerProgress) -> bytes:
        """A whole request of a number of its own; ``key`` is the caller's, empty for one without."""
        number = f"{next(_numbers):08d}"
        body = self.step.body.replace(NUMBER, number)
        body = body.replace(CONTEXT, progress.context).replace(TASK, progress.task)
        shown = f"\r\nAuthorization: Bearer {key}" if key else ""
        head = self._head.replace(NUMBER, number)
        return f"{head}{shown}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

    def find_fault(self, status: int, answer: bytes) -> str | None:
        """What is wrong with an answer, or None."""
        step = self.step
        told = f"{status}: {answer[:SHOWN].decode(errors='replace')}"
        if status != HTTPStatus.OK or step.expected.encode() not in answer:
            return told
        counted = answer.count(step.counted.encode()) if step.counted else step.times
        return f"{step.counted} {counted} times in {told}" if counted != step.times else None


def split_url(url: str) -> tuple[str, str]:
    """What names host and port, and the target behind it."""
    host, _, target = url.removeprefix("http://").partition("/")
    return host, f"/{target}"

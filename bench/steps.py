"""Requests and expected answers: requests are built from a template, a number and the ids that an answer named."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import orjson

NUMBER: Final = "########"
"""Placeholder for a number of eight digits, unique per request."""
CONTEXT: Final = "<context>"
TASK: Final = "<task>"
"""Placeholders for the ids that a previous answer named."""
SHOWN: Final = 300
"""Bytes of a wrong answer that are reported."""
_numbers: Final = itertools.count(1)


def _make_headers() -> dict[str, str]:
    return {"A2A-Version": "1.0"}


@dataclass(frozen=True, slots=True)
class RequestStep:
    """One request, to ``path`` below the URL of an order; ``body`` and ``headers`` contain placeholders.

    Its answer has to contain ``expected``, and ``counted`` exactly ``times`` times. An answer to a step that
    ``teaches`` names a task and its context for the following steps.
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
    """Position of a caller: its next step, and the ids that it has learned."""

    context: str = ""
    task: str = ""
    at: int = 0

    def learn(self, answer: bytes) -> None:
        """Learns the ids of the task in an answer, of either binding."""
        said = orjson.loads(answer)
        task = said.get("result", said)["task"]
        self.context, self.task = task["contextId"], task["id"]


class PreparedRequest:
    """A step bound to one URL."""

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
        """A complete request with a unique number; ``key`` is the caller's, empty for none."""
        number = f"{next(_numbers):08d}"
        body = self.step.body.replace(NUMBER, number)
        body = body.replace(CONTEXT, progress.context).replace(TASK, progress.task)
        shown = f"\r\nAuthorization: Bearer {key}" if key else ""
        head = self._head.replace(NUMBER, number)
        return f"{head}{shown}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

    def find_fault(self, status: int, answer: bytes) -> str | None:
        """The fault of an answer, or None."""
        step = self.step
        shown = f"{status}: {answer[:SHOWN].decode(errors='replace')}"
        if status != HTTPStatus.OK or step.expected.encode() not in answer:
            return shown
        counted = answer.count(step.counted.encode()) if step.counted else step.times
        return f"{step.counted} {counted} times in {shown}" if counted != step.times else None


def split_url(url: str) -> tuple[str, str]:
    """Host and port, and the request target."""
    host, _, target = url.removeprefix("http://").partition("/")
    return host, f"/{target}"

"""Pipelined requests of all kinds in one connection, split anywhere: each gets its own answer, in order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from tests.fuzz.crowds import write_request
from tests.fuzz.oracle import INSIDES, PROBLEM
from tests.fuzz.wire import Answer, Ended, Wire, split
from tests.memory.site import QUIET, write_call, write_message

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.wire.json import Json, JsonObject
    from tests.memory.site import Site

WHOLE_WITHIN_S: Final = 30.0
_AGENT: Final = f"/agents/{QUIET}"
_CARD: Final = f"{_AGENT}/.well-known/agent-card.json"
_PARSE_ERROR: Final = -32700
_ENDING: Final = 4
"""One of this many pipelines disconnects before its answers arrive."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request, and its expected answer: a status, and a test of the body."""

    raw: bytes
    status: int
    is_right: Callable[[Answer], bool]
    to_head: bool = False


def _is_any(_answer: Answer) -> bool:
    return True


def _read(answer: Answer) -> dict[str, Any]:
    said: Any = orjson.loads(answer.body)
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


def _is_problem(answer: Answer) -> bool:
    return _read(answer).keys() >= PROBLEM


def _answers(number: int, member: str) -> Callable[[Answer], bool]:
    """Whether it is the JSON-RPC response to that id, with a result or an error."""

    def is_right(answer: Answer) -> bool:
        said = _read(answer)
        return said.get("id") == number and member in said

    return is_right


def _get(site: Site, path: str, verb: str = "GET") -> bytes:
    lines = "".join(f"{name}: {said}\r\n" for name, said in site.headers("alice").items())
    return f"{verb} {path} HTTP/1.1\r\nHost: gateway\r\n{lines}\r\n".encode()


def _call(site: Site, number: int, method: str, params: JsonObject, chance: Random) -> bytes:
    """A JSON-RPC call; its body has a length, or comes in chunks of random size."""
    body = write_call(method, params, number)
    raw = site.write_head("alice", len(body), _AGENT)
    if chance.random() < 0.5:
        return raw + body
    head = raw.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in split(body, chance))
    return head + chunks + b"0\r\n\r\n"


def _health(site: Site, _number: int, _chance: Random) -> Request:
    return Request(_get(site, "/healthz"), 200, _is_any)


def _card(site: Site, _number: int, _chance: Random) -> Request:
    return Request(_get(site, _CARD), 200, lambda answer: "skills" in _read(answer))


def _card_head(site: Site, _number: int, _chance: Random) -> Request:
    return Request(_get(site, _CARD, "HEAD"), 200, _is_any, to_head=True)


def _nowhere(site: Site, number: int, _chance: Random) -> Request:
    return Request(_get(site, f"/nowhere/{number}"), 404, _is_problem)


def _no_task(site: Site, number: int, _chance: Random) -> Request:
    return Request(_get(site, f"/v1/tasks/task_{number}"), 404, _is_problem)


def _ask(site: Site, number: int, chance: Random) -> Request:
    raw = _call(site, number, "SendMessage", write_message("echo"), chance)
    return Request(raw, 200, _answers(number, "result"))


def _ask_expecting(site: Site, number: int, _chance: Random) -> Request:
    raw = write_request(site, "alice", number).replace(b"\r\n", b"\r\nExpect: 100-continue\r\n", 1)
    return Request(raw, 200, _answers(number, "result"))


def _list(site: Site, number: int, chance: Random) -> Request:
    raw = _call(site, number, "ListTasks", {"pageSize": 1}, chance)
    return Request(raw, 200, _answers(number, "result"))


def _get_none(site: Site, number: int, chance: Random) -> Request:
    raw = _call(site, number, "GetTask", {"id": "no-such-task"}, chance)
    return Request(raw, 200, _answers(number, "error"))


def _stream(site: Site, number: int, chance: Random) -> Request:
    raw = _call(site, number, "SendStreamingMessage", write_message("stream"), chance)

    def is_right(answer: Answer) -> bool:
        lines = [line[5:] for line in answer.body.split(b"\n") if line.startswith(b"data:")]
        said = [cast("dict[str, Any]", orjson.loads(line)) for line in lines]
        return (
            bool(said)
            and all(one["id"] == number for one in said)
            and b"TASK_STATE_COMPLETED" in lines[-1]
        )

    return Request(raw, 200, is_right)


def _stranger(site: Site, number: int, _chance: Random) -> Request:
    return Request(write_request(site, "nobody", number), 401, _is_any)


def _garbage(site: Site, number: int, chance: Random) -> Request:
    # Blank lines inside it do not end a head.
    body = b"{\r\n\r\nGET / HTTP/1.1\r\n\r\n" + b"x" * chance.randint(0, 3_000)
    raw = site.write_head("alice", len(body), _AGENT) + body

    def is_right(answer: Answer) -> bool:
        error: Json = _read(answer).get("error")
        return isinstance(error, dict) and error["code"] == _PARSE_ERROR

    del number
    return Request(raw, 200, is_right)


KINDS: Final = (
    _health,
    _card,
    _card_head,
    _nowhere,
    _no_task,
    _ask,
    _ask_expecting,
    _list,
    _get_none,
    _stream,
    _stranger,
    _garbage,
)


def plan(site: Site, count: int, chance: Random) -> list[Request]:
    """``count`` requests; the last one closes the connection."""
    found = [chance.choice(KINDS)(site, number, chance) for number in range(1, count)]
    last = _get(site, "/healthz").replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
    return [*found, Request(last, 200, _is_any)]


async def play(site: Site, count: int, chance: Random) -> str:
    """One connection with ``count`` requests; returns the fault of their answers, or nothing."""
    requests = plan(site, count, chance)
    wire = await Wire.open(site.gateway.port)
    raw = b"".join(one.raw for one in requests)
    sending = asyncio.create_task(wire.send_pieces(raw, chance))
    wanted = chance.randrange(count) if chance.randrange(_ENDING) == 0 else None
    try:
        async with asyncio.timeout(WHOLE_WITHIN_S):
            return await _read_all(wire, requests[:wanted], to_end=wanted is None)
    except TimeoutError:
        return f"a pipeline of {count} requests was not answered within {WHOLE_WITHIN_S:g} s"
    except (Ended, ConnectionError) as error:
        return f"a pipeline of {count} requests was cut: {error!r}"
    finally:
        wire.leave(rudely=wanted is not None)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _read_all(wire: Wire, requests: list[Request], *, to_end: bool) -> str:
    for number, request in enumerate(requests, start=1):
        answer = await wire.read_answer(to_head=request.to_head)
        if fault := _judge(request, answer):
            return f"request {number} of a pipeline, {request.raw[:60]!r}: {fault}"
    if to_end and (more := await wire.read_end()):
        return f"a pipeline has an answer too many: {more[:200]!r}"
    return ""


def _judge(request: Request, answer: Answer) -> str:
    said = f"{answer.status}: {answer.body[:200]!r}"
    if answer.status != request.status:
        return f"{said} in place of {request.status}"
    if any(word in answer.body for word in INSIDES):
        return f"{said} shows an inside"
    return "" if request.is_right(answer) else f"{said} is another answer"

"""Kinds of work of an A2A gateway, each with its bound: the requests of callers, and the gateway's settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import orjson

from bench.load import LoadOrder
from bench.steps import CONTEXT, NUMBER, TASK, RequestStep
from bench.testbed import KEY, RECEIVER, GatewaySetup, make_keys
from passerelle.core.wire.json import JsonObject

CALLERS: Final = 16
CROWD: Final = 600
CHUNKS: Final = 30
STREAMS: Final = 64
EVERY_S: Final = 0.05
COMPLETED: Final = "TASK_STATE_COMPLETED"
_ASKS: Final = "TASK_STATE_INPUT_REQUIRED"
_PAGE: Final = 10
_KB: Final = 1024
WARM_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Number of rounds and seconds of each."""

    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkKind:
    """One kind of work; an answer has ``events`` events.

    ``most`` bounds the gateway's CPU ÷ the agent's for the same work called directly. ``per`` is another kind, whose
    cost at the gateway replaces the agent's. ``rate`` bounds the answers per second, through the gateway ÷ directly.
    The agent is called with ``direct`` if it does not support the steps.
    """

    name: str
    order: LoadOrder
    most: float | None
    lead: tuple[RequestStep, ...] = ()
    direct: tuple[RequestStep, ...] = ()
    as_agent: str = ""
    per: str = ""
    rate: float | None = None
    events: int = 1
    is_once: bool = False
    """Each caller has one answer per round, which takes as long as the round."""
    is_whole: bool = False
    """Prints rows of all measures."""


@dataclass(frozen=True, slots=True)
class WorkMix:
    """Kinds that take turns at one gateway."""

    setting: GatewaySetup
    kinds: tuple[WorkKind, ...]


def make_call(method: str, params: JsonObject) -> str:
    """A JSON-RPC request."""
    call: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return orjson.dumps(call).decode()


def make_message(text: str, **members: str | JsonObject) -> JsonObject:
    """A message of A2A 1.0."""
    return {
        "messageId": f"bench-{NUMBER}",
        "role": "ROLE_USER",
        "parts": [{"text": text}],
        **members,
    }


def make_send(text: str, expected: str = COMPLETED, **members: str | JsonObject) -> RequestStep:
    """SendMessage over JSON-RPC."""
    return RequestStep(
        make_call("SendMessage", {"message": make_message(text, **members)}), expected
    )


def _make_order(*steps: RequestStep, callers: int = CALLERS) -> LoadOrder:
    return LoadOrder("send", steps=steps, callers=callers, keys=[KEY])


FIRST: Final = make_send("hello")
TAUGHT: Final = replace(FIRST, teaches=True)
TASK_ORDER: Final = _make_order(FIRST)
MESSAGE_ORDER: Final = _make_order(make_send("message: hello", "ROLE_AGENT"))
_FURTHER: Final = make_send("hello", contextId=CONTEXT)
_LIKE_SDK: Final = {
    "Accept": "*/*",
    "Accept-Encoding": "gzip, deflate",
    "Connection": "keep-alive",
    "User-Agent": "python-httpx/0.28.1",
    "A2A-Version": "1.0",
}
_OTHER: Final = RequestStep(
    orjson.dumps(
        {
            "method": "SendMessage",
            "params": {"message": make_message("hello"), "configuration": {}},
            "id": f"9f016f08-286c-478e-84aa-47f8{NUMBER}",
            "jsonrpc": "2.0",
        }
    ).decode(),
    COMPLETED,
    headers=_LIKE_SDK,
)
"""In the form of the Python SDK's client."""
_OLD: Final = RequestStep(
    make_call(
        "message/send",
        {
            "message": {
                "kind": "message",
                "messageId": f"bench-{NUMBER}",
                "role": "user",
                "parts": [{"kind": "text", "text": "hello"}],
            }
        },
    ),
    '"completed"',
    headers={},
)
_REST: Final = RequestStep(
    orjson.dumps({"message": make_message("hello")}).decode(), COMPLETED, "/message:send"
)
_LONG: Final = make_send("four words of text, " * (4 * _KB // 20))
_CLOSING: Final = replace(FIRST, headers={"A2A-Version": "1.0", "Connection": "close"})
_KEYED: Final = replace(
    FIRST, headers={"A2A-Version": "1.0", "Idempotency-Key": f"bench-key-{NUMBER}"}
)
_TOLD: Final = RequestStep(
    make_call(
        "SendMessage",
        {
            "message": make_message("hello"),
            "configuration": {"taskPushNotificationConfig": {"url": RECEIVER}},
        },
    ),
    COMPLETED,
)
_QUESTION: Final = replace(make_send("ask: which one?", _ASKS), teaches=True)
_ANSWER: Final = make_send("this one", taskId=TASK, contextId=CONTEXT)
MIXED_ORDER: Final = _make_order(TAUGHT, _FURTHER, _FURTHER, FIRST, _QUESTION, _ANSWER)
"""A conversation of three messages, a single one, and an input request with its answer: five tasks in six answers."""
_GET: Final = RequestStep(make_call("GetTask", {"id": TASK}), COMPLETED)
_LIST: Final = RequestStep(
    make_call("ListTasks", {"contextId": CONTEXT, "pageSize": _PAGE}),
    "nextPageToken",
    counted=COMPLETED,
    times=_PAGE,
)


def _make_stream(chunks: int, every_s: float) -> RequestStep:
    """Every chunk has to arrive once, in any division into frames."""
    message = make_message(f"chunks={chunks} every={every_s:.3f}")
    call = make_call("SendStreamingMessage", {"message": message})
    return RequestStep(call, COMPLETED, counted=f" of {chunks}\\n", times=chunks)


def _first(
    name: str, most: float, step: RequestStep = FIRST, *direct: RequestStep, as_agent: str = ""
) -> WorkKind:
    return WorkKind(f"first message, {name}", _make_order(step), most, (), direct, as_agent)


WHOLE: Final = WorkKind("first message", TASK_ORDER, 0.25, rate=0.85, is_whole=True)
_CONTEXTS: Final = WorkMix(
    GatewaySetup(
        "echo",
        clients=CROWD,
        others=(
            {"name": "priced", "price": {"per_call": "0.02"}},
            {"name": "conditioned", "acceptance": [{"artifact": {"name": "echo"}}]},
        ),
        more=lambda receiver: {"webhooks": {"allow": [receiver]}},
    ),
    (
        WHOLE,
        WorkKind("bare Message", MESSAGE_ORDER, 0.30),
        WorkKind("first message, 1 caller", replace(TASK_ORDER, callers=1), None),
        _first("HTTP+JSON", 0.30, _REST),
        _first("0.3 client", 0.30, _OLD, FIRST),
        _first("4 kB of text", 0.35, _LONG),
        _first("new connection each", 0.30, _CLOSING),
        WorkKind(
            "further message of a context",
            _make_order(_FURTHER),
            0.60,
            (TAUGHT,),
            rate=0.75,
            is_whole=True,
        ),
        _first("idempotency key", 0.60, _KEYED, FIRST),
        _first("a price", 0.75, as_agent="priced"),
        _first("a condition", 0.75, as_agent="conditioned"),
        _first("a webhook", 0.75, _TOLD, FIRST),
        WorkKind("answered question", _make_order(_QUESTION, _ANSWER), 0.75),
        WorkKind(
            f"first message, {CROWD} callers in rotation",
            replace(TASK_ORDER, keys=make_keys(CROWD)),
            1.1,
            per=WHOLE.name,
        ),
    ),
)
_READS: Final = WorkMix(
    GatewaySetup("echo"),
    (
        WorkKind("GetTask", _make_order(_GET), 0.75, (TAUGHT,)),
        WorkKind(
            "ListTasks, page of 10", _make_order(_LIST), 1.0, (TAUGHT, *(_FURTHER,) * (_PAGE - 1))
        ),
    ),
)
"""Uses a separate agent: it scans all of its tasks for a page."""
_OPEN: Final = WorkMix(
    GatewaySetup("echo", clients=0, more=lambda _: {"auth": "open"}),
    (_first("another client, no key", 0.30, _OTHER),),
)
_HOOKED: Final = WorkMix(
    GatewaySetup(
        "echo",
        more=lambda receiver: {
            "policy": {"hooks": [{"name": "scan", "points": ["before_delegate"], "url": receiver}]}
        },
    ),
    (_first("a hook", 0.75),),
)
_REDACTING: Final = WorkMix(
    GatewaySetup(
        "echo",
        more=lambda _: {"outputs": {"redact": [{"name": "key", "pattern": "AKIA[0-9A-Z]{16}"}]}},
    ),
    (_first("redaction", 0.75),),
)


def make_scenes(length: RoundPlan) -> list[WorkMix]:
    """All kinds; paced streams last as long as a round."""
    paced = round(length.seconds / EVERY_S)
    streams = WorkMix(
        # One client may have 64 streams, and one that has just ended counts for a moment.
        GatewaySetup("report", clients=4),
        (
            WorkKind(
                f"stream of {CHUNKS} chunks, per event",
                _make_order(_make_stream(CHUNKS, 0)),
                0.70,
                rate=0.6,
                events=CHUNKS,
            ),
            WorkKind(
                f"{STREAMS} streams, a chunk per {1000 * EVERY_S:.0f} ms, per event",
                replace(
                    _make_order(_make_stream(paced, EVERY_S), callers=STREAMS), keys=make_keys(4)
                ),
                1.0,
                rate=0.9,
                events=paced,
                is_once=True,
            ),
        ),
    )
    return [_CONTEXTS, _OPEN, _HOOKED, _REDACTING, streams, _READS]

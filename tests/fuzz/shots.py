"""Hostile requests, as strategies: each edge gets almost valid, plainly invalid and malicious ones.

Most are a valid request with one thing replaced: a body of noise alone never passes the parser.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import orjson
from hypothesis import strategies as st

from passerelle.a2a_mapping.rpc import Method
from tests.conformance.callers import locate

AGENT: Final = "/agents/conformance"
OPERATIONS: Final = tuple(method.value for method in Method)
LEGACY: Final = ("message/send", "message/stream", "tasks/get", "tasks/cancel", "tasks/resubscribe")
NASTY: Final = (
    "",
    "\x00",
    "..",
    "../../etc/passwd",
    "{00}",
    "a\r\nX-Injected: 1",
    "\ud800",
    "\u202e\u0000\uffff",
    "*",
    "task_0000000000000000000000000000~2",
    "task_0000000000000000000000000000~01",
    "' OR 1=1 --",
    "${jndi:ldap://127.0.0.1/a}",
    "A" * 10_000,
)


@dataclass(frozen=True, slots=True)
class Shot:
    """One request; ``edge`` determines the form of its refusal."""

    edge: str
    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict[str, str])


_texts: Final = st.one_of(st.sampled_from(NASTY), st.text(max_size=30))
_numbers: Final = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([0, -1, 2**31, 2**53 + 1, 2**63, 1e308]),
)
_values: Final[st.SearchStrategy[Any]] = st.recursive(
    st.one_of(st.none(), st.booleans(), _numbers, _texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=12,
)
_noise: Final = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [b"", b"{", b"[" * 50_000, b'{"a":' * 50_000, b"\xff\xfe", b"null", b"1e999", b'"\\ud800"']
    ),
    st.integers(1, 6).map(lambda size: b'{"big":"' + b"x" * (size * 1_000_000) + b'"}'),
)


@st.composite
def _params(draw: st.DrawFn) -> dict[str, Any]:
    part: dict[str, Any] = {"text": "hello"}
    message: dict[str, Any] = {
        "messageId": draw(st.one_of(st.just("fuzz-1"), st.text(min_size=1, max_size=8))),
        "role": "ROLE_USER",
        "parts": [part],
    }
    configuration: dict[str, Any] = {"historyLength": 1}
    lawful: dict[str, Any] = {
        "message": message,
        "configuration": configuration,
        "id": draw(st.sampled_from(["task_0", "no-such-task", "cfg"])),
        "taskId": "task_0",
        "url": "https://example.com/hook",
        "pageSize": 5,
    }
    for _ in range(draw(st.integers(0, 2))):
        holder = draw(st.sampled_from([lawful, message, part, configuration]))
        name = draw(st.one_of(st.sampled_from(sorted(holder)), _texts, st.sampled_from(MEMBERS)))
        holder[name] = draw(_values)
    return lawful


MEMBERS: Final = (
    "contextId",
    "taskId",
    "referenceTaskIds",
    "metadata",
    "extensions",
    "returnImmediately",
    "acceptedOutputModes",
    "taskPushNotificationConfig",
    "tenant",
    "pageToken",
    "status",
    "statusTimestampAfter",
    "includeArtifacts",
    "data",
    "raw",
    "mediaType",
    "authentication",
)


def _pack(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        # What orjson does not write, lone surrogates and huge integers, is what a parser should see.
        import json

        return json.dumps(value).encode("utf-8", "surrogatepass")


@st.composite
def headers(draw: st.DrawFn) -> dict[str, str]:
    """Headers of a call, mostly valid."""
    ascii_texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
    found = {"A2A-Version": "1.0", "Content-Type": "application/json"}
    for name in draw(st.lists(st.sampled_from(HEADERS), max_size=2)):
        found[name] = draw(ascii_texts).strip()
    return found


HEADERS: Final = (
    "A2A-Version",
    "A2A-Extensions",
    "Content-Type",
    "Accept",
    "Idempotency-Key",
    "Last-Event-ID",
    "traceparent",
    "If-None-Match",
    "If-Modified-Since",
    "X-Forwarded-For",
)


@st.composite
def rpc_shots(draw: st.DrawFn) -> Shot:
    """A JSON-RPC request."""
    call: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": draw(st.sampled_from(OPERATIONS + LEGACY)),
        "params": draw(_params()),
    }
    if draw(st.integers(0, 4)) == 0:
        call[draw(st.sampled_from(sorted(call)))] = draw(_values)
    body = draw(_noise) if draw(st.integers(0, 5)) == 0 else _pack(call)
    return Shot("rpc", "POST", draw(st.sampled_from([AGENT, f"{AGENT}/"])), body, draw(headers()))


@st.composite
def http_shots(draw: st.DrawFn) -> Shot:
    """A request to a path of HTTP+JSON, of either version."""
    operation = draw(st.sampled_from(OPERATIONS))
    params = draw(_params())
    named = {name: _quote(params.get(name)) for name in ("id", "taskId")}
    verb, path, _ = locate(operation, {**params, **named})
    version = draw(st.sampled_from(["", "", "", "/v1"]))
    if verb == "GET":
        values = draw(st.dictionaries(st.sampled_from(MEMBERS), _texts, max_size=3))
        query = "&".join(f"{name}={_quote(value)}" for name, value in values.items())
        return Shot("http", verb, f"{AGENT}{version}{path}?{query}", b"", draw(headers()))
    body = draw(_noise) if draw(st.integers(0, 5)) == 0 else _pack(params)
    return Shot("http", verb, f"{AGENT}{version}{path}", body, draw(headers()))


@st.composite
def other_shots(draw: st.DrawFn) -> Shot:
    """Cards, callbacks of agents, and unknown paths."""
    word = _quote(draw(_texts))
    path = draw(
        st.sampled_from(
            [
                f"{AGENT}/.well-known/agent-card.json",
                f"/agents/{word}/.well-known/agent-card.json",
                f"/agents/{word}",
                f"/callbacks/{word}/{word}",
                "/.well-known/jwks.json",
                f"/{word}",
                f"/agents/conformance/{word}",
            ]
        )
    )
    verb = draw(st.sampled_from(["GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"]))
    body = draw(_noise) if verb in {"POST", "PUT", "PATCH"} else b""
    return Shot("other", verb, path, body, draw(headers()))


def _quote(value: object) -> str:
    return quote(str(value).encode("utf-8", "surrogatepass"), safe="")[:4_000] or "%20"

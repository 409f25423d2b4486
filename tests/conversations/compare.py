"""Compares a conversation through the gateway with the same one without it.

A difference is allowed if a row of ``differences.toml`` is named for it here. Content about ids, times, addresses,
transport headers and trace is removed before the comparison.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.conversations.axes import SDK_0_3, Case
from tests.conversations.forms import Json, inner, read_parts
from tests.conversations.play import OVER, WAITING, Outcome, Record
from tests.conversations.script import EXTENSION, QUESTIONS
from tests.conversations.tap import Received

TABLE: Final = Path(__file__).parent / "differences.toml"
SLOWER_S: Final = 1.0
MOST_ROWS: Final = 15
FORM: Final = "urn:passerelle:ext:permission:1"
_OF_THE_MESSAGE: Final = frozenset(
    {"metadata", "extensions", "metadata of the request", "acceptedOutputModes"}
)
_TIMED_OUT: Final = "no answer"


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference; ``row`` allows it, if it is not empty."""

    where: str
    direct: object
    through: object
    row: str = ""

    def __str__(self) -> str:
        said = f"{self.where}: directly {_shorten(self.direct)}, through {_shorten(self.through)}"
        return f"{said} [{self.row}]" if self.row else said


def load_rows() -> dict[str, Json]:
    """The table, by row id."""
    rows: list[Json] = tomllib.loads(TABLE.read_text("utf-8"))["row"]
    return {row["id"]: row for row in rows}


def compare(case: Case, direct: Record, through: Record) -> list[Difference]:
    """All differences."""
    return [
        *_compare_outcomes(case, direct, through),
        *_compare_ends(case, direct, through),
        *_compare_histories(case, direct, through),
        *_compare_own(case, direct, through),
        *_compare_received(case, direct.received, through.received),
        *_compare_activated(case, direct, through),
    ]


def _compare_outcomes(case: Case, direct: Record, through: Record) -> Iterator[Difference]:
    one, other = list(direct.outcomes), list(through.outcomes)
    row = ""
    if case.stance == "twice":
        # The first question must stay the first; of the two answers, either was first.
        one[1:], other[1:] = _sort(one[1:]), _sort(other[1:])
        row = "twice" if all(map(_is_told, other[1:])) else ""
    if case.event != "restart" and through.breaks > direct.breaks:
        yield Difference("streams that broke off", direct.breaks, through.breaks)
    if len(one) != len(other):
        yield Difference("acts", [o.act for o in one], [o.act for o in other])
    for number, (a, b) in enumerate(zip(one, other, strict=False)):
        if a.said != b.said:
            allowed = row if number > 1 or not _is_told(a) else ""
            if _is_told_later(case, a, b, direct.end.get("state")):
                yield Difference(a.act, a.said, b.said, "waiting")
                continue
            yield Difference(a.act, a.said, b.said, allowed)
        elif a.words != b.words:
            yield Difference(f"words of {a.act}", a.words, b.words, _allow_words(case, a, b) or row)
        slower = case.event != "restart" and a.is_timed and b.took_s > a.took_s + SLOWER_S
        if slower and _TIMED_OUT not in b.said:
            yield Difference(f"time of {a.act}", f"{a.took_s:.2f} s", f"{b.took_s:.2f} s")


def _is_told_later(case: Case, direct: Outcome, through: Outcome, end: object) -> bool:
    """A caller that does not wait gets the agent's error as a state of the task and not in the answer.

    ``end``: the state in which the agent leaves its task; through the gateway the caller gets that state, or a
    waiting one.
    """
    waits = case.caller in {"unary", "stream"}
    return not waits and direct.said.startswith("error") and through.said in WAITING | {end}


def _sort(outcomes: list[Outcome]) -> list[Outcome]:
    return sorted(outcomes, key=lambda one: (one.said.startswith("error"), one.said))


def _is_told(outcome: Outcome) -> bool:
    return not outcome.said.startswith(("no answer", "broke off"))


def _allow_words(case: Case, direct: Outcome, through: Outcome) -> str:
    if isinstance(direct.words, str) and isinstance(through.words, str):
        return "sentence" if direct.words in through.words else ""
    if isinstance(direct.words, str) or isinstance(through.words, str):
        return ""
    return _allow_shown(case, direct.words, through.words)


def _allow_shown(case: Case, direct: list[Json], through: list[Json]) -> str:
    """The message of a waiting task; one that ignored an answer may no longer show it."""
    if case.event == "silent" and not direct and FORM in str(through):
        return "kept"
    return _allow_beside(direct, through)


def _allow_beside(direct: list[Json], through: list[Json]) -> str:
    """The gateway's own form, if any, is added to all parts of the agent."""
    words = " ".join(str(one.get("text", "")) for one in through)
    is_all = all(one in through or (one.get("text") or "\0") in words for one in direct)
    return "beside" if FORM in str(through) and direct and is_all else ""


def _compare_ends(case: Case, direct: Record, through: Record) -> Iterator[Difference]:
    end = _read_end(direct)
    for name in ("state", "words", "artifacts"):
        a, b = end.get(name), through.end.get(name)
        if a != b:
            row = _allow_shown(case, a or [], b or []) if name == "words" else ""
            if case.stance == "twice" and name == "artifacts" and len(a or []) == len(b or []):
                row = "twice"  # the artifact repeats the first answer
            yield Difference(f"end: {name}", a, b, row)


def _read_end(direct: Record) -> Json:
    """The end of a conversation without the gateway.

    An agent whose executor raised reports an internal error, and some SDKs leave its task working forever, or fail it
    without a message. The expected end is then a failure with the text of the error (decision 0095).
    """
    last, state = direct.outcomes[-1], direct.end.get("state")
    if last.said != "error INTERNAL" or state in (OVER | WAITING) - {"FAILED"}:
        return direct.end
    if state == "FAILED" and direct.end.get("words"):
        return direct.end
    return {**direct.end, "state": "FAILED", "words": [{"text": last.words}]}


def _compare_histories(case: Case, direct: Record, through: Record) -> Iterator[Difference]:
    """The order is that of the conversation; messages that the agent omits are in the gateway's history."""
    a, b = _drop_status(direct), _drop_status(through)
    if a == b:
        if direct.history != through.history:
            yield Difference("history", direct.history, through.history, "kept")
        return
    if case.asks == "dialect":
        # Without the gateway's own form, which is added to the agent's parts, and its remarks on an answer.
        b = [one for one in _unform(case, b) if not _is_remark(one[1])]
        if a == b:
            yield Difference("history", direct.history, through.history, "beside")
            return
    b, is_hidden = _unhide(b, through.said)
    if is_hidden and a == b:
        yield Difference("history", direct.history, through.history, "withheld")
        return
    row = (
        "twice"
        if case.stance == "twice" and _is_told_in_order(b, _unform(case, through.said))
        else ""
    )
    unique = [one for number, one in enumerate(a) if one not in a[:number]]
    if (
        not row
        and case.stance != "twice"
        and _is_within(unique, b)
        and _is_within(b, _unform(case, through.said))
    ):
        row = "kept"
    yield Difference("history", a, b, row)


def _is_told_in_order(
    history: list[tuple[str, list[Json]]], said: list[tuple[str, list[Json]]]
) -> bool:
    """The first message, the question once, and then one answer or both in either order."""
    told = all(one in said[2:] and one != said[1] for one in history[2:])
    return history[:2] == said[:2] and told and len(history) > 2


def _is_remark(parts: list[Json]) -> bool:
    return all("remark" in inner(inner(part, "metadata"), FORM) for part in parts)


def _unform(case: Case, said: list[tuple[str, list[Json]]]) -> list[tuple[str, list[Json]]]:
    asked = QUESTIONS[case.asks][1]
    return [(role, asked if _allow_beside(asked, parts) else parts) for role, parts in said]


def _unhide(
    history: list[tuple[str, list[Json]]], said: list[tuple[str, list[Json]]]
) -> tuple[list[tuple[str, list[Json]]], bool]:
    """The history with the caller's text in place of withheld content, and whether any was withheld."""
    rest = [parts for role, parts in said if role == "user"]
    shown: list[tuple[str, list[Json]]] = []
    is_hidden = False
    for role, parts in history:
        mine = rest.pop(0) if role == "user" and rest else parts
        hides = role == "user" and all(inner(one, "metadata").get("withheld") for one in parts)
        is_hidden = is_hidden or hides
        shown.append((role, mine if hides else parts))
    return shown, is_hidden


def _is_within(few: list[tuple[str, list[Json]]], many: list[tuple[str, list[Json]]]) -> bool:
    """Whether ``few`` occur in ``many`` in the same order."""
    rest = iter(many)
    return all(any(one == other for other in rest) for one in few)


def _compare_own(case: Case, direct: Record, through: Record) -> Iterator[Difference]:
    """The caller's messages in history, of those that both sides show."""
    # The protobuf of 0.3 has no references: on the way to the gateway, or directly to the agent.
    ways = ((case.binding, case.version), case.interface)
    has_none = any(version == "0.3" and binding != "JSONRPC" for binding, version in ways)
    lacks = {"referenceTaskIds"} if has_none else set[str]()
    for name in direct.own.keys() & through.own.keys():
        for member, said in direct.own[name].items():
            if said != through.own[name][member] and member not in lacks:
                yield Difference(f"history: {member} of {name}", said, through.own[name][member])


def _drop_status(record: Record) -> list[tuple[str, list[Json]]]:
    """The history without an agent message at its end that is also the status message."""
    is_both = record.history[-1:] == [("agent", record.end.get("words"))]
    return record.history[:-1] if is_both else record.history


def _compare_received(
    case: Case, direct: list[Received], through: list[Received]
) -> Iterator[Difference]:
    if len(direct) != len(through):
        row = "twice" if case.stance == "twice" and len(through) in {2, 3} else ""
        names = [_name(one) for one in direct], [_name(one) for one in through]
        yield Difference("messages that the agent got", *names, row)
        if not row:
            return
    for number, (one, other) in enumerate(_pair(case, direct, through), 1):
        yield from _compare_message(case, number, one, other)


def _pair(
    case: Case, direct: list[Received], through: list[Received]
) -> list[tuple[Received, Received]]:
    """The pairs to compare: in order; of two concurrent answers those that are the same message."""
    if case.stance != "twice":
        return list(zip(direct, through, strict=False))
    named = {_name(other): other for other in through}
    return [(one, named[_name(one)]) for one in direct if _name(one) in named]


def _compare_message(
    case: Case, number: int, direct: Received, through: Received
) -> Iterator[Difference]:
    where = f"message {number} at the agent"
    if direct.operation != through.operation:
        row = _allow_sending(case, number)
        yield Difference(f"{where}: operation", direct.operation, through.operation, row)
    shown = _outline(through)
    for name, said in _outline(direct).items():
        if said != shown[name]:
            row = "waiting" if name == "returns at once" else ""
            if case.answer == "native" and number > 1 and name in _OF_THE_MESSAGE:
                row = "native"
            yield Difference(f"{where}: {name}", said, shown[name], row)


def _name(received: Received) -> str:
    return str(inner(received.params, "message").get("messageId", "")).rpartition("-")[2]


def _allow_sending(case: Case, number: int) -> str:
    """A follow-up of a blocking caller is forwarded as such; otherwise the gateway follows a stream."""
    if case.streams == "unary":
        return ""
    if number == 1 and (case.agent == SDK_0_3 or case.interface[1] == "0.3"):
        return "sending"
    return "" if case.caller == "unary" else "sending"


def _outline(received: Received) -> Json:
    """An agent's received messages, without content that the rows about ids, addresses, headers and trace cover."""
    message = inner(received.params, "message")
    configuration = inner(received.params, "configuration")
    headers = received.headers
    wanted = headers.get("a2a-extensions", headers.get("x-a2a-extensions", ""))
    metadata = {
        name: value for name, value in inner(message, "metadata").items() if name != "label"
    }
    at_once = configuration.get("returnImmediately", not configuration.get("blocking", True))
    return {
        "role": str(message.get("role", "")).removeprefix("ROLE_").lower(),
        "parts": read_parts(message),
        "metadata": metadata,
        "extensions": message.get("extensions") or [],
        "names a task": bool(message.get("taskId")),
        "metadata of the request": received.params.get("metadata"),
        "acceptedOutputModes": configuration.get("acceptedOutputModes"),
        "returns at once": bool(at_once),
        "A2A-Extensions": EXTENSION in wanted,
        "trace": headers.get("traceparent", "")[3:35],
    }


def _compare_activated(case: Case, direct: Record, through: Record) -> Iterator[Difference]:
    if "GRPC" in {case.binding, case.interface[0]}:
        return
    a, b = EXTENSION in direct.activated, EXTENSION in through.activated
    if a != b:
        sent = zip(direct.received, through.received, strict=False)
        is_streamed = any(
            one.operation != other.operation and "Streaming" in other.operation
            for one, other in sent
        )
        # A library that writes its headers before the executor runs names no extension on a stream.
        yield Difference("A2A-Extensions of the answers", a, b, "sending" if is_streamed else "")


def _shorten(value: object) -> str:
    said = str(value)
    return said if len(said) <= 400 else f"{said[:400]}…"

"""Formats approvals: the gateway's text first; the agent's text separately and escaped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, Literal

from passerelle.a2a_mapping.members import object_at, objects_at, text_at, texts_at
from passerelle.cli.verbs.verb import flatten, format_fields, format_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import JsonObject

RiskWord = Literal["low", "medium", "high", "critical"]
_AUDIT_MEMBERS: Final = (
    *("act", "decision", "outcome", "state", "transport", "source", "reason"),
    *("principal", "decidedBy", "deviceName", "optionId", "code"),
)
"""Members of a fact that an audit line shows, if present."""


def describe_question(view: JsonObject) -> Iterator[str]:
    """Formats a whole approval, without truncation."""
    yield text_at(view, "title")
    yield from format_fields(
        [
            ("id", text_at(view, "actionId")),
            ("state", _describe_state(view)),
            ("risk", _join(text_at(view, "risk"), texts_at(view, "riskReasons"))),
            ("asked by", f"{text_at(view, 'askedBy')} {text_at(view, 'peer')}".strip()),
            ("subject", _show(object_at(view, "subject"))),
            ("task", text_at(view, "taskId")),
            ("expires", text_at(view, "expiresAt")),
            ("quorum", _describe_quorum(view)),
            ("votes", _describe_votes(view)),
            ("digest", text_at(view, "digest")),
            ("policy", text_at(view, "policyVersion")),
        ]
    )
    words = text_at(view, "peerMessage")
    if words:
        yield "the agent says:"
        for line in words.splitlines():
            yield f"  | {line}"
    for option in objects_at(view, "options"):
        yield f"[{text_at(option, 'optionId')}] {text_at(option, 'name')} ({text_at(option, 'kind')})"


def describe_judgement(judged: JsonObject) -> Iterator[str]:
    """Formats the decision of policy and the verdict of each source."""
    yield f"{text_at(judged, 'decision')} by {text_at(judged, 'source')}: {text_at(judged, 'reason')}"
    rows = [
        [text_at(step, "source"), text_at(step, "verdict"), flatten(text_at(step, "ref"))]
        for step in objects_at(judged, "trail")
    ]
    yield from format_table(("SOURCE", "SAID", "WHICH"), rows)


def describe_audit(result: JsonObject) -> Iterator[str]:
    """Formats one line per fact, and the result of the integrity check."""
    for one in objects_at(result, "facts"):
        fact = object_at(one, "fact")
        payload = object_at(fact, "payload")
        yield "  ".join(
            [
                str(one.get("sequence")),
                text_at(fact, "timestamp"),
                text_at(fact, "type"),
                _summarize(payload),
                text_at(one, "sha256")[:16],
            ]
        )
    proof = object_at(result, "proof")
    if proof:
        yield f"record: {text_at(proof, 'state')}, events to {proof.get('sequence')}, chain {text_at(proof, 'chain')}"
    else:
        yield "record: empty"


def _summarize(payload: JsonObject) -> str:
    decision = object_at(payload, "decision")
    holder = decision or payload
    words = [f"{name}={text_at(holder, name)}" for name in _AUDIT_MEMBERS if text_at(holder, name)]
    return flatten(" ".join(words), 120)


def _describe_state(view: JsonObject) -> str:
    decision = object_at(view, "decision")
    words = [text_at(view, "state")]
    if decision:
        words.append(f"by {text_at(decision, 'decidedBy')}")
        words.append(text_at(decision, "deviceName"))
        words.append(text_at(decision, "decidedAt"))
    delivery = text_at(view, "delivery")
    if delivery not in {"", "none"}:
        words.append(f"delivery {delivery}")
    return ", ".join(word for word in words if word)


def _describe_quorum(view: JsonObject) -> str:
    quorum = object_at(view, "quorum")
    need = quorum.get("need")
    steps, roles = _lists_at(view, "audience"), _lists_at(view, "audienceRoles")
    devices = texts_at(view, "audienceDevices")
    groups: list[str] = []
    for number, step in enumerate(steps):
        group = ", ".join(step) or "nobody"
        if number < len(roles) and roles[number]:
            group += f" (role {', '.join(roles[number])})"
        if number < len(devices) and devices[number] == "paired":
            group += " on paired devices"
        groups.append(group)
    words: list[str] = []
    if groups or (isinstance(need, int) and need > 1):
        required = "one approval required" if need == 1 else f"{need} approvals required"
        words.append(f"{required} of {', then also '.join(groups)}" if groups else required)
    if quorum.get("allowSelf") is False:
        words.append("not by the requester")
    return ", ".join(words)


def _lists_at(view: JsonObject, name: str) -> list[list[str]]:
    """The texts of a list of lists."""
    steps = view.get(name)
    return [
        [one for one in step if isinstance(one, str)] if isinstance(step, list) else []
        for step in (steps if isinstance(steps, list) else [])
    ]


def _describe_votes(view: JsonObject) -> str:
    return ", ".join(
        f"{text_at(vote, 'principal')}: {text_at(vote, 'optionId')}"
        for vote in objects_at(view, "votes")
    )


def _show(subject: JsonObject) -> str:
    return json.dumps(subject, ensure_ascii=False) if subject else ""


def _join(word: str, reasons: list[str]) -> str:
    return f"{word}: {'; '.join(reasons)}" if reasons else word

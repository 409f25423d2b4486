"""What policy is asked about: who wants what from whom, in the words that rules use."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias, assert_never

from passerelle.core.json import Json, JsonObject
from passerelle.core.payloads.approval import ActionKind, ActionType, Risk
from passerelle.permission_bridge.command_line import CommandLine, read_command
from passerelle.permission_bridge.options import WORDS, choose_options
from passerelle.permission_bridge.risk import judge_risk
from passerelle.permission_bridge.subject import show_subject

if TYPE_CHECKING:
    from passerelle.core.prompt import PeerPrompt
    from passerelle.permission_bridge.conditions import Values

Weighed: TypeAlias = tuple[Risk, tuple[str, ...]]

_NO_COMMAND = CommandLine(())


@dataclass(frozen=True, slots=True)
class InboundCall:
    """A caller wants an agent called."""

    caller: str
    agent: str


@dataclass(frozen=True, slots=True)
class OutboundDelegation:
    """We are about to send work to a peer."""

    peer: str


@dataclass(frozen=True, slots=True)
class PeerAsks:
    """A peer waits for a decision in the work of ``caller``.

    ``tags`` are the peer's in our configuration, ``declared`` is its own word for the risk. What the peer wants to do
    is what it says it wants to do; an answer binds it to that (P6).
    """

    peer: str
    action_type: ActionType
    destructive: bool = False
    declared: Risk | None = None
    tags: frozenset[str] = frozenset()
    kind: ActionKind = "permission"
    caller: str = ""
    is_allowable: bool = True
    """Whether policy could say yes: one may be chosen, and all that it would allow can be seen."""
    card_hash: str | None = None
    tool: str = ""
    args: JsonObject = field(default_factory=dict["str", "Json"])
    command: CommandLine = _NO_COMMAND
    path: str = ""
    host: str = ""


Case: TypeAlias = InboundCall | OutboundDelegation | PeerAsks


def read_prompt(
    prompt: PeerPrompt, caller: str, peer: str, tags: frozenset[str], card_hash: str | None
) -> PeerAsks:
    """The case of a prompt. Members of its subject: ``name``, ``arguments``, ``command``, ``path``, ``host``."""
    subject = prompt.subject or {}
    offered = choose_options(prompt, show_subject(prompt), answerable=False)
    offers_yes = any(option.kind == "allow_once" for option in offered)
    args = subject.get("arguments", subject.get("args"))
    return PeerAsks(
        peer=peer,
        action_type=prompt.action_type,
        destructive=prompt.destructive,
        declared=prompt.risk,
        tags=tags,
        kind=prompt.kind,
        caller=caller,
        is_allowable=prompt.kind not in WORDS and offers_yes,
        card_hash=card_hash,
        tool=_text(subject, "name"),
        args=args if isinstance(args, dict) else {},
        command=_find_command(subject.get("command")),
        path=_text(subject, "path"),
        host=_text(subject, "host"),
    )


def name_case(case: Case) -> str:
    """One line of ours for the record."""
    match case:
        case InboundCall(caller=caller, agent=agent):
            return f"inbound_call {caller} -> {agent}"
        case OutboundDelegation(peer=peer):
            return f"delegation -> {peer}"
        case PeerAsks(peer=peer, action_type=action_type):
            return f"{action_type} <- {peer}"
        case _:
            assert_never(case)


def weigh(case: Case) -> Weighed:
    """The risk, and why."""
    match case:
        case InboundCall():
            return judge_risk("inbound_call", destructive=False)
        case OutboundDelegation():
            return judge_risk("delegation", destructive=False)
        case PeerAsks():
            return judge_risk(
                case.action_type,
                destructive=case.destructive,
                tags=case.tags,
                declared=case.declared,
            )
        case _:
            assert_never(case)


def list_values(case: PeerAsks, risk: Risk, mode: str, now_ms: int) -> Values:
    """The fields of ``conditions.FIELDS``, each of them; what the case does not have is empty."""
    return {
        "action.type": case.action_type,
        "action.kind": case.kind,
        "action.tool": case.tool,
        "action.args": case.args,
        "action.argv": list(case.command.argv),
        "action.path": case.path,
        "action.host": case.host,
        "action.destructive": case.destructive,
        "action.risk": risk,
        "caller.name": case.caller,
        "mode": mode,
        "now": datetime.fromtimestamp(now_ms / 1_000, UTC),
        "peer.card_digest": case.card_hash or "",
        "peer.name": case.peer,
        "peer.tags": [*sorted(case.tags)],
    }


def _find_command(given: Json) -> CommandLine:
    match given:
        case str():
            return read_command(given)
        case list():
            return read_command([str(word) for word in given])
        case _:
            return _NO_COMMAND


def _text(subject: JsonObject, name: str) -> str:
    found = subject.get(name)
    return found if isinstance(found, str) else ""

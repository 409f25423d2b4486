"""What policy is asked about: who wants what from whom, in the words that rules use.

A command is read as its words, never as a text that begins with something: ``git`` as the beginning of a text would
also match ``git x; rm -rf ~``. So a command is read into the simple commands that it runs, each a list of words. What a
shell would work out first (substitution, variables, globs) cannot be read: it is *opaque*, and no rule that allows may
match it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never, cast

from passerelle.core.errors import InvalidInput
from passerelle.core.payloads.approval import ActionKind, ActionType, Risk
from passerelle.core.wire.canonical import digest
from passerelle.core.wire.json import Json, JsonObject
from passerelle.permission_bridge.approvers import judge_risk
from passerelle.permission_bridge.options import WORDS, choose_options
from passerelle.permission_bridge.subject import show_subject

if TYPE_CHECKING:
    from passerelle.core.approval.prompt import PeerPrompt
    from passerelle.core.facts import Scope
    from passerelle.permission_bridge.conditions import Values

LENGTH_LIMIT: Final = 8_192
"""Longer lines are not read: nobody could be shown them whole either."""
_OPERATORS: Final = "();<>|&\n"
_WORKED_OUT: Final = re.compile(r"[$`*?\[\]{}~!#\\]")
_ASSIGNS: Final = re.compile(r"[A-Za-z_]\w*\+?=")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What a command runs. ``opaque``: it runs more, or something else, than ``commands`` says."""

    commands: tuple[tuple[str, ...], ...]
    opaque: bool = False

    @property
    def argv(self) -> tuple[str, ...]:
        """The words of the only command; empty when there are several, or when they cannot be told."""
        return self.commands[0] if len(self.commands) == 1 and not self.opaque else ()

    def is_only(self, words: tuple[str, ...]) -> bool:
        """Whether it runs one command and nothing else, which begins with ``words``."""
        return bool(self.argv) and self.argv[: len(words)] == words

    def may_run(self, words: tuple[str, ...]) -> bool:
        """Whether one of its commands begins with ``words``, or it cannot be told."""
        return self.opaque or any(command[: len(words)] == words for command in self.commands)


def read_command(given: str | list[str]) -> CommandLine:
    """The command that ``given`` is: words as they are passed on, or a line for a shell."""
    if isinstance(given, list):
        return CommandLine((tuple(given),) if given else ())
    if len(given) > LENGTH_LIMIT:
        return CommandLine((), opaque=True)
    lexer = shlex.shlex(given, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace = " \t\r"
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        return CommandLine((), opaque=True)
    commands: list[list[str]] = [[]]
    for word in words:
        if word and set(word) <= set(_OPERATORS):
            commands.append([])
        else:
            commands[-1].append(word)
    found = tuple(tuple(command) for command in commands if command)
    # Anything of these outside quotes means more than it says; inside, refusing too much does no harm.
    is_opaque = _WORKED_OUT.search(given) or any(_ASSIGNS.match(words[0]) for words in found)
    return CommandLine(found, opaque=bool(is_opaque))


Weighed: TypeAlias = tuple[Risk, tuple[str, ...]]
About: TypeAlias = Literal["asks", "calls", "delegations", "commands"]
"""What a rule may speak about."""

_NO_COMMAND = CommandLine(())
_NO_ARGS: Final[JsonObject] = {}
_DIRECTIONS: Final = {
    "calls": "inbound",
    "delegations": "outbound",
    "commands": "control",
    "peer": "outbound",
    "worker": "local",
}


@dataclass(frozen=True, slots=True)
class InboundCall:
    """A caller wants an agent called."""

    caller: str
    agent: str
    tags: frozenset[str] = frozenset()
    """The agent's, in our configuration."""


@dataclass(frozen=True, slots=True)
class OutboundDelegation:
    """We are about to send work to a peer. ``args`` is what is sent: ``text`` and ``message``."""

    peer: str
    caller: str = ""
    tags: frozenset[str] = frozenset()
    card_hash: str | None = None
    args: JsonObject = field(default_factory=dict["str", "Json"])


@dataclass(frozen=True, slots=True)
class ControlCommand:
    """A caller wants something of the gateway itself; ``tool`` is the name of the command."""

    caller: str
    tool: str
    action_type: ActionType
    args: JsonObject = field(default_factory=dict["str", "Json"])
    peer: str = ""
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PeerAsks:
    """A peer, or a worker of this machine, waits for a decision in the work of ``caller``.

    ``tags`` are the peer's in our configuration, ``declared`` is its own word for the risk. What the peer wants to do
    is what it says it wants to do; an answer binds it to that.
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
    asker: Literal["peer", "worker"] = "peer"


Case: TypeAlias = InboundCall | OutboundDelegation | ControlCommand | PeerAsks


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
        case ControlCommand(caller=caller, tool=tool):
            return f"{tool} <- {caller}"
        case PeerAsks(peer=peer, action_type=action_type):
            return f"{action_type} <- {peer}"
        case _:
            assert_never(case)


def name_about(case: Case) -> About:
    """What a rule has to be about to speak about ``case``."""
    match case:
        case InboundCall():
            return "calls"
        case OutboundDelegation():
            return "delegations"
        case ControlCommand():
            return "commands"
        case PeerAsks():
            return "asks"
        case _:
            assert_never(case)


def name_type(case: Case) -> ActionType:
    """What would be done."""
    match case:
        case InboundCall():
            return "inbound_call"
        case OutboundDelegation():
            return "delegation"
        case ControlCommand() | PeerAsks():
            return case.action_type
        case _:
            assert_never(case)


def digest_subject(case: PeerAsks) -> str | None:
    """What a grant of exactly this is bound to: what is done with what. None where it has no canonical form."""
    command: list[Json] = [[*words] for words in case.command.commands]
    bound: JsonObject = {
        "type": case.action_type,
        "tool": case.tool,
        "args": case.args,
        "command": command,
        "opaque": case.command.opaque,
        "path": case.path,
        "host": case.host,
    }
    try:
        return digest(bound)
    except InvalidInput:
        return None


def weigh(case: Case) -> Weighed:
    """The risk, and why."""
    match case:
        case InboundCall():
            return judge_risk("inbound_call", destructive=False)
        case OutboundDelegation():
            return judge_risk("delegation", destructive=False)
        case ControlCommand():
            return judge_risk(case.action_type, destructive=False)
        case PeerAsks():
            return judge_risk(
                case.action_type,
                destructive=case.destructive,
                tags=case.tags,
                declared=case.declared,
            )
        case _:
            assert_never(case)


def list_values(case: Case, risk: Risk, mode: str, now_ms: int) -> Values:
    """The fields of ``conditions.FIELDS``, each of them; what the case does not have is empty."""
    asked = case if isinstance(case, PeerAsks) else None
    peer = case.agent if isinstance(case, InboundCall) else case.peer
    return {
        "action.type": name_type(case),
        "action.kind": asked.kind if asked else "",
        "action.tool": "" if isinstance(case, InboundCall | OutboundDelegation) else case.tool,
        "action.args": _NO_ARGS if isinstance(case, InboundCall) else case.args,
        "action.argv": list(asked.command.argv) if asked else [],
        "action.path": asked.path if asked else "",
        "action.host": asked.host if asked else "",
        "action.destructive": asked is not None and asked.destructive,
        "action.risk": risk,
        "caller.name": case.caller,
        "direction": _DIRECTIONS[asked.asker if asked else name_about(case)],
        "mode": mode,
        "now": datetime.fromtimestamp(now_ms / 1_000, UTC),
        "peer.card_digest": (
            "" if isinstance(case, InboundCall | ControlCommand) else case.card_hash
        )
        or "",
        "peer.name": peer,
        "peer.tags": [*sorted(case.tags)],
    }


def describe_case(case: Case, scope: Scope, evaluation_id: str, now_ms: int) -> JsonObject:
    """What hooks are told of a case: the fields of conditions, and where it belongs."""
    risk, _ = weigh(case)
    values = list_values(case, risk, "", now_ms)
    told = {name: one for name, one in values.items() if name not in {"mode", "now"}}
    return {
        "evaluationId": evaluation_id,
        "sessionId": scope.session_id,
        "threadId": scope.thread_id,
        "taskId": scope.task_id,
        "runId": scope.run_id,
        "case": cast("JsonObject", told),
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

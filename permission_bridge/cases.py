"""Policy cases: who wants to do what with which agent, in the terms that rules use.

A command is compared word by word, never as a text prefix: the prefix ``git`` would also match ``git x; rm -rf ~``. So
a command line is parsed into the simple commands that it runs, each a list of words. Whatever a shell would expand
first (substitutions, variables, globs) cannot be parsed: such a command is *opaque*, and no allow rule matches it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never, cast

from passerelle.a2a_mapping.members import text_at
from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
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
"""Longer lines are not parsed: an approver could not be shown the whole line either."""
_OPERATORS: Final = "();<>|&\n"
_WORKED_OUT: Final = re.compile(r"[$`*?\[\]{}~!#\\]")
_ASSIGNS: Final = re.compile(r"[A-Za-z_]\w*\+?=")


@frozen
class CommandLine:
    """The commands that a line runs. ``opaque``: it may run more, or something else, than ``commands`` lists."""

    commands: tuple[tuple[str, ...], ...]
    opaque: bool = False

    @property
    def argv(self) -> tuple[str, ...]:
        """The words of the only command; empty if there are several, or if the line is opaque."""
        return self.commands[0] if len(self.commands) == 1 and not self.opaque else ()

    def is_only(self, words: tuple[str, ...]) -> bool:
        """Whether the line runs exactly one command, and that begins with ``words``."""
        return bool(self.argv) and self.argv[: len(words)] == words

    def may_run(self, words: tuple[str, ...]) -> bool:
        """Whether one of the commands begins with ``words``, or the line is opaque."""
        return self.opaque or any(command[: len(words)] == words for command in self.commands)


def read_command(given: str | list[str]) -> CommandLine:
    """Parses a command: a list of words as passed to exec, or a line for a shell."""
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
    # Outside quotes these characters are expanded by a shell. Inside quotes they are refused as well, which is safe.
    is_opaque = _WORKED_OUT.search(given) or any(_ASSIGNS.match(words[0]) for words in found)
    return CommandLine(found, opaque=bool(is_opaque))


Weighed: TypeAlias = tuple[Risk, tuple[str, ...]]
About: TypeAlias = Literal["asks", "calls", "delegations", "commands"]
"""The kinds of cases that a rule may apply to."""

_NO_COMMAND = CommandLine(())
_NO_ARGS: Final[JsonObject] = {}
_DIRECTIONS: Final = {
    "calls": "inbound",
    "delegations": "outbound",
    "commands": "control",
    "peer": "outbound",
    "worker": "local",
}


@frozen
class InboundCall:
    """A caller calls an agent."""

    caller: str
    agent: str
    tags: frozenset[str] = frozenset()
    """The agent's configured tags."""


@frozen
class OutboundDelegation:
    """The gateway is about to send work to an agent. ``args`` has what is sent: ``text`` and ``message``."""

    peer: str
    caller: str = ""
    tags: frozenset[str] = frozenset()
    card_hash: str | None = None
    args: JsonObject = field(default_factory=dict["str", "Json"])


@frozen
class ControlCommand:
    """A caller sends a command to the gateway; ``tool`` is the name of the command."""

    caller: str
    tool: str
    action_type: ActionType
    args: JsonObject = field(default_factory=dict["str", "Json"])
    peer: str = ""
    tags: frozenset[str] = frozenset()


@frozen
class PeerAsks:
    """An agent, or a worker on this machine, waits for a decision in the work of ``caller``.

    ``tags`` are the agent's configured tags, ``declared`` is its own risk rating. The intended action is what the agent
    reports; the decision binds the agent to that.
    """

    peer: str
    action_type: ActionType
    destructive: bool = False
    declared: Risk | None = None
    tags: frozenset[str] = frozenset()
    kind: ActionKind = "permission"
    caller: str = ""
    is_allowable: bool = True
    """Whether policy could allow it: there is an allow option, and the whole content can be shown."""
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
    """The case of a prompt. Its subject has ``name``, ``arguments``, ``command``, ``path`` and ``host``."""
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
        tool=text_at(subject, "name"),
        args=args if isinstance(args, dict) else {},
        command=_find_command(subject.get("command")),
        path=text_at(subject, "path"),
        host=text_at(subject, "host"),
    )


def name_case(case: Case) -> str:
    """A one-line description of the case for the record."""
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
    """The kind of case that a rule must apply to in order to match ``case``."""
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
    """The action type of the case."""
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
    """The digest that a grant for exactly this action is bound to; None if the case has no canonical form."""
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
    """The risk and its reasons."""
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
    """The values of all ``conditions.FIELDS``; a field that the case does not have is empty."""
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
    """The input of hooks about a case: the fields of conditions and the ids of its scope."""
    risk, _ = weigh(case)
    values = list_values(case, risk, "", now_ms)
    shown = {name: one for name, one in values.items() if name not in {"mode", "now"}}
    return {
        "evaluationId": evaluation_id,
        "sessionId": scope.session_id,
        "threadId": scope.thread_id,
        "taskId": scope.task_id,
        "runId": scope.run_id,
        "case": cast("JsonObject", shown),
    }


def _find_command(given: Json) -> CommandLine:
    match given:
        case str():
            return read_command(given)
        case list():
            return read_command([str(word) for word in given])
        case _:
            return _NO_COMMAND

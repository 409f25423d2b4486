"""Cases as recorded with their evaluation, so that other rules can be tried on real requests.

A case that is too large for a fact is not recorded. A replay applies the recorded verdicts of hooks and the classifier
again; it ignores the grants and the mode of that time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, cast

import orjson

from passerelle.core.payloads.approval import ActionKind, ActionType, Risk
from passerelle.core.wire.json import Json, JsonObject
from passerelle.permission_bridge.cases import (
    Case,
    CommandLine,
    ControlCommand,
    InboundCall,
    OutboundDelegation,
    PeerAsks,
    name_about,
)
from passerelle.permission_bridge.policy import PolicyFacts, SourceVerdict, evaluate

if TYPE_CHECKING:
    from passerelle.core.payloads.approval import PermissionEvaluated
    from passerelle.permission_bridge.policy import Evaluation, EvaluationSource, Verdict
    from passerelle.permission_bridge.rules import Policy

CASE_LIMIT_BYTES: Final = 4_096
_CONSULTED: Final = frozenset({"hook", "classifier"})


def state_case(case: Case) -> JsonObject | None:
    """The case in its recorded form; None if it is too large."""
    stated: JsonObject = {"about": name_about(case), "caller": case.caller}
    tags: list[Json] = [*sorted(case.tags)]
    match case:
        case InboundCall():
            stated |= {"agent": case.agent, "tags": tags}
        case OutboundDelegation():
            text = case.args.get("text")
            stated |= {"peer": case.peer, "tags": tags, "card": case.card_hash, "text": text}
        case ControlCommand():
            stated |= {"tool": case.tool, "type": case.action_type, "args": case.args}
        case PeerAsks():
            stated |= _state_ask(case, tags)
    try:
        is_small = len(orjson.dumps(stated)) <= CASE_LIMIT_BYTES
    except (orjson.JSONEncodeError, TypeError):
        return None
    return stated if is_small else None


def _state_ask(case: PeerAsks, tags: list[Json]) -> JsonObject:
    commands: list[Json] = [[*words] for words in case.command.commands]
    return {
        "peer": case.peer,
        "asker": case.asker,
        "type": case.action_type,
        "kind": case.kind,
        "destructive": case.destructive,
        "declared": case.declared,
        "tags": tags,
        "allowable": case.is_allowable,
        "card": case.card_hash,
        "tool": case.tool,
        "args": case.args,
        "commands": commands,
        "opaque": case.command.opaque,
        "path": case.path,
        "host": case.host,
    }


def read_stated(stated: JsonObject) -> Case:
    """Parses a recorded case."""
    caller, tags = str(stated["caller"]), frozenset(cast("list[str]", stated.get("tags", [])))
    match stated["about"]:
        case "calls":
            return InboundCall(caller, str(stated["agent"]), tags)
        case "delegations":
            args: JsonObject = {"text": stated.get("text")}
            card = cast("str | None", stated.get("card"))
            return OutboundDelegation(str(stated["peer"]), caller, tags, card, args)
        case "commands":
            args = cast("JsonObject", stated["args"])
            kind = cast("ActionType", stated["type"])
            return ControlCommand(caller, str(stated["tool"]), kind, args)
        case _:
            return _read_ask(stated, caller, tags)


def _read_ask(stated: JsonObject, caller: str, tags: frozenset[str]) -> PeerAsks:
    commands = cast("list[list[str]]", stated["commands"])
    return PeerAsks(
        peer=str(stated["peer"]),
        action_type=cast("ActionType", stated["type"]),
        destructive=stated["destructive"] is True,
        declared=cast("Risk | None", stated["declared"]),
        tags=tags,
        kind=cast("ActionKind", stated["kind"]),
        caller=caller,
        is_allowable=stated["allowable"] is True,
        card_hash=cast("str | None", stated["card"]),
        tool=str(stated["tool"]),
        args=cast("JsonObject", stated["args"]),
        command=CommandLine(
            tuple(tuple(words) for words in commands), opaque=stated["opaque"] is True
        ),
        path=str(stated["path"]),
        host=str(stated["host"]),
        asker=cast("Literal['peer', 'worker']", stated["asker"]),
    )


def judge_again(recorded: PermissionEvaluated, policy: Policy, at_ms: int) -> Evaluation | None:
    """Evaluates a recorded case under another policy; None if the case was not recorded."""
    if recorded.case is None:
        return None
    opinions = tuple(
        SourceVerdict(
            cast("EvaluationSource", one.source),
            cast("Verdict", one.verdict),
            one.ref or "",
            one.ref,
        )
        for one in recorded.trail
        if one.source in _CONSULTED
    )
    facts = PolicyFacts(
        recorded.evaluation_id, may_call=True, is_configured=True, opinions=opinions
    )
    return evaluate(read_stated(recorded.case), facts, at_ms, policy)

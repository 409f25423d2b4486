"""Rules that are edited at runtime: parsed, and layered over the configured policy.

Edited rules are evaluated together with the configured ones: deny beats ask beats allow across both, so an edited rule
cannot lift a configured deny or ask. They cannot set approvers, hooks or a mode. If edited rules cannot be parsed,
every case is denied until they can.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import InvalidInput
from passerelle.core.policy.edited_rules import BYTES_LIMIT, RULE_LIMIT
from passerelle.core.wire.canonical import digest
from passerelle.core.wire.codec import to_bytes
from passerelle.permission_bridge.conditions import read_condition
from passerelle.permission_bridge.rules import (
    UNCONDITIONAL,
    Policy,
    Rule,
    is_unconditional,
    state_rule,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from passerelle.core.payloads.governance import StatedRule
    from passerelle.core.wire.json import Json


_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_REASON_LIMIT: Final = 200
_OWNER_LIMIT: Final = 256


def read_rules(stated: Sequence[StatedRule]) -> tuple[Rule, ...]:
    """Parses all rules of an edit.

    Raises:
        InvalidInput: one is invalid; the field contains the index of the rule, such as ``rules.2.when``.
    """
    for place, one in enumerate(stated):
        if is_unconditional(one.effect, one.when, one.argv):
            raise InvalidInput(f"rules.{place}.when", UNCONDITIONAL)
    return read_stored(stated)


def read_stored(stated: Sequence[StatedRule]) -> tuple[Rule, ...]:
    """The rules of a stored record, without those that ``name_skipped`` returns.

    Raises:
        InvalidInput: this version cannot parse one of them.
    """
    if len(stated) > RULE_LIMIT:
        raise InvalidInput("rules", f"are {len(stated)}; at most {RULE_LIMIT} are allowed")
    if sum(len(to_bytes(one)) for one in stated) > BYTES_LIMIT:
        raise InvalidInput("rules", f"take more than {BYTES_LIMIT} bytes")
    seen: set[tuple[str | None, str]] = set()
    for place, one in enumerate(stated):
        if (one.owner, one.name) in seen:
            raise InvalidInput(f"rules.{place}.name", f"{one.name!r} is a duplicate name")
        seen.add((one.owner, one.name))
    return tuple(
        _read(one, place)
        for place, one in enumerate(stated)
        if not is_unconditional(one.effect, one.when, one.argv)
    )


def name_skipped(stated: Iterable[StatedRule]) -> tuple[str, ...]:
    """Names of stored rules that allow without a condition: an older version accepted them; they are ignored."""
    return tuple(
        one.name if one.owner is None else f"{one.owner}/{one.name}"
        for one in stated
        if is_unconditional(one.effect, one.when, one.argv)
    )


def lay(configured: Policy, edited: Iterable[Rule]) -> Policy:
    """The configured policy with the edited rules added; the same policy and version if there are none."""
    rules = tuple(edited)
    if not rules:
        return configured
    stated: list[Json] = [state_rule(rule) for rule in rules]
    version = digest({"policy": configured.version, "edited": stated})
    return replace(configured, rules=(*configured.rules, *rules), version=version)


def distrust(configured: Policy, why: str) -> Policy:
    """The policy while the edited rules cannot be read: everything is denied."""
    version = digest({"policy": configured.version, "unsound": why})
    return replace(configured, unsound=why, version=version)


def _read(stated: StatedRule, place: int) -> Rule:
    for member, fault in _find_faults(stated):
        raise InvalidInput(f"rules.{place}.{member}", fault)
    try:
        condition = None if stated.when is None else read_condition(stated.when)
    except InvalidInput as wrong:
        raise InvalidInput(f"rules.{place}.when", wrong.reason) from None
    return Rule(
        name=stated.name,
        effect=stated.effect,
        condition=condition,
        argv=stated.argv,
        reason=stated.reason,
        about=frozenset(stated.about),
        grantable=stated.grantable,
        owner=stated.owner,
        edited=True,
    )


def _find_faults(stated: StatedRule) -> Iterator[tuple[str, str]]:
    """Faults of a rule, by the same limits as in the settings."""
    if not _NAME.fullmatch(stated.name):
        yield "name", "is 1 to 63 of a-z, 0-9, _ and -, with a letter or digit first"
    if not stated.about:
        yield "about", "is empty: the rule would never apply"
    if stated.reason is not None and len(stated.reason) > _REASON_LIMIT:
        yield "reason", f"is longer than {_REASON_LIMIT} characters"
    if stated.owner is not None and not 0 < len(stated.owner) <= _OWNER_LIMIT:
        yield "owner", f"is 1 to {_OWNER_LIMIT} characters"

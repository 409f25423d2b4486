"""Conditions of rules: one CEL expression, checked when the rule is loaded, evaluated without side effects.

An expression may use the names in ``FIELDS``; any other name is an error when the rule is loaded. Regular expressions
run in linear time. At most one loop is allowed, since a second one could be nested: so the cost of an expression grows
linearly with the size of the case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import Final, TypeAlias

import cel_expr_python.cel as cel  # noqa: PLR0402  the types are found by this form only

from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.wire.json import Json

Values: TypeAlias = Mapping[str, Json | datetime]

LENGTH_LIMIT: Final = 1_000
_TEXT: Final = cel.Type.STRING
_TEXTS: Final = cel.Type.List(cel.Type.STRING)

FIELDS: Final[Mapping[str, cel.Type]] = {
    "action.type": _TEXT,
    "action.kind": _TEXT,
    "action.tool": _TEXT,
    "action.args": cel.Type.Map(cel.Type.STRING, cel.Type.DYN),
    "action.argv": _TEXTS,
    "action.path": _TEXT,
    "action.host": _TEXT,
    "action.destructive": cel.Type.BOOL,
    "action.risk": _TEXT,
    "caller.name": _TEXT,
    "direction": _TEXT,
    "mode": _TEXT,
    "now": cel.Type.TIMESTAMP,
    "peer.card_digest": _TEXT,
    "peer.name": _TEXT,
    "peer.tags": _TEXTS,
}
"""The fields by name, with their types. A field that the case does not have is an empty text, list or map."""

_COMPLAINT: Final = re.compile(r"ERROR: <input>:(.+?)(?: \\(in container '.*'\\))?$", re.MULTILINE)
_LOOP: Final = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(")
_ENVIRONMENT: Final = cel.NewEnv(variables=dict(FIELDS))


@frozen
class Condition:
    """A checked expression. Two conditions are equal if their texts are equal."""

    text: str
    program: cel.Expression = field(repr=False, compare=False)

    def holds(self, values: Values) -> bool | None:
        """Whether the condition holds; None if it cannot be evaluated, for example because a member is missing."""
        try:
            found = self.program.eval(data=values).value()
        except RuntimeError:
            # An invalid text, such as half a surrogate pair: the sender must not influence the decision with it.
            return None
        return found if isinstance(found, bool) else None


def read_condition(text: str) -> Condition:
    """Parses and checks a condition.

    Raises:
        InvalidInput: it is too long, has a second loop, does not parse, uses an unknown field, or does not return a
            boolean; with the position in the text.
    """
    if len(text) > LENGTH_LIMIT:
        raise InvalidInput("when", f"is longer than {LENGTH_LIMIT} characters")
    if len(_LOOP.findall(text)) > 1:
        raise InvalidInput("when", "has more than one loop")
    try:
        program = _ENVIRONMENT.compile(text)
    except RuntimeError as refused:
        raise InvalidInput("when", _first_error(str(refused))) from None
    if program.return_type() != cel.Type.BOOL:
        raise InvalidInput("when", "must return true or false")
    return Condition(text, program)


def _first_error(report: str) -> str:
    """The first error of a compiler report, on one line: ``line:column: message``."""
    found = _COMPLAINT.search(report)
    return found[1] if found else report.splitlines()[0]

"""What a rule asks of a case: one expression in CEL, checked when it is read, evaluated without side effects.

The names an expression may use are ``FIELDS``; any other one is an error when the rule is read. Regular expressions
run in linear time. A second loop is refused, since it could stand inside the first: so the work of one expression grows
with the size of the case and no faster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeAlias

import cel_expr_python.cel as cel  # noqa: PLR0402  the types are found by this form only

from passerelle.core.errors import InvalidInput
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
"""By name, with its type. What a case does not have is empty: a text, a list or a map without content."""

_COMPLAINT: Final = re.compile(r"ERROR: <input>:(.+?)(?: \\(in container '.*'\\))?$", re.MULTILINE)
_LOOP: Final = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(")
_ENVIRONMENT: Final = cel.NewEnv(variables=dict(FIELDS))


@dataclass(frozen=True, slots=True)
class Condition:
    """An expression that was checked. Two are equal when their texts are."""

    text: str
    program: cel.Expression = field(repr=False, compare=False)

    def holds(self, values: Values) -> bool | None:
        """Whether it holds; None when it cannot be told, as of a member that is not there."""
        try:
            found = self.program.eval(data=values).value()
        except RuntimeError:
            # A text that is none, such as half a surrogate pair: whoever sends it decides nothing by it.
            return None
        return found if isinstance(found, bool) else None


def read_condition(text: str) -> Condition:
    """The condition that ``text`` states.

    Raises:
        InvalidInput: it is too long, has a second loop, does not parse, names a field that there is
            not, or gives something else than true or false; with the place in the text.
    """
    if len(text) > LENGTH_LIMIT:
        raise InvalidInput("when", f"is longer than {LENGTH_LIMIT} characters")
    if len(_LOOP.findall(text)) > 1:
        raise InvalidInput("when", "has more than one loop")
    try:
        program = _ENVIRONMENT.compile(text)
    except RuntimeError as refused:
        raise InvalidInput("when", _tell(str(refused))) from None
    if program.return_type() != cel.Type.BOOL:
        raise InvalidInput("when", "must give true or false")
    return Condition(text, program)


def _tell(report: str) -> str:
    """The first complaint of a compiler's report, on one line: ``line:column: what``."""
    found = _COMPLAINT.search(report)
    return found[1] if found else report.splitlines()[0]

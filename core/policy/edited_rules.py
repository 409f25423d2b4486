"""Rules that an operator puts beside those of the configuration while the gateway runs (EXT-3).

All of them are one record, beside the home session of whoever owns the gateway. They are replaced as a whole, by
whoever has seen those that are there: a revision is named, and another one is refused. Every edit is a fact of the home
session (``policy.changed``) with the rules as they are from then on, and this file folds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.errors import VersionMismatch
from passerelle.core.events import Event, Fact
from passerelle.core.payloads.governance import PolicyChanged, StatedRule
from passerelle.core.wire.record import change, record

if TYPE_CHECKING:
    from passerelle.core.facts import Scope

SCHEMA: Final = 1
RULE_LIMIT: Final = 200
BYTES_LIMIT: Final = 65_536
"""Of all rules together, as they are stored."""
UNEDITED: Final = 1
"""The revision before the first edit."""


@record
class EditedRules:
    """The rules as they were put last, and by whom. Its id is that of the home session of the gateway's owner."""

    schema: int
    updated_at: str
    first_seq: int
    last_seq: int
    revision: int
    edited_by: str
    rules: tuple[StatedRule, ...] = ()


def record_edit(
    state: EditedRules | None, scope: Scope, read_revision: int, edited: PolicyChanged
) -> list[Fact]:
    """The facts of an edit; ``edited`` has the rules, and gets its revision here.

    Raises:
        VersionMismatch: somebody else has edited them since they were read.
    """
    stands = UNEDITED if state is None else state.revision
    if read_revision != stands:
        raise VersionMismatch(read_revision, stands)
    return [Fact(scope, change(edited, revision=stands + 1))]


def evolve(state: EditedRules | None, event: Event) -> EditedRules | None:
    """The record after an event; total."""
    payload = event.fact.payload
    if not folds_rules(event) or not isinstance(payload, PolicyChanged):
        return state
    if state is not None and 0 < state.last_seq >= event.sequence > 0:
        return state
    return EditedRules(
        schema=SCHEMA,
        updated_at=event.timestamp,
        first_seq=event.sequence if state is None else state.first_seq,
        last_seq=event.sequence,
        revision=payload.revision or UNEDITED,
        edited_by=payload.actor,
        rules=payload.rules or (),
    )


FOLDED: Final[frozenset[type]] = frozenset({PolicyChanged})


def folds_rules(event: Event) -> bool:
    """Whether the event replaces the rules; a configuration that was read again has a fact without any."""
    payload = event.fact.payload
    return isinstance(payload, PolicyChanged) and payload.rules is not None

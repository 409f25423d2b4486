"""Rules that an operator adds to those of the configuration while the gateway runs (EXT-3).

All of them are one record, stored with the home session of the gateway's owner. They are replaced as a whole: an edit
names the revision that it read, and is refused if another one is stored. Every edit is a fact of the home session
(``policy.changed``) with all rules after it; this module folds them.
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
"""Stored size limit of all rules together."""
UNEDITED: Final = 1
"""The revision before the first edit."""


@record
class EditedRules:
    """The current rules and their last editor. Its id is that of the home session of the gateway's owner."""

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
        VersionMismatch: the rules were edited since they were read.
    """
    current = UNEDITED if state is None else state.revision
    if read_revision != current:
        raise VersionMismatch(read_revision, current)
    return [Fact(scope, change(edited, revision=current + 1))]


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
    """Whether the event replaces the rules; a reloaded configuration has a fact without any."""
    payload = event.fact.payload
    return isinstance(payload, PolicyChanged) and payload.rules is not None

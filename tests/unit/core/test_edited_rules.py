"""The record of edited rules: one edit after another, and a replay that gives it again."""

from __future__ import annotations

import pytest

from passerelle.core.errors import VersionMismatch
from passerelle.core.events import Event, Fact
from passerelle.core.facts import Scope
from passerelle.core.machine import find_targets, replay
from passerelle.core.payloads.governance import PolicyChanged, StatedRule
from passerelle.core.policy.edited_rules import (
    UNEDITED,
    EditedRules,
    evolve,
    folds_rules,
    record_edit,
)
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.times import format_ms
from tests.support.approvals import NOW_MS, make_id

HOME = make_id("se")
DENY = StatedRule("no-drop", "deny", when="action.tool == 'drop'")
ASK = StatedRule("mine", "ask", owner="ada")


def edit(state: EditedRules | None, read: int, *rules: StatedRule, actor: str = "ada") -> Event:
    changed = PolicyChanged("rules", actor, "sha256:n", previous="sha256:o", rules=rules)
    (fact,) = record_edit(state, Scope(HOME), read, changed)
    number = 2 if state is None else state.last_seq + 3
    return Event(make_id("ev", number), format_ms(NOW_MS + number), "rt", fact, number)


@pytest.mark.requirement("EXT-3")
def test_edit_replaces_all_rules_and_counts_the_revision_up() -> None:
    first = evolve(None, edit(None, UNEDITED, DENY, ASK))
    assert first is not None
    assert (first.revision, first.rules, first.edited_by) == (2, (DENY, ASK), "ada")
    second = evolve(first, edit(first, 2, actor="eve"))
    assert second is not None
    assert (second.revision, second.rules, second.edited_by) == (3, (), "eve")
    assert (second.first_seq, second.last_seq) == (2, 5)


def test_edit_over_rules_that_were_not_read_is_refused() -> None:
    state = evolve(None, edit(None, UNEDITED, DENY))
    for read in (UNEDITED, 3):
        with pytest.raises(VersionMismatch) as refused:
            edit(state, read, ASK)
        assert refused.value.details == {"expected": read, "actual": 2}


def test_replay_gives_the_rules_byte_for_byte_and_a_doubled_event_changes_nothing() -> None:
    events, state = list[Event](), None
    for rules in ((DENY,), (), (ASK, DENY)):
        events.append(edit(state, UNEDITED + len(events), *rules))
        state = evolve(state, events[-1])
    assert state is not None
    assert evolve(state, events[1]) is state
    ((ref, replayed),) = replay(events).items()
    assert to_bytes(replayed) == to_bytes(state)
    assert from_bytes(EditedRules, to_bytes(state)) == state
    assert find_targets(events[0]) == [ref]


def test_configuration_that_is_read_again_leaves_the_edited_rules_alone() -> None:
    told = PolicyChanged("rules", "configuration", "sha256:n", mode="auto")
    event = Event(make_id("ev"), format_ms(NOW_MS), "rt", Fact(Scope(HOME), told), 7)
    assert not folds_rules(event)
    assert find_targets(event) == []
    assert evolve(None, event) is None

"""Traces of callers: what is read as one, and what is propagated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.events import Fact
from passerelle.core.facts import Scope
from passerelle.core.payloads.conversation import TurnCompleted
from passerelle.core.wire.trace import (
    SPAN_BITS,
    SPAN_ID,
    STATE_LIMIT,
    TRACE_ID,
    Trace,
    read_trace,
    stamp,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_trace_of_a_caller_is_read_and_written_as_it_was() -> None:
    trace = read_trace(PARENT, "vendor=1,other=2")
    assert trace == Trace(TRACE, SPAN, "01", "vendor=1,other=2")
    assert trace is not None
    assert trace.parent == PARENT
    assert (trace.parent[TRACE_ID], trace.parent[SPAN_ID]) == (TRACE, SPAN)


@pytest.mark.parametrize(
    "parent",
    [
        None,
        "",
        "x",
        PARENT.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}",
        f"{PARENT}-more",
        f"{PARENT}\r\nX-Evil: 1",
    ],
)
def test_invalid_trace_parent_is_ignored(parent: str | None) -> None:
    assert read_trace(parent, "vendor=1") is None


def test_trace_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    trace = read_trace(f"01-{TRACE}-{SPAN}-01-more")
    assert trace is not None
    assert trace.parent == PARENT


@pytest.mark.parametrize("state", ["", "  ", "a=\r\nb", "x" * (STATE_LIMIT + 1)])
def test_state_that_cannot_travel_is_dropped_and_the_trace_stays(state: str) -> None:
    assert read_trace(PARENT, state) == Trace(TRACE, SPAN, "01")


@given(st.integers(0, 2**SPAN_BITS - 1))
def test_own_span_is_a_valid_trace_parent(drawn: int) -> None:
    ours = Trace(TRACE, SPAN, "00", "v=1").descend(drawn)
    assert read_trace(ours.parent, ours.state) == ours
    assert (ours.trace_id, ours.flags, ours.state) == (TRACE, "00", "v=1")


def test_facts_are_stamped_unless_they_belong_to_another_trace() -> None:
    trace = Trace(TRACE, SPAN, "01")
    plain, other = Scope("ses_1"), Scope("ses_1", trace_id="t", span_id="s")
    made = stamp([Fact(scope, TurnCompleted(answer="message")) for scope in (plain, other)], trace)
    assert [(fact.scope.trace_id, fact.scope.span_id) for fact in made] == [
        (TRACE, SPAN),
        ("t", "s"),
    ]

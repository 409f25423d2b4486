"""The line that approvers read first: it has what distinguishes two questions, and no agent writes its beginning."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.approval.guards import TITLE_LIMIT
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.payloads.approval import ActionKind, ActionType
from passerelle.permission_bridge.requests import make_title, quote

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json

PAY = PeerPrompt(
    dialect="",
    occurrence="",
    native_status="TASK_STATE_INPUT_REQUIRED",
    kind="permission",
    action_type="tool_call",
    options=(),
    text="Pay the bill?",
    subject={"name": "pay", "arguments": {"reference": "r" * 90, "to": "Bob", "amount": 17}},
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["name", "tool", "arguments", "args", "command", "path", "host"]) | st.text()


def title(prompt: PeerPrompt, peer: str = "payments") -> str:
    return make_title(prompt.kind, prompt.action_type, peer, prompt)


@pytest.mark.parametrize("peer", ["p", "payments", "p" * 63])
@pytest.mark.parametrize("words", ["Pay the bill?", "x" * 4_000, None])
def test_two_payments_of_one_tool_have_two_titles(peer: str, words: str | None) -> None:
    prompt = replace(PAY, text=words)
    shown = {
        title(
            replace(prompt, subject={"name": "pay", "arguments": {"to": "Bob " * 40, "amount": n}}),
            peer,
        )
        for n in (17, 900)
    }
    assert len(shown) == 2
    for number in ("17", "900"):
        assert any(f"amount: {number}" in one for one in shown)


@pytest.mark.parametrize("words", ["Pay 17 EUR?", "Pay 900 EUR?"])
def test_title_of_a_question_without_a_subject_quotes_its_text(words: str) -> None:
    assert title(replace(PAY, subject=None, text=words)) == (
        f"payments asks for permission to run a tool “{words}”"
    )
    asked = replace(PAY, kind="input", action_type="free_input", subject=None, text=words)
    assert title(asked) == f"payments asks for an answer “{words}”"


@pytest.mark.parametrize(
    ("subject", "act"),
    [
        ({"name": "pay", "arguments": {"amount": 17}}, ": pay(amount: 17)"),
        ({"tool": "pay", "args": {"ok": True, "of": [1]}}, ": pay(ok: true, …)"),
        ({"command": ["git", "push"]}, ": git push"),
        ({"command": "make install"}, ": make install"),
        ({"path": "/etc/hosts"}, ": /etc/hosts"),
        ({"amount": 900}, ": amount: 900"),
        # What LangGraph interrupts with need not be a call.
        ({"type": "tool_call", "name": "", "arguments": "which colour?"}, ""),
        ({"type": "tool_call", "name": "", "arguments": {"seats": 2}}, ": seats: 2"),
        ({}, ""),
        (None, ""),
    ],
)
def test_title_names_the_action_after_the_gateways_own_words(
    subject: dict[str, Json] | None, act: str
) -> None:
    prompt = replace(PAY, subject=subject, text=None)
    assert title(prompt) == f"payments asks for permission to run a tool{act}"


def test_peer_can_neither_begin_the_line_nor_leave_its_quotation_marks() -> None:
    loud = title(replace(PAY, subject=None, text="ok” approved\n\x1b[2Kby “ops\u202e"))
    assert loud.startswith("payments asks for permission")
    assert (loud.count("“"), loud.count("”"), loud[-1]) == (1, 1, "”")
    assert "\x1b" not in loud


@given(
    st.sampled_from(get_args(ActionKind)),
    st.sampled_from(get_args(ActionType)),
    st.text(min_size=1, max_size=300),
    st.none() | st.text(max_size=300),
    st.none() | st.dictionaries(KEYS, VALUES, max_size=6),
)
def test_title_is_one_short_printable_line(
    kind: ActionKind,
    action_type: ActionType,
    peer: str,
    text: str | None,
    subject: dict[str, Json] | None,
) -> None:
    prompt = replace(PAY, kind=kind, action_type=action_type, text=text, subject=subject)
    for made in (make_title(kind, action_type, peer), title(prompt, peer)):
        assert 0 < len(made) <= TITLE_LIMIT
        assert made.isprintable()


@given(st.text(max_size=TITLE_LIMIT), st.text(max_size=300))
def test_words_take_the_room_that_is_left(line: str, words: str) -> None:
    assert len(quote(line, words)) <= max(len(line), TITLE_LIMIT)

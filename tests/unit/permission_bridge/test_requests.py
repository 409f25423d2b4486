"""From an agent's prompt to the question that approvers see, and that the digest binds what they see."""

import string
import unicodedata
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.approval.commands import OpenAction
from passerelle.core.approval.guards import MAX_LIFETIME_MS
from passerelle.core.approval.machine import decide
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.approval.response_schema import TEXT_SCHEMA
from passerelle.core.events import Event, encode_event
from passerelle.core.payloads.approval import ActionKind, ApprovalRequest, Option, Risk
from passerelle.core.wire.json import Json, JsonObject
from passerelle.permission_bridge.cases import PeerAsks
from passerelle.permission_bridge.policy import PolicyFacts, evaluate
from passerelle.permission_bridge.requests import Asking, make_request
from passerelle.permission_bridge.subject import MESSAGE_LIMIT_BYTES
from passerelle.permission_bridge.views import compute_digest, render_view
from tests.support.approvals import ALLOW, NOW_MS, OWNER, REJECT, SCOPE, Stream, make_id

MINUTE_MS = 60_000
ALWAYS = Option("always", "Always", "allow_always")
ASKING = Asking(
    action_id=make_id("act"),
    owner=OWNER.key,
    tenant=OWNER.tenant,
    principal=OWNER.id,
    peer="payments",
    scope=SCOPE,
    card_hash="sha256:card",
)
PROMPT = PeerPrompt(
    dialect="permission",
    occurrence="o" * 64,
    native_status="TASK_STATE_INPUT_REQUIRED",
    kind="permission",
    action_type="tool_call",
    options=(ALLOW, REJECT),
    native_id="n1 1 sha256:x",
    message_id="m1",
    text="Pay 42 to Bob?",
    subject={"tool": "pay", "args": {"amount": 42, "to": "Bob"}},
)
WORDS = replace(PROMPT, kind="input", action_type="free_input", options=(), subject=None)


def ask(
    prompt: PeerPrompt = PROMPT, asking: Asking = ASKING, now_ms: int = NOW_MS
) -> ApprovalRequest:
    subject = PeerAsks(
        asking.peer, prompt.action_type, destructive=prompt.destructive, declared=prompt.risk
    )
    return make_request(
        prompt, asking, evaluate(subject, PolicyFacts(make_id("eval")), now_ms), now_ms
    )


def kinds(request: ApprovalRequest) -> list[str]:
    return [option.kind for option in request.options]


@pytest.mark.requirement("EVC-10", "ID-9")
def test_a_prompt_becomes_a_question_that_can_be_opened() -> None:
    request = ask()
    assert decide(None, OpenAction(request, SCOPE), NOW_MS)
    assert request.title == (
        "payments asks for permission to run a tool: pay(amount: 42, to: Bob) “Pay 42 to Bob?”"
    )
    assert request.options == (ALLOW, REJECT)
    assert (request.risk, request.on_timeout) == ("medium", "reject")
    assert request.expires_ms == NOW_MS + 60 * MINUTE_MS
    assert request.remote is not None
    assert (request.remote.native_id, request.remote.occurrence) == ("n1 1 sha256:x", "o" * 64)
    assert request.origin.card_hash == "sha256:card"
    assert request.subject["type"] == "tool_call"
    assert request.subject["content"] == {"tool": "pay", "args": {"amount": 42, "to": "Bob"}}
    assert (request.subject["lossy"], request.subject["truncated"]) == (False, False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb", r"a\u{202e}b"),
        ("\x1b[2K\x1b[1A", r"\u{1b}[2K\u{1b}[1A"),
        ("pay\u200b\u2066", r"pay\u{200b}\u{2066}"),
        ("two\nlines\tand é", "two\nlines\tand é"),
        ("\u3164hidden", r"\u{3164}hidden"),
    ],
)
def test_words_of_a_peer_cannot_act_on_a_screen(text: str, shown: str) -> None:
    request = ask(replace(PROMPT, text=text, subject={text: [text]}))
    assert request.peer_message == shown
    assert request.subject["content"] == {shown: [shown]}


@pytest.mark.parametrize("text", [None, "", " \n"])
def test_a_silent_peer_has_no_message(text: str | None) -> None:
    request = ask(replace(PROMPT, text=text))
    assert request.peer_message is None
    assert "messageDigest" not in request.subject


class TestDigest:
    def test_a_device_computes_it_from_the_view_that_it_shows(self) -> None:
        stream = Stream()
        stream.open(ask())
        view = orjson.loads(orjson.dumps(render_view(stream.now)))
        assert compute_digest(view) == view["digest"] == ask().digest

    def test_forty_two_agrees_with_itself_as_a_float(self) -> None:
        whole = ask(replace(PROMPT, subject={"n": 42}))
        assert ask(replace(PROMPT, subject={"n": 42.0})).digest == whole.digest
        assert ask(replace(PROMPT, subject={"n": 43})).digest != whole.digest
        assert ask(replace(PROMPT, subject={"n": "42"})).digest != whole.digest

    @pytest.mark.parametrize(
        "changed",
        [
            replace(PROMPT, subject={"tool": "pay", "args": {"amount": 43, "to": "Bob"}}),
            replace(PROMPT, text="Pay 43 to Bob?"),
            replace(PROMPT, occurrence="p" * 64),
            replace(PROMPT, options=(REJECT, ALLOW)),
            replace(PROMPT, options=(replace(ALLOW, name="Deny"), REJECT)),
            replace(PROMPT, kind="confirmation"),
            replace(PROMPT, expires_ms=NOW_MS + 5),
        ],
    )
    def test_digest_changes_with_everything_that_an_approver_relies_on(
        self, changed: PeerPrompt
    ) -> None:
        assert ask(changed).digest != ask().digest

    @pytest.mark.parametrize(
        "asking",
        [
            replace(ASKING, action_id=make_id("act", 2)),
            replace(ASKING, peer="other"),
            replace(ASKING, card_hash="sha256:new"),
            replace(ASKING, scope=replace(SCOPE, run_id=make_id("run", 2))),
            replace(ASKING, scope=replace(SCOPE, task_id=make_id("task", 2))),
        ],
    )
    def test_digest_is_bound_to_action_run_and_agent(self, asking: Asking) -> None:
        assert ask(asking=asking).digest != ask().digest


class TestOptions:
    @pytest.mark.parametrize("number", [2**53, -(2**53), 2**53 + 1, 1e20, 10**40])
    def test_lost_digits_cannot_be_allowed(self, number: float) -> None:
        request = ask(replace(PROMPT, subject={"args": [{"amount": number}]}))
        assert kinds(request) == ["reject_once"]
        assert request.subject["lossy"] is True
        assert request.subject["content"] == {"args": [{"amount": str(number)}]}
        assert "a number may have lost digits" in request.risk_reasons
        assert decide(None, OpenAction(request, SCOPE), NOW_MS)

    def test_a_dialect_that_saw_lost_digits_is_believed(self) -> None:
        assert kinds(ask(replace(PROMPT, lossy=True))) == ["reject_once"]

    @pytest.mark.parametrize(
        "prompt",
        [
            replace(PROMPT, text="x" * (MESSAGE_LIMIT_BYTES)),
            replace(PROMPT, subject={"diff": "x" * 20_000}),
            replace(PROMPT, subject={"a\u200b": 1, r"a\u{200b}": 2}),
        ],
    )
    def test_truncated_subject_cannot_be_allowed(self, prompt: PeerPrompt) -> None:
        request = ask(prompt)
        assert kinds(request) == ["reject_once"]
        assert request.subject["truncated"] is True
        assert len(orjson.dumps(request.subject)) < 16_384

    def test_cut_text_states_its_full_length(self) -> None:
        message = ask(replace(PROMPT, text="x" * 9000)).peer_message
        assert message is not None
        assert message.endswith("x [the text is longer: 9000 characters]")

    def test_half_a_list_of_options_is_not_offered(self) -> None:
        many = tuple(replace(ALLOW, option_id=f"o{number}") for number in range(7))
        assert kinds(ask(replace(PROMPT, options=many))) == ["cancel"]

    def test_deep_nesting_is_cut_and_marked(self) -> None:
        deep: Json = "end"
        for _ in range(900):
            deep = [deep]
        request = ask(replace(PROMPT, subject={"deep": deep}))
        assert request.subject["truncated"] is True
        assert kinds(request) == ["reject_once"]

    def test_always_is_not_offered_without_grants(self) -> None:
        assert kinds(ask(replace(PROMPT, options=(ALLOW, ALWAYS, REJECT)))) == [
            "allow_once",
            "reject_once",
        ]

    def test_every_question_can_be_rejected_or_cancelled(self) -> None:
        assert kinds(ask(replace(PROMPT, options=(ALLOW,)))) == ["allow_once", "cancel"]
        assert kinds(ask(replace(PROMPT, options=()))) == ["cancel"]
        trap = replace(ALLOW, option_id="cancel", name="Cancel")
        assert kinds(ask(replace(PROMPT, options=(trap,)))) == ["cancel"]

    def test_names_of_options_are_harmless_and_their_ids_plain(self) -> None:
        odd = replace(REJECT, option_id="re ject\u202e")
        long = replace(ALLOW, name="Al\u202elow\n" + "w" * 100)
        [allow, cancel] = ask(replace(PROMPT, options=(long, odd, ALLOW))).options
        assert allow.name.startswith(r"Al\u{202e}low w")
        assert len(allow.name) == 40
        assert cancel.kind == "cancel"

    def test_words_are_answered_or_the_task_is_cancelled_and_nothing_is_approved(self) -> None:
        request = ask(replace(WORDS, options=(ALLOW, REJECT)))
        assert kinds(request) == ["reject_once", "answer"]
        plain = ask(WORDS)
        assert [option.option_id for option in plain.options] == ["answer", "cancel"]
        assert plain.response_schema == TEXT_SCHEMA
        assert plain.on_timeout == "keep_waiting"

    def test_an_answer_that_cannot_be_checked_is_not_offered(self) -> None:
        request = ask(replace(WORDS, response_schema={"type": "object", "allOf": []}))
        assert kinds(request) == ["cancel"]
        assert request.response_schema is None
        assert any("could not be validated" in reason for reason in request.risk_reasons)

    def test_a_form_that_is_too_large_is_not_offered(self) -> None:
        names: JsonObject = {f"name{number}" * 9: {"type": "string"} for number in range(32)}
        request = ask(replace(WORDS, response_schema={"type": "object", "properties": names}))
        assert kinds(request) == ["cancel"]


class TestExpiry:
    @pytest.mark.parametrize(
        ("risk", "minutes"), [("low", 60), ("medium", 60), ("high", 240), ("critical", 240)]
    )
    def test_lifetime_follows_from_the_risk(self, risk: Risk, minutes: int) -> None:
        assert ask(replace(PROMPT, risk=risk)).expires_ms == NOW_MS + minutes * MINUTE_MS

    def test_words_are_waited_for_as_long_as_anything_may_live(self) -> None:
        assert ask(WORDS).expires_ms == NOW_MS + MAX_LIFETIME_MS

    def test_a_delegation_has_a_day(self) -> None:
        prompt = replace(PROMPT, action_type="delegation")
        assert ask(prompt).expires_ms == NOW_MS + 24 * 60 * MINUTE_MS

    def test_a_peers_own_end_shortens_and_never_lengthens(self) -> None:
        assert ask(replace(PROMPT, expires_ms=NOW_MS + 5)).expires_ms == NOW_MS + 5
        assert ask(replace(PROMPT, expires_ms=NOW_MS + 10**10)).expires_ms == ask().expires_ms
        assert ask(replace(PROMPT, expires_ms=NOW_MS - 5)).expires_ms == NOW_MS + 1

    @pytest.mark.parametrize(
        ("kind", "on_timeout"),
        [
            ("permission", "reject"),
            ("confirmation", "reject"),
            ("input", "keep_waiting"),
            ("auth", "cancel_task"),
        ],
    )
    def test_no_timeout_allows(self, kind: ActionKind, on_timeout: str) -> None:
        assert ask(replace(PROMPT, kind=kind)).on_timeout == on_timeout


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(st.text(max_size=4), _JSON, max_size=3),
    st.text(max_size=40),
    st.lists(
        st.builds(
            Option,
            st.text(string.printable, max_size=4),
            st.text(max_size=9),
            st.sampled_from(
                ["allow_once", "allow_always", "reject_once", "reject_always", "answer", "cancel"]
            ),
        ),
        max_size=4,
    ),
    st.sampled_from(["permission", "input", "auth", "confirmation"]),
)
def test_whatever_a_peer_asks_can_be_opened_shown_and_refused(
    subject: JsonObject, text: str, options: list[Option], kind: ActionKind
) -> None:
    prompt = replace(PROMPT, subject=subject, text=text, options=tuple(options), kind=kind)
    request = ask(prompt)
    stream = Stream()
    stream.open(request)
    assert compute_digest(render_view(stream.now)) == request.digest
    assert {"reject_once", "cancel"} & set(kinds(request))
    shown = orjson.dumps(render_view(stream.now)).decode()
    assert all(letter.isprintable() or unicodedata.category(letter) == "Zs" for letter in shown)


@pytest.mark.parametrize("letter", ["x", '"', "\u202e", "\U0001f600", "\n", "é"])
def test_a_question_of_any_size_fits_into_a_fact(letter: str) -> None:
    options = tuple(Option(f"{number}" * 64, letter * 99, "allow_once") for number in range(6))
    for size in (10, 500, 1000, 2000, 5000, 100_000):
        prompt = replace(PROMPT, text=letter * size, subject={"t": letter * size}, options=options)
        request = ask(prompt, replace(ASKING, peer=letter * 200))
        [opened, *_] = decide(None, OpenAction(request, SCOPE), NOW_MS)
        event = Event(make_id("ev"), "2027-01-15T08:00:00.000Z", "rt", opened)
        assert len(encode_event(event).body) < 16 * 1024

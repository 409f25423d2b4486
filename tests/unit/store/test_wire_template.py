"""Templates: what is rendered is the call that would have been made, and where that cannot be there is no template."""

from __future__ import annotations

from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.store.connection import pack, unpack
from passerelle.store.wire_template import Example, make_wire_template, quote

ONE = (b"alpha-one", b"beta-one-and-only")
OTHER = (b"gamma-two", b"delta")
FREE = frozenset({0, 1})
WORDS = st.binary(max_size=30)


def write(name: bytes, text: bytes) -> tuple[bytes, ...]:
    """A call with two values: one is an argument twice, the other is inside an argument."""
    return b"100%", name, b'{"%b": "' + text + b'", "by": "' + name + b'"}', b""


def show(values: tuple[bytes, ...], arguments: tuple[bytes, ...]) -> Example:
    return Example(arguments, values)


@given(name=WORDS, text=WORDS)
def test_any_words_are_filled_in_as_they_would_be_written(name: bytes, text: bytes) -> None:
    template = make_wire_template(show(ONE, write(*ONE)), show(OTHER, write(*OTHER)), FREE)
    assert template is not None
    assert template.render((name, text)) == pack(*write(name, text))


@given(name=st.binary(min_size=9, max_size=9), text=WORDS)
def test_of_what_is_always_as_long_only_the_place_is_filled_in(name: bytes, text: bytes) -> None:
    template = make_wire_template(show(ONE, write(*ONE)), show(OTHER, write(*OTHER)), {1})
    assert template is not None
    assert template.render((name, text)) == pack(*write(name, text))


@pytest.mark.parametrize("name", [b"", b"shorter", b"longer than it ever was"])
def test_value_of_another_length_is_not_filled_in(name: bytes) -> None:
    template = make_wire_template(show(ONE, write(*ONE)), show(OTHER, write(*OTHER)), {1})
    assert template is not None
    assert template.render((name, b"any")) is None


def test_fixed_value_with_two_lengths_has_no_template() -> None:
    assert make_wire_template(show(ONE, write(*ONE)), show(OTHER, write(*OTHER)), {0}) is None


def test_of_two_values_that_begin_alike_each_keeps_its_own_places() -> None:
    def say(text: bytes) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        return (text[:4], text), (text, text[:4], text)

    one, other = say(b"longer than its title"), say(b"also some longer text")
    template = make_wire_template(show(*one), show(*other), FREE)
    assert template is not None
    assert template.render((b"t", b"text")) == pack(b"text", b"t", b"text")


@given(name=WORDS, text=WORDS, times=st.integers(1, 20), between=st.sampled_from([b"", b"%", b"'"]))
def test_a_value_is_filled_in_at_every_place(
    name: bytes, text: bytes, times: int, between: bytes
) -> None:
    def sing(name: bytes, text: bytes) -> tuple[bytes, ...]:
        fragment = name + between + text + between + name
        return fragment * times, fragment + b"once", b"so " + fragment, text + name, between

    template = make_wire_template(show(ONE, sing(*ONE)), show(OTHER, sing(*OTHER)), FREE)
    assert template is not None
    assert template.render((name, text)) == pack(*sing(name, text))


def test_a_value_that_does_not_occur_is_no_placeholder() -> None:
    template = make_wire_template(show(ONE, (ONE[0],)), show(OTHER, (OTHER[0],)), FREE)
    assert template is not None
    assert template.render((b"a", b"whatever")) == pack(b"a")


def measure(value: bytes) -> bytes:
    """How long it is."""
    return b"%d" % len(value)


def cut(value: bytes) -> bytes:
    """How it begins."""
    return value[:3]


def shout(value: bytes) -> bytes:
    """The same in another spelling."""
    return value.upper()


def repeat(value: bytes) -> bytes:
    """Twice or not at all."""
    return value * (len(value) % 2 * 2)


@pytest.mark.parametrize("derive", [measure, cut, shout, repeat])
def test_derived_value_has_no_template(
    derive: Callable[[bytes], bytes],
) -> None:
    one, other = (show((word,), (word, derive(word))) for word in (b"some-word", b"another-word"))
    assert make_wire_template(one, other, FREE) is None


def test_examples_without_a_placeholder_have_no_template() -> None:
    assert make_wire_template(show(ONE, (b"always",)), show(OTHER, (b"always",)), FREE) is None
    assert make_wire_template(show((b"",), (b"always",)), show((b"",), (b"always",)), FREE) is None


def test_equal_values_have_no_template() -> None:
    alike = (b"same", b"same")
    assert make_wire_template(show(alike, write(*alike)), show(OTHER, write(*OTHER)), FREE) is None


def test_a_value_that_may_be_part_of_a_constant_has_no_template() -> None:
    def say(word: bytes, size: bytes) -> Example:
        return show((word, size), (word, b"http://127.0.0.1:32819/", size))

    alike, other = say(b"some-word", b"3281"), say(b"another-word", b"3290")
    assert make_wire_template(alike, say(b"another-word", b"3281"), FREE) is None
    assert make_wire_template(alike, other, FREE) is None, (
        "the port is no placeholder of the other one"
    )
    template = make_wire_template(other, say(b"some-word", b"3300"), FREE)
    assert template is not None
    assert template.render((b"w", b"3281")) == pack(b"w", b"http://127.0.0.1:32819/", b"3281")


@given(st.lists(WORDS, min_size=1))
def test_a_call_is_taken_apart_into_what_it_was_made_of(arguments: list[bytes]) -> None:
    assert unpack(pack(*arguments)) == tuple(arguments)


def test_a_text_is_quoted_as_in_json() -> None:
    assert quote(['a "b"\n\\']) == [rb"a \"b\"\n\\"]


@given(st.lists(st.text() | st.text('",\n \\[]'), min_size=1))
def test_texts_are_quoted_each_by_itself(texts: list[str]) -> None:
    assert quote(texts) == [orjson.dumps(text)[1:-1] for text in texts]

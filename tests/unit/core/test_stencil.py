"""Stencils: what is filled in is what would have been written, and what cannot be filled in is no stencil."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.ids import Shard
from passerelle.core.stencil import (
    Example,
    RecordedIds,
    Wanted,
    cut_stencil,
    quote,
    write_number,
)

SHARD, ELSEWHERE = Shard(7), Shard(8)
ONE = (b"alpha-one", b"beta-one-and-only")
OTHER = (b"gamma-two", b"delta")
WORDS = st.binary(max_size=30).map(lambda raw: raw.replace(b"\0", b"%"))


def write(name: bytes, text: bytes) -> tuple[bytes, ...]:
    """What is written of two values: one stands twice, the other inside an argument."""
    return b"100%", name, b'{"%b": "' + text + b'", "by": "' + name + b'"}', b""


def show(values: tuple[bytes, ...], arguments: tuple[bytes, ...]) -> Example:
    return Example(arguments, values)


@given(name=WORDS, text=WORDS)
def test_any_words_are_filled_in_as_they_would_be_written(name: bytes, text: bytes) -> None:
    stencil = cut_stencil(show(ONE, write(*ONE)), show(OTHER, write(*OTHER)))
    assert stencil is not None
    assert stencil.fill((name, text)) == write(name, text)


def test_of_two_values_that_begin_alike_each_keeps_its_own_places() -> None:
    def say(text: bytes) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        return (text[:4], text), (text, text[:4], text)

    one, other = say(b"longer than its title"), say(b"also some longer text")
    stencil = cut_stencil(show(*one), show(*other))
    assert stencil is not None
    assert stencil.fill((b"t", b"text")) == (b"text", b"t", b"text")


def test_a_value_that_stands_nowhere_is_no_hole() -> None:
    stencil = cut_stencil(show(ONE, (ONE[0],)), show(OTHER, (OTHER[0],)))
    assert stencil is not None
    assert stencil.holes == {0}
    assert stencil.fill((b"a", b"whatever")) == (b"a",)


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
def test_what_depends_on_a_value_in_another_way_has_no_stencil(
    derive: Callable[[bytes], bytes],
) -> None:
    one, other = (show((word,), (word, derive(word))) for word in (b"some-word", b"another-word"))
    assert cut_stencil(one, other) is None


def test_without_a_single_hole_there_is_no_stencil() -> None:
    assert cut_stencil(show(ONE, (b"always",)), show(OTHER, (b"always",))) is None


def test_values_that_cannot_be_told_apart_have_no_stencil() -> None:
    alike = (b"same", b"same")
    assert cut_stencil(show(alike, write(*alike)), show(OTHER, write(*OTHER))) is None


def test_an_argument_with_the_mark_between_arguments_has_no_stencil() -> None:
    one, other = ((value[0], value[0] + b"\0") for value in (ONE, OTHER))
    assert cut_stencil(show(ONE, one), show(OTHER, other)) is None


def test_a_value_with_the_mark_between_arguments_is_refused() -> None:
    stencil = cut_stencil(show(ONE, write(*ONE)), show(OTHER, write(*OTHER)))
    assert stencil is not None
    with pytest.raises(ValueError, match="zero byte"):
        stencil.fill((b"a\0b", b""))


@dataclass(slots=True)
class Counted:
    """Ids that count, so that each is told from every other."""

    made: int = field(default=0)

    def mint(self, prefix: str, shard: Shard) -> str:
        self.made += 1
        return f"{prefix}_{shard.tag}{self.made}"

    def mint_all(self, prefixes: Sequence[str], shard: Shard) -> list[str]:
        return [self.mint(prefix, shard) for prefix in prefixes]

    def draw(self, bits: int) -> int:
        self.made += 1
        return self.made % (1 << bits)


def test_what_is_asked_of_chance_for_the_shard_can_be_asked_again() -> None:
    recorded = RecordedIds(Counted(), SHARD)
    recorded.mint("ev", SHARD)
    recorded.mint("acct", ELSEWHERE)
    recorded.draw(4)
    recorded.draw(64)
    assert recorded.asked == ["ev", 64]
    assert recorded.values == [b"ev_071", b"0000000000000004"]
    assert Wanted([64, None, *recorded.asked]).ask(Counted(), SHARD) == (
        b"0000000000000002",
        b"",
        b"ev_071",
        b"0000000000000003",
    )


def test_of_nothing_asked_for_nothing_is_made() -> None:
    assert Wanted([]).ask(Counted(), SHARD) == ()
    assert Wanted([None]).ask(Counted(), SHARD) == (b"",)


@pytest.mark.parametrize(
    ("drawn", "bits", "written"), [(255, 32, b"000000ff"), (1, 33, b"000000001")]
)
def test_a_number_is_written_with_all_its_digits(drawn: int, bits: int, written: bytes) -> None:
    assert write_number(drawn, bits) == written


def test_a_text_is_quoted_as_it_stands_in_json() -> None:
    assert quote('a "b"\n\\') == rb"a \"b\"\n\\"

"""Recorded random draws can be repeated, and are found in what was written."""

from __future__ import annotations

import pytest

from passerelle.core.ids import ORDINALS, REMOTE_CONTEXT, Shard, shard_of
from passerelle.core.mint_log import RecordedIds, form_number, mint_together
from tests.support.counted_ids import START_MS, CountedIds

SHARD, ELSEWHERE = Shard(7), Shard(8)


def test_ids_that_are_minted_together_differ_in_their_ordinals() -> None:
    recorded = RecordedIds(CountedIds(), SHARD, START_MS)
    first, elsewhere, second = (
        recorded.mint("ev", SHARD),
        recorded.mint("ev", ELSEWHERE),
        recorded.mint("task", SHARD),
    )
    asked, (stem,) = recorded.find_in(b"")
    assert (first, second) == (f"ev{stem}00", f"task{stem}01")
    assert (asked.find("ev"), asked.find("task")) == ("00", "01")
    assert [shard_of(one) for one in (first, elsewhere, second)] == [SHARD, ELSEWHERE, SHARD]
    assert asked.prefixes == ("ev", "task")


def test_recorded_draws_can_be_repeated() -> None:
    recorded = RecordedIds(CountedIds(drawn=0xABCDEF0123), SHARD, START_MS)
    assert [recorded.draw(bits) for bits in (4, 32, 40)] == [0x3, 0xCDEF0123, 0xABCDEF0123]
    asked, minted = recorded.find_in(b'{"mint":"cdef0123","at":3}')
    assert minted[1:] == ["cdef0123"], "what is written nowhere, or everywhere, is not asked again"
    again = mint_together(CountedIds(drawn=5), SHARD, START_MS, asked.numbers)
    assert again == [minted[0], "00000005"]


def test_a_context_at_an_agent_has_no_ordinal() -> None:
    recorded = RecordedIds(CountedIds(), SHARD, START_MS)
    contexts = [recorded.mint(REMOTE_CONTEXT, SHARD), recorded.mint(REMOTE_CONTEXT, SHARD)]
    assert recorded.contexts == contexts
    assert len(set(contexts)) == 2
    assert recorded.find_in(b"")[0].prefixes == ()


def test_ids_beyond_the_last_ordinal_are_minted_separately() -> None:
    recorded = RecordedIds(CountedIds(), SHARD, START_MS)
    minted = [recorded.mint("ev", SHARD) for _ in range(len(ORDINALS) + 2)]
    assert len(set(minted)) == len(ORDINALS) + 2
    assert {shard_of(one) for one in minted} == {SHARD}
    asked, (stem,) = recorded.find_in(b"")
    assert len(asked.prefixes) == len(ORDINALS)
    assert sorted(minted[:-2]) == minted[:-2], "ids of one prefix sort as they were asked for"
    assert [stem in one for one in minted[-3:]] == [True, False, False]


def test_letters_are_drawn_as_they_are_without_a_record() -> None:
    assert RecordedIds(CountedIds(), SHARD, START_MS).draw_letters() == "00000000000002"


@pytest.mark.parametrize(
    ("drawn", "bits", "written"), [(255, 32, "000000ff"), (1, 33, "000000001")]
)
def test_a_number_is_written_with_all_its_digits(drawn: int, bits: int, written: str) -> None:
    assert form_number(bits) % drawn == written

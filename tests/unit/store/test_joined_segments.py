"""Which segments are merged, the result, and how locators of merged segments are resolved."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.ids import Shard
from passerelle.store.archive.erased_frame import erase_frames, read_erased
from passerelle.store.archive.joined_segment import check_segment, join_segments, read_parts
from passerelle.store.archive.locator import MergedNumber, follow_numbers
from passerelle.store.archive.segment import PackedFrame, SegmentName, pack_segment
from passerelle.store.archive.segment_copies import SegmentCopy, find_covered
from passerelle.store.archive.segment_merge import MOST_BYTES, choose_segments
from tests.unit.store.test_archive_forms import read_notes

if TYPE_CHECKING:
    from passerelle.store.connection import RespValue

HOME = Shard(9)
RUNTIME = "rt_test"
TOMBSTONE = "09" + "ab" * 8
FRAMES = st.lists(st.binary(min_size=42, max_size=90), min_size=1, max_size=4)


def pack(frames: list[bytes], mark: int) -> tuple[SegmentName, bytes]:
    packed = [
        PackedFrame((f"ses_{mark}_{place}", f"task_{mark}_{place}"), frame, "00" * 9, place)
        for place, frame in enumerate(frames)
    ]
    content = pack_segment(HOME, RUNTIME, packed).content
    return name_of(content), content


def name_of(content: bytes) -> SegmentName:
    return SegmentName(hashlib.sha256(content).hexdigest(), len(content), HOME)


def join(segments: list[tuple[SegmentName, bytes]]) -> bytes:
    return join_segments(HOME, RUNTIME, segments, 1)


@given(st.lists(FRAMES, min_size=1, max_size=4))
def test_merged_segments_shift_each_frame_also_when_merged_twice(
    every: list[list[bytes]],
) -> None:
    segments = [pack(frames, mark) for mark, frames in enumerate(every)]
    once = join(segments)
    twice = join([(name_of(once), once), pack([b"a" * 50], 50)])
    [part, _] = check_segment(twice, name_of(twice), RUNTIME)
    assert (part.name, part.shift) == (name_of(once), 0)
    parts = read_parts(once)
    assert [part.name for part in parts] == [name for name, _ in segments]
    for (_, content), part, frames in zip(segments, parts, every, strict=True):
        for note, frame in zip(read_notes(content), frames, strict=True):
            at = note.offset + part.shift
            assert part.holds(at)
            assert [one.name for one in parts if one.holds(at)] == [part.name]
            for joined in (once, twice):
                assert joined[at : at + note.length] == frame
                assert note._replace(offset=at) in read_notes(joined)


def test_erased_frames_stay_erased_in_merged_segments() -> None:
    name, content = pack([b"a" * 60, b"b" * 60], 1)
    first, second = read_notes(content)
    erased = erase_frames(content, {first.offset: TOMBSTONE})
    joined = join([(name, erased), pack([b"c" * 60], 2)])
    assert [note.session for note in read_notes(joined)] == ["ses_1_1", "ses_2_0"]
    assert read_erased(joined[first.offset : first.offset + first.length]) is not None
    both = erase_frames(joined, {second.offset: TOMBSTONE})
    assert check_segment(both, name_of(both), RUNTIME) == read_parts(joined)
    assert [note.session for note in read_notes(both)] == ["ses_2_0"]


@pytest.mark.parametrize("place", [0, 9, 70, -60, -9, -1])
def test_a_byte_that_was_changed_is_not_merged(place: int) -> None:
    name, content = pack([b"a" * 60, b"b" * 60], 1)
    changed = bytearray(content)
    changed[place] ^= 1
    for damaged in (bytes(changed), content[:-1], content[1:], b""):
        with pytest.raises((ValueError, LookupError, TypeError)):
            join([(name, damaged)])


def test_another_segment_of_the_same_length_is_not_merged() -> None:
    name, _ = pack([b"a" * 60], 1)
    # A CRC may have a digit less.
    others = [pack([bytes([one]) * 60], 1) for one in range(32)]
    content = next(found for other, found in others if other.bytes == name.bytes)
    with pytest.raises(ValueError, match="its hash"):
        join([(name, content)])


def test_a_segment_of_another_store_or_place_is_not_merged() -> None:
    name, content = pack([b"a" * 60], 1)
    with pytest.raises(ValueError, match="whose it is"):
        check_segment(content, name, "rt_other")
    with pytest.raises(ValueError, match="whose it is"):
        check_segment(content, name._replace(home=Shard(1)), RUNTIME)


def make_names(*sizes: int) -> list[SegmentName]:
    return [SegmentName(f"{place:064x}", size, HOME) for place, size in enumerate(sizes)]


@given(st.lists(st.integers(200, MOST_BYTES), max_size=40))
def test_chosen_segments_fit_and_are_worth_a_merge(sizes: list[int]) -> None:
    names = make_names(*sizes)
    chosen = choose_segments(names)
    assert set(chosen) <= set(names)
    total = sum(one.bytes for one in chosen)
    assert total <= MOST_BYTES
    if chosen:
        assert len(chosen) >= 8 or total + 160 * len(chosen) >= MOST_BYTES // 2
        assert max(chosen).bytes < MOST_BYTES // 2


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([1000] * 7, 0),
        ([1000] * 8, 8),
        ([1000] * 7 + [9000], 8),
        ([1000] * 7 + [20_000], 0),
        ([1000] * 8 + [9000], 9),
        ([1000] * 8 + [900_000], 8),
        ([1_500_000] * 2, 2),
        ([1_500_000] * 9, 2),
        ([MOST_BYTES // 2] * 9, 0),
        ([], 0),
    ],
)
def test_a_few_wait_for_more_and_a_large_one_is_not_copied_for_them(
    sizes: list[int], count: int
) -> None:
    assert len(choose_segments(make_names(*sizes))) == count


def test_each_byte_is_copied_a_few_times() -> None:
    """A thousand segments of four kilobytes come one by one."""
    small, copied = list[SegmentName](), 0
    for number in range(1000):
        small.append(SegmentName(f"{number:064x}", 4096, HOME))
        while chosen := choose_segments(small):
            size = sum(one.bytes for one in chosen)
            copied += size
            small = [one for one in small if one not in chosen]
            small.append(SegmentName(f"{10_000 + copied:064x}", size, HOME))
    assert copied < 8 * 1000 * 4096
    assert len(small) < 20


def test_numbers_lead_on_to_those_that_are_named_and_no_further() -> None:
    merged: list[RespValue] = [
        b"1",
        b"4 0",
        b"2",
        b"4 100",
        b"4",
        b"7 50",
        b"5",
        b"6 9",
        b"8",
        b"8 0",
    ]
    assert follow_numbers({7}, merged) == {
        1: MergedNumber(7, 50),
        2: MergedNumber(7, 150),
        4: MergedNumber(7, 50),
    }
    # As when names were read before a merge, and numbers behind it.
    assert follow_numbers({4}, merged) == {1: MergedNumber(4, 0), 2: MergedNumber(4, 100)}
    assert follow_numbers({1, 2}, merged) == {}


def test_a_segment_is_covered_through_an_intermediate_copy() -> None:
    a, b, c, d = make_names(1, 2, 3, 4)
    copies = {a.sha256: [SegmentCopy(b, 0)], b.sha256: [SegmentCopy(c, 5)]}
    assert find_covered(copies, {c}, {a, b, d}) == {a, b}
    assert find_covered(copies, {c}, {a, d}) == set()
    assert find_covered(copies, {d}, {a, b}) == set()

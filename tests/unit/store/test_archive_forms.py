"""Frames and segments return what was packed, and refuse other bytes."""

from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.ids import Shard
from passerelle.store.archive.compression import zstd
from passerelle.store.archive.erased_frame import ErasedFrame, erase_frames, read_erased
from passerelle.store.archive.frame import MOST_PLAIN_BYTES, SessionFrame, pack_frame, read_frame
from passerelle.store.archive.locator import Locator
from passerelle.store.archive.sealed_frame import (
    SEAL_BYTES,
    FramePlace,
    KeyName,
    OwnerKey,
    open_frame,
    read_key_name,
    seal_frame,
)
from passerelle.store.archive.segment import (
    TRAILER,
    FrameNote,
    PackedFrame,
    Segment,
    pack_segment,
    read_footer,
    read_footer_size,
)
from passerelle.store.connection import pack

PLACE = FramePlace("rt_1", Shard(7))
NAME = KeyName(Shard(40), b"12345678")
HEAD = EntityRef(EntityKind.SESSION, "se_1")
words = st.binary(max_size=40) | st.sampled_from(
    [b"", b"\r\n", b"*1\r\n$1\r\n", b"entity", b"\x00"]
)
flat = st.lists(words, max_size=6)
frames = st.builds(
    SessionFrame,
    st.just("se_1"),
    st.dictionaries(
        st.sampled_from(
            [EntityRef(EntityKind.TASK, "task_1"), EntityRef(EntityKind.THREAD, "th_1")]
        ),
        flat,
    ).map(lambda others: {HEAD: [b"seq", b"1"], **others}),
    st.lists(st.tuples(words, flat), max_size=4),
    flat,
    flat,
)


@given(frame=frames)
def test_a_frame_is_read_as_it_was(frame: SessionFrame) -> None:
    assert read_frame(pack_frame(frame)) == frame


def make_key(name: KeyName = NAME) -> OwnerKey:
    return OwnerKey.of(name, AESGCM.generate_key(256))


KEY = make_key()


@given(packed=st.binary(max_size=200), cut=st.integers(0, 400), bit=st.integers(0, 7))
def test_a_sealed_frame_is_opened_whole_and_unchanged_or_not_at_all(
    packed: bytes, cut: int, bit: int
) -> None:
    sealed = seal_frame(packed, KEY, PLACE)
    assert read_key_name(sealed) == NAME
    assert open_frame(sealed, KEY, PLACE) == packed
    assert len(sealed) == len(packed) + SEAL_BYTES
    at = cut % len(sealed)
    other = sealed[:at] + bytes([sealed[at] ^ (1 << bit)]) + sealed[at + 1 :]
    for damaged in (sealed[:at], other):
        with pytest.raises(ValueError, match="no frame of this key and place"):
            open_frame(damaged, KEY, PLACE)


@pytest.mark.parametrize(
    ("key", "place"),
    [
        (make_key(), PLACE),
        (KEY, FramePlace("rt_2", Shard(7))),
        (KEY, FramePlace("rt_1", Shard(8))),
    ],
)
def test_a_sealed_frame_opens_with_no_other_key_and_at_no_other_place(
    key: OwnerKey, place: FramePlace
) -> None:
    with pytest.raises(ValueError, match="no frame of this key and place"):
        open_frame(seal_frame(b"packed", KEY, PLACE), key, place)


@pytest.mark.parametrize(
    "stored", [b"", b"\x01", b"\x02" + b"0" * 60, b"\x01\x40" + b"0" * 60, b"(\xb5/\xfd" * 20]
)
def test_text_that_is_no_sealed_frame_has_no_key_name(stored: bytes) -> None:
    with pytest.raises(ValueError, match="no "):
        read_key_name(stored)


def test_the_same_frame_is_sealed_otherwise_each_time() -> None:
    assert seal_frame(b"packed", KEY, PLACE) != seal_frame(b"packed", KEY, PLACE)


@pytest.mark.parametrize(
    "plain",
    [
        b"",
        b"rubbish",
        b":1\r\n",
        b"*0\r\n",
        pack("entity", "session", "se_1"),
        pack("session", "se_1"),
        pack("session", "se_1") + pack("entity", "session"),
        pack("session", "se_1") + pack("entity", "planet", "se_1"),
        pack("session", "se_1") + pack("entity", "session", "se_1", "v", "1"),
        pack("session", "se_1") + pack("tasks") + pack("targets"),
        pack("session", "se_1") + pack("moon", "se_1"),
    ],
)
def test_other_words_are_no_frame(plain: bytes) -> None:
    with pytest.raises(ValueError, match="no frame"):
        read_frame(zstd.compress(plain))


def test_a_frame_that_unpacks_to_more_than_any_session_is_not_unpacked() -> None:
    bomb = zstd.compress(b"0" * (MOST_PLAIN_BYTES + 1))
    assert len(bomb) < 1_000
    with pytest.raises(ValueError, match="no frame"):
        read_frame(bomb)


def test_a_segment_lists_the_places_of_its_frames() -> None:
    packed = [PackedFrame((f"se_{n}", f"task_{n}"), b"frame %d" % n, f"0{n}", n) for n in range(3)]
    segment = pack_segment(Shard(7), "rt_1", packed)
    for at, frame in zip(segment.places, packed, strict=True):
        assert segment.content[at.offset : at.offset + at.length] == frame.stored
        assert Locator.read(b"\x00\x00\x00\x05" + at.pack_rest()) == at._replace(number=5)
    end = len(segment.content) - TRAILER
    length = read_footer_size(segment.content[end:])
    footer = segment.content[end - length : end]
    assert read_footer(footer) == [
        FrameNote(frame.names, frame.key, at.offset, at.length, frame.at_ms)
        for frame, at in zip(packed, segment.places, strict=True)
    ]
    for rubbish in (
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"frames":[{}]}',
        b'{"frames":[{"names":[]}]}',
        footer[:-1],
    ):
        with pytest.raises(ValueError, match="no segment"):
            read_footer(rubbish)
    with pytest.raises(ValueError, match="no segment"):
        read_footer_size(segment.content[end - 1 : -1])


TOMBSTONE = "07" + "ab" * 8


def make_segment(sizes: list[int]) -> tuple[list[PackedFrame], Segment]:
    packed = [
        PackedFrame((f"se_{n}", f"task_{n}"), b"\x01" + bytes([n + 1]) * size, "28" * 9, n)
        for n, size in enumerate(sizes)
    ]
    return packed, pack_segment(Shard(7), "rt_1", packed)


def read_notes(content: bytes) -> list[FrameNote]:
    end = len(content) - TRAILER
    return read_footer(content[end - read_footer_size(content[end:]) : end])


@given(
    sizes=st.lists(st.integers(42, 300), min_size=1, max_size=5),
    gone=st.lists(st.sets(st.integers(0, 4)), min_size=1, max_size=3),
)
def test_frames_are_erased_and_all_else_stays_where_it_was(
    sizes: list[int], gone: list[set[int]]
) -> None:
    packed, segment = make_segment(sizes)
    before, erased = read_notes(segment.content), segment.content
    for some in gone:
        asked = {segment.places[n].offset: TOMBSTONE for n in some if n < len(sizes)}
        erased = erase_frames(erased, asked)
        assert erase_frames(erased, asked) == erased
    every = set[int]().union(*gone)
    assert len(erased) == len(segment.content)
    assert read_notes(erased) == [note for n, note in enumerate(before) if n not in every]
    for n, (frame, at) in enumerate(zip(packed, segment.places, strict=True)):
        stored = erased[at.offset : at.offset + at.length]
        if n in every:
            digest = hashlib.sha256(frame.stored).hexdigest()
            assert read_erased(stored) == ErasedFrame(TOMBSTONE, digest)
            assert f"se_{n}".encode() not in erased
        else:
            assert stored == frame.stored
            assert read_erased(stored) is None


@given(at=st.integers(0), bit=st.integers(0, 7))
def test_a_segment_with_a_changed_byte_in_a_frame_that_stays_is_not_written_again(
    at: int, bit: int
) -> None:
    _, segment = make_segment([60, 80, 70])
    _, stays, _ = segment.places
    at = stays.offset + at % stays.length
    content = bytearray(segment.content)
    content[at] ^= 1 << bit
    with pytest.raises(ValueError, match=f"the frame at {stays.offset} is damaged"):
        erase_frames(bytes(content), {segment.places[0].offset: TOMBSTONE})


def test_invalid_segment_or_unknown_frame_is_refused() -> None:
    _, segment = make_segment([60, 80])
    first = segment.places[0].offset
    for content, asked in (
        (segment.content, {first + 1: TOMBSTONE}),
        (segment.content[:-1], {first: TOMBSTONE}),
        (segment.content[8:], {first: TOMBSTONE}),
        (b"", {}),
        (segment.content, {first: "07"}),
        (make_segment([20])[1].content, {8: TOMBSTONE}),
    ):
        with pytest.raises(ValueError, match=r"no segment|damaged"):
            erase_frames(content, asked)


def test_a_hole_of_a_file_system_is_no_erased_frame() -> None:
    for stored in (b"", b"\0" * 60, b"\x02" * 20, b"\x02" + b"a" * 60):
        assert read_erased(stored) is None

"""What the oracles of hostile connections detect: each gets a fault that it must not let pass."""

from __future__ import annotations

import socket
from random import Random

import pytest

from tests.fuzz.connections import find_errors, find_growth
from tests.fuzz.slow_readers import CHUNKS, Slow
from tests.fuzz.wire import Pace, Wire, split


def say(*numbers: int) -> bytearray:
    return bytearray(b"".join(b'{"text":"%08dzz"}\n' % number for number in numbers))


def judge(read: bytearray, *, may_skip: bool = False) -> str:
    with socket.socket() as link:
        pace = Pace(Random(1))
        return Slow(
            "stream", Wire(link), pace, is_chunked=True, may_skip=may_skip, read=read
        ).judge()


def test_pieces_are_the_whole_and_the_same_for_a_seed() -> None:
    raw = bytes(range(256)) * 40

    pieces = list(split(raw, Random(3)))

    assert b"".join(pieces) == raw
    assert min(map(len, pieces)) == 1
    assert pieces == list(split(raw, Random(3)))


def test_reader_of_every_chunk_once_and_in_order_has_no_fault() -> None:
    assert not judge(say(*range(CHUNKS)))
    assert not judge(say(*range(CHUNKS)) + b'{"preview":"00000000zz"}')


@pytest.mark.parametrize("may_skip", [True, False])
def test_chunk_that_is_missing_or_repeated_in_silence_is_a_fault(*, may_skip: bool) -> None:
    for numbers in ([*range(CHUNKS - 1)], [0, *range(CHUNKS)], [*range(5), *range(6, CHUNKS)]):
        assert judge(say(*numbers), may_skip=may_skip)


def test_missing_chunks_are_allowed_only_after_a_gap() -> None:
    read = say(*range(5)) + b"event: gap\n" + say(*range(9, CHUNKS))

    assert not judge(read, may_skip=True)
    assert judge(read)
    assert judge(read + say(3), may_skip=True)


def test_log_lines_with_an_error_are_found() -> None:
    told = [
        '{"level":"error","event":"a2a.fault"}',
        '{"level":"info","exception":"Traceback (most recent call last)"}',
        "Segmentation fault",
    ]

    assert len(list(find_errors("\n".join(['{"level":"info"}', *told])))) == len(told)


def test_memory_that_grows_from_round_to_round_is_a_fault() -> None:
    assert list(find_growth([100_000_000, 105_000_000, 120_000_000]))
    assert not list(find_growth([100_000_000, 140_000_000, 109_000_000]))

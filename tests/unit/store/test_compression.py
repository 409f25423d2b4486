"""Frames are compressed with a shipped dictionary; those without one, or with an earlier one, can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from passerelle.store.archive import compression
from passerelle.store.archive.compression import (
    CURRENT,
    compress,
    decompress,
    read_dictionary,
    zstd,
)

_MOST: Final = 1 << 20
_SAID: Final = (
    b'{"taskId":"task_3a","type":"task.attempt.completed","nativeStatus":"TASK_STATE_COMPLETED"}'
)
_SHIPPED: Final = sorted(
    (Path(compression.__file__).parent / "dictionaries").iterdir(), key=lambda path: path.name
)


@pytest.mark.parametrize("plain", [_SAID, _SAID * 1000, b"\0", bytes(range(256)) * 9])
def test_compressed_data_is_decompressed(plain: bytes) -> None:
    stored = compress(plain)
    assert decompress(stored, _MOST) == plain
    assert zstd.get_frame_info(stored).dictionary_id == CURRENT


def test_a_short_text_of_events_takes_less_with_the_dictionary() -> None:
    assert len(compress(_SAID)) < len(zstd.compress(_SAID, 1)) * 0.8


def test_data_compressed_without_a_dictionary_is_decompressed() -> None:
    assert decompress(zstd.compress(_SAID, 1), _MOST) == _SAID


def test_a_dictionary_that_is_not_here_is_named() -> None:
    other = zstd.train_dict([_SAID + bytes([number]) for number in range(250)], 4096)
    stored = zstd.compress(_SAID, zstd_dict=other)
    with pytest.raises(ValueError, match=f"dictionary {other.dict_id}"):
        decompress(stored, _MOST)


@pytest.mark.parametrize(
    "stored",
    [b"", b"no frame", compress(_SAID)[:-1], compress(_SAID) * 2, compress(_SAID * 20_000)],
)
def test_damaged_or_too_long_data_is_refused(stored: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decompress(stored, _MOST)


def test_a_frame_is_read_whatever_was_refused_before_it() -> None:
    """One compressor and the dictionaries serve all frames."""
    stored = compress(_SAID)
    with pytest.raises(ValueError, match=r"."):
        decompress(stored[:-3], _MOST)
    assert compress(_SAID) == stored
    assert decompress(stored, _MOST) == _SAID


def test_each_dictionary_has_the_number_in_its_file_name() -> None:
    numbers = [int(path.stem) for path in _SHIPPED]
    assert CURRENT in numbers
    assert [read_dictionary(number).dict_id for number in numbers] == numbers

"""How frames are compressed: zstd with a dictionary, so that a session of a few kB need not say what every one says.

A dictionary is made of synthetic sessions (``python -m tools.frame_dictionary``), never of stored ones, and is shipped.
A frame names its own by number, so each one that frames were ever written with stays in the folder ``dictionaries``.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

import zstandard

LEVEL: Final = 1
CURRENT: Final = 2_095_660_934
"""The number of the dictionary with which frames are written."""
_FOLDER: Final = files("passerelle.store").joinpath("archive", "dictionaries")
_NONE: Final = 0
"""What a frame says that was written without one."""


def compress(plain: bytes) -> bytes:
    """The compressed form. One compressor serves all: to make one costs half as much as to pack a session."""
    return _make_compressor().compress(plain)


def decompress(stored: bytes, most_bytes: int) -> bytes:
    """What was compressed.

    Raises:
        ValueError: these bytes are damaged, hold more than ``most_bytes``, or need a dictionary that is not here.
    """
    try:
        said = zstandard.get_frame_parameters(stored)
        if not 0 < said.content_size <= most_bytes:
            message = f"{said.content_size} bytes"
            raise ValueError(message)
        return _make_decompressor(said.dict_id).decompress(stored)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None


def read_dictionary(number: int) -> zstandard.ZstdCompressionDict:
    """A dictionary that is shipped.

    Raises:
        ValueError: there is none of this number.
    """
    try:
        return zstandard.ZstdCompressionDict(_FOLDER.joinpath(f"{number}.zdict").read_bytes())
    except FileNotFoundError:
        message = f"it needs dictionary {number}, which this version does not have"
        raise ValueError(message) from None


@cache
def _make_compressor() -> zstandard.ZstdCompressor:
    dictionary = read_dictionary(CURRENT)
    dictionary.precompute_compress(level=LEVEL)  # pyright: ignore[reportUnknownMemberType] - no annotation
    # A frame is sealed, which finds every changed byte: it needs no checksum of its own.
    return zstandard.ZstdCompressor(level=LEVEL, dict_data=dictionary)


@cache
def _make_decompressor(number: int) -> zstandard.ZstdDecompressor:
    if number == _NONE:
        return zstandard.ZstdDecompressor()
    return zstandard.ZstdDecompressor(dict_data=read_dictionary(number))

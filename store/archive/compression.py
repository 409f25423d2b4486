"""How frames are compressed: zstd with a dictionary, so that a session of a few kB need not say what every one says.

A dictionary is made of synthetic sessions (``python -m tools.frame_dictionary``), never of stored ones, and is shipped.
A frame names its own by number, so each one that frames were ever written with stays in the folder ``dictionaries``.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.resources import files
from typing import Final

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["CURRENT", "LEVEL", "compress", "decompress", "read_dictionary", "zstd"]

LEVEL: Final = 1
CURRENT: Final = 2_095_660_934
"""The number of the dictionary with which frames are written."""
_FOLDER: Final = files("passerelle.store").joinpath("archive", "dictionaries")
_NONE: Final = 0
"""What a frame says that was written without one."""


def compress(plain: bytes) -> bytes:
    """The compressed form. One compressor serves all: to make one costs half as much as to pack a session."""
    # The compressor holds a lock meanwhile, and a frame that is flushed leaves nothing behind in it.
    return _make_compressor().compress(plain, zstd.ZstdCompressor.FLUSH_FRAME)


def decompress(stored: bytes, most_bytes: int) -> bytes:
    """What was compressed.

    Raises:
        ValueError: these bytes are damaged, hold more than ``most_bytes``, or need a dictionary that is not here.
    """
    try:
        said = zstd.get_frame_info(stored)
        size = said.decompressed_size or 0
        if not 0 < size <= most_bytes:
            message = f"{size} bytes"
            raise ValueError(message)
        dictionary = read_dictionary(said.dictionary_id) if said.dictionary_id != _NONE else None
        reader = zstd.ZstdDecompressor(dictionary)
        plain = reader.decompress(stored, size)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from None
    if not reader.eof or reader.unused_data:
        message = "it is cut off, or something stands behind it"
        raise ValueError(message)
    return plain


@cache
def read_dictionary(number: int) -> zstd.ZstdDict:
    """A dictionary that is shipped. What is made of it for either direction is kept in it.

    Raises:
        ValueError: there is none of this number.
    """
    try:
        return zstd.ZstdDict(_FOLDER.joinpath(f"{number}.zdict").read_bytes())
    except FileNotFoundError:
        message = f"it needs dictionary {number}, which this version does not have"
        raise ValueError(message) from None


@cache
def _make_compressor() -> zstd.ZstdCompressor:
    # A frame is sealed, which finds every changed byte: it needs no checksum of its own.
    return zstd.ZstdCompressor(LEVEL, zstd_dict=read_dictionary(CURRENT).as_digested_dict)

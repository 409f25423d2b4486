"""Frame compression: zstd with a dictionary, so that a session of a few kB does not repeat what all sessions contain.

A dictionary is made of synthetic sessions (``python -m tools.frame_dictionary``), never of stored ones, and is shipped.
A frame names its dictionary by number, so every dictionary ever used stays in the folder ``dictionaries``.
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
"""The number of the dictionary for new frames."""
_FOLDER: Final = files("passerelle.store").joinpath("archive", "dictionaries")
_NONE: Final = 0
"""The dictionary number of a frame written without one."""


def compress(plain: bytes) -> bytes:
    """The compressed form. One compressor is shared: creating one costs half as much as packing a session."""
    # The compressor holds a lock meanwhile, and a flushed frame leaves no state behind.
    return _make_compressor().compress(plain, zstd.ZstdCompressor.FLUSH_FRAME)


def decompress(stored: bytes, most_bytes: int) -> bytes:
    """The decompressed bytes.

    Raises:
        ValueError: the bytes are damaged, decompress to more than ``most_bytes``, or need an unknown dictionary.
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
        message = "it is cut off, or followed by other data"
        raise ValueError(message)
    return plain


@cache
def read_dictionary(number: int) -> zstd.ZstdDict:
    """A shipped dictionary. Its prepared forms for both directions are cached in it.

    Raises:
        ValueError: there is none with this number.
    """
    try:
        return zstd.ZstdDict(_FOLDER.joinpath(f"{number}.zdict").read_bytes())
    except FileNotFoundError:
        message = f"it needs dictionary {number}, which this version does not have"
        raise ValueError(message) from None


@cache
def _make_compressor() -> zstd.ZstdCompressor:
    # A frame is sealed, which detects every changed byte: it needs no checksum of its own.
    return zstd.ZstdCompressor(LEVEL, zstd_dict=read_dictionary(CURRENT).as_digested_dict)

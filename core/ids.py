"""Ids: sortable by time, and carrying their shard.

An id reads ``<prefix>_<shard><body>``: the shard is two lower-case hex digits, so any id routes to its shard without a
lookup. A minted body is 10 characters of milliseconds and 16 of randomness, both in Crockford's base 32, so ids of one
prefix and shard sort by time. Ids that are minted together differ only in the last two of the 16 characters: an id
alone is never a credential. A derived body is a hash of the object's key: everyone who derives it gets the same id.

External context ids have another form: the context id that is sent to an agent is a UUID.

The task id that a caller sees and the one that is stored here are two types, so neither can be passed for the other
(A2A-12); an agent's id of a task is a plain text, and belongs to one run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NewType

from passerelle.core.wire.generated import make_function

if TYPE_CHECKING:
    from collections.abc import Callable
    from hashlib import sha256
else:
    try:
        # Each message hashes some seventy bytes twice: for that, calling OpenSSL takes longer than the hash itself.
        from _sha256 import sha256
    except ImportError:  # Python 3.12 and later
        from hashlib import sha256

SHARDS: Final = 64

FacadeTaskId = NewType("FacadeTaskId", str)
"""The id that callers see: the task id, then ``<task id>~2``, ``~3`` … for later exposures."""
TaskId = NewType("TaskId", str)
"""The local durable record."""

REMOTE_CONTEXT: Final = "rctx"
"""The prefix of context ids for agents, which have the form of ``compose_context``."""

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_LONGEST: Final = 34
"""Characters of the longest id; a longer text is not cached."""
_PAIRS: Final = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
ORDINALS: Final = _PAIRS
"""The suffixes that distinguish ids minted together."""
MINTED_LETTERS: Final = 16
"""Characters of randomness in an id that is minted alone."""
STEM_LETTERS: Final = 14
"""Characters of randomness that ids minted together share."""
CONTEXT_BITS: Final = 62
"""Bits of randomness in a context id for an agent."""
_OWN: Final = re.compile(r"[a-z]{2,5}_([0-3][0-9a-f])[0-9abcdefghjkmnpqrstvwxyz]{26}")
_OWN_CONTEXT: Final = "-8705-"
_FACADE: Final = re.compile(
    r"(task_[0-3][0-9a-f][0-9abcdefghjkmnpqrstvwxyz]{26})(?:~([1-9][0-9]*))?"
)


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """One of 64 fixed hash tags; everything that one decision touches has the same one."""

    number: int
    tag: str = field(init=False, repr=False, compare=False)
    """Two lower-case hex digits, as used in ids and keys."""

    def __post_init__(self) -> None:
        if not 0 <= self.number < SHARDS:
            message = f"a shard is 0 to {SHARDS - 1}, not {self.number}"
            raise ValueError(message)
        object.__setattr__(self, "tag", f"{self.number:02x}")

    def __hash__(self) -> int:
        # Shards are looked up for every event and at every visit; the generated hash of a dataclass is 3x slower.
        return self.number


ALL_SHARDS: Final = tuple(Shard(number) for number in range(SHARDS))


_DIGITS: Final = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")
"""Translates to the digits that ``int`` reads."""
_TIME_END: Final = 12
"""The end of shard and time in an id, counted from the end of its prefix."""
_SPELLING: Final = bytes(ord(_ALPHABET[byte % 32]) for byte in range(256))


def encode_base32(number: int, length: int) -> str:
    """``number`` as ``length`` (even) characters of Crockford's base 32, lower case, most significant first."""
    return _make_encoder(length)(number)


@lru_cache(64)
def _make_encoder(length: int) -> Callable[[int], str]:
    pairs = (f"{{pairs[number >> {place} & 1023]}}" for place in range(5 * length - 10, -1, -10))
    return make_function("encode(number)", [f'return f"{"".join(pairs)}"'], {"pairs": _PAIRS})


_encode_hash: Final = _make_encoder(26)


def encode_entropy(entropy: bytes) -> str:
    """Random bytes as base 32 characters, one each: five bits of every byte."""
    return entropy.translate(_SPELLING).decode()


def compose_stem(shard: Shard, now_ms: int, letters: str) -> str:
    """The part of a minted id after its prefix, with ``MINTED_LETTERS`` of randomness.

    With ``STEM_LETTERS`` it is the common part of ids that are minted together: one shard, one time and the same
    letters; one of ``ORDINALS`` ends each. One of them reveals the others, but they belong to one append and one owner.
    """
    return f"_{shard.tag}{_encode_second(now_ms >> 10)}{_PAIRS[now_ms & 1023]}{letters}"


@lru_cache(64)
def _encode_second(second: int) -> str:
    """Cached, since most times are current; these seconds have 1,024 ms."""
    return encode_base32(second, 8)


def compose_context(now_ms: int, entropy: int) -> str:
    """The id of a conversation for an agent: a UUID, since some agents accept nothing else.

    The randomness follows the time. Version 8 leaves the content to its creator; the marker after it identifies this
    gateway.
    """
    time, tail = f"{now_ms & (1 << 48) - 1:012x}", f"{2 << 62 | entropy:016x}"
    return f"{time[:8]}-{time[8:]}{_OWN_CONTEXT}{tail[:4]}-{tail[4:]}"


def is_own_context(context_id: str) -> bool:
    """Whether ``compose_context`` made the id, and not the agent."""
    return context_id[13:19] == _OWN_CONTEXT


def derive_id(prefix: str, shard: Shard, *parts: str) -> str:
    """An id derived from ``parts``: equal for equal parts."""
    return f"{prefix}_{shard.tag}{_encode_hash(int.from_bytes(_digest(parts)[1:18], 'big'))}"


def derive_shard(*parts: str) -> Shard:
    """The shard of an object that has a name but no id with a shard."""
    return ALL_SHARDS[_digest(parts)[0] % SHARDS]


def read_minted_ms(identifier: str) -> int:
    """When an id was minted, in ms; the time in a derived id means nothing.

    Raises:
        ValueError: the text is not an id of this gateway.
    """
    shard_of(identifier)
    time = identifier.partition("_")[2][2:_TIME_END].translate(_DIGITS)
    return int(time[:-2], 32) << 10 | int(time[-2:], 32)


def read_shard(identifier: str) -> Shard | None:
    """The shard of an id, or None if the text is not an id of this gateway."""
    return _read_shard(identifier) if len(identifier) <= _LONGEST else None


@lru_cache(8192)
def _read_shard(identifier: str) -> Shard | None:
    match = _OWN.fullmatch(identifier)
    return ALL_SHARDS[int(match[1], 16)] if match else None


def shard_of(identifier: str) -> Shard:
    """The shard of an id.

    Raises:
        ValueError: the text is not an id of this gateway.
    """
    shard = _read_shard(identifier) if len(identifier) <= _LONGEST else None
    if shard is None:
        message = f"not an id: {identifier[:60]!r}"
        raise ValueError(message)
    return shard


def expose(task: TaskId, exposure: int) -> FacadeTaskId:
    """The facade id of exposure ``exposure`` (from 1) of a task."""
    return FacadeTaskId(task if exposure == 1 else f"{task}~{exposure}")


def parse_facade(text: str) -> tuple[TaskId, int] | None:
    """The task and exposure of a facade id, or None: ``~1`` and leading zeros are invalid."""
    match = _FACADE.fullmatch(text)
    if match is None or match[2] == "1":
        return None
    return TaskId(match[1]), int(match[2] or 1)


def _digest(parts: tuple[str, ...]) -> bytes:
    return sha256("\0".join(parts).encode()).digest()

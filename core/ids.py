"""Ids: time-ordered, and carrying the shard that they live in.

An id reads ``<prefix>_<shard><body>``: the shard is two lower-case hex digits, so any id routes to
its place without a lookup. A minted body is 10 characters of milliseconds and 16 of randomness, both
in Crockford's base 32, so ids of one prefix and shard sort by time. Of ids that are minted together the last two of
the 16 count, and the others are the same: no right stands on an id alone. A derived body is a hash of what
the id stands for: two who derive it meet in one place.

What is no key of ours but a name for others has another form: the context id that an agent is told is a UUID.

The three task id spaces are three types, so that one cannot be passed for another (A2A-12): what a
caller sees, what we store, what a peer said.
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
        # Each message derives two ids from some seventy bytes: the way to the hash of OpenSSL is longer than the hash.
        from _sha256 import sha256
    except ImportError:  # Python 3.12 and later
        from hashlib import sha256

SHARDS: Final = 64

FacadeTaskId = NewType("FacadeTaskId", str)
"""What our callers see: the task id, then ``<task id>~2``, ``~3`` … for later exposures."""
TaskId = NewType("TaskId", str)
"""The local durable record."""
RemoteTaskId = NewType("RemoteTaskId", str)
"""What a peer calls it; belongs to one run."""

REMOTE_CONTEXT: Final = "rctx"
"""What is minted under this prefix is told to agents, and has the form of ``compose_context``."""

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_LONGEST: Final = 34
"""Characters of the longest id; a longer text of a caller is not worth remembering."""
_PAIRS: Final = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
ORDINALS: Final = _PAIRS
"""The letters by which ids that are minted together are told apart."""
MINTED_LETTERS: Final = 16
"""Of randomness in an id that is minted by itself."""
STEM_LETTERS: Final = 14
"""Of randomness, which ids that are minted together have in common."""
CONTEXT_BITS: Final = 62
"""Of randomness in a context at an agent."""
_OWN: Final = re.compile(r"[a-z]{2,5}_([0-3][0-9a-f])[0-9abcdefghjkmnpqrstvwxyz]{26}")
_OWN_CONTEXT: Final = "-8705-"
_FACADE: Final = re.compile(
    r"(task_[0-3][0-9a-f][0-9abcdefghjkmnpqrstvwxyz]{26})(?:~([1-9][0-9]*))?"
)


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """One of 64 fixed hash tags; everything that one decision touches shares it."""

    number: int
    tag: str = field(init=False, repr=False, compare=False)
    """Two lower-case hex digits, as they stand in ids and keys."""

    def __post_init__(self) -> None:
        if not 0 <= self.number < SHARDS:
            message = f"a shard is 0 to {SHARDS - 1}, not {self.number}"
            raise ValueError(message)
        object.__setattr__(self, "tag", f"{self.number:02x}")

    def __hash__(self) -> int:
        # Shards are looked up for every event and at every visit; the hash that is made for a dataclass costs thrice.
        return self.number


ALL_SHARDS: Final = tuple(Shard(number) for number in range(SHARDS))


_DIGITS: Final = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")
"""To the digits that ``int`` reads."""
_TIME_END: Final = 12
"""Behind shard and time of an id, counted from its prefix."""
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
    """Random bytes as characters of the same base 32, one each: five bits of every byte."""
    return entropy.translate(_SPELLING).decode()


def compose_stem(shard: Shard, now_ms: int, letters: str) -> str:
    """What stands behind the prefix of an id that is minted, with ``MINTED_LETTERS`` of randomness.

    With ``STEM_LETTERS`` it stands behind the prefixes of ids that are minted together: one shard, one time and the
    same letters. One of ``ORDINALS`` ends each. Whoever knows one can guess the others: they are of one append, and of
    one owner.
    """
    return f"_{shard.tag}{_encode_second(now_ms >> 10)}{_PAIRS[now_ms & 1023]}{letters}"


@lru_cache(64)
def _encode_second(second: int) -> str:
    """Times are mostly of now; these seconds have 1,024 ms."""
    return encode_base32(second, 8)


def compose_context(now_ms: int, entropy: int) -> str:
    """A conversation at an agent, in our name: a UUID, since some agents take nothing else.

    The randomness stands behind the time. The version is 8, which leaves the rest to whoever makes it, and the mark
    after it is ours.
    """
    time, tail = f"{now_ms & (1 << 48) - 1:012x}", f"{2 << 62 | entropy:016x}"
    return f"{time[:8]}-{time[8:]}{_OWN_CONTEXT}{tail[:4]}-{tail[4:]}"


def is_own_context(context_id: str) -> bool:
    """Whether ``compose_context`` has made it, and not the agent."""
    return context_id[13:19] == _OWN_CONTEXT


def derive_id(prefix: str, shard: Shard, *parts: str) -> str:
    """An id that is a function of ``parts``: the same for everyone who derives it."""
    return f"{prefix}_{shard.tag}{_encode_hash(int.from_bytes(_digest(parts)[1:18], 'big'))}"


def derive_shard(*parts: str) -> Shard:
    """The shard of something that has a name and no id of ours."""
    return ALL_SHARDS[_digest(parts)[0] % SHARDS]


def read_minted_ms(identifier: str) -> int:
    """When an id of ours was minted, in ms; the time in a derived id means nothing.

    Raises:
        ValueError: the text is not an id of ours.
    """
    shard_of(identifier)
    time = identifier.partition("_")[2][2:_TIME_END].translate(_DIGITS)
    return int(time[:-2], 32) << 10 | int(time[-2:], 32)


def read_shard(identifier: str) -> Shard | None:
    """The shard of an id of ours, or None when the text is not one."""
    return _read_shard(identifier) if len(identifier) <= _LONGEST else None


@lru_cache(8192)
def _read_shard(identifier: str) -> Shard | None:
    match = _OWN.fullmatch(identifier)
    return ALL_SHARDS[int(match[1], 16)] if match else None


def shard_of(identifier: str) -> Shard:
    """The shard of an id that is known to be ours.

    Raises:
        ValueError: the text is not an id of ours.
    """
    shard = _read_shard(identifier) if len(identifier) <= _LONGEST else None
    if shard is None:
        message = f"not an id: {identifier[:60]!r}"
        raise ValueError(message)
    return shard


def expose(task: TaskId, exposure: int) -> FacadeTaskId:
    """The id under which callers see exposure ``exposure`` (from 1) of a task."""
    return FacadeTaskId(task if exposure == 1 else f"{task}~{exposure}")


def parse_facade(text: str) -> tuple[TaskId, int] | None:
    """The task and exposure that a caller names, or None: ``~1`` and leading zeros are no ids."""
    match = _FACADE.fullmatch(text)
    if match is None or match[2] == "1":
        return None
    return TaskId(match[1]), int(match[2] or 1)


def _digest(parts: tuple[str, ...]) -> bytes:
    return sha256("\0".join(parts).encode()).digest()

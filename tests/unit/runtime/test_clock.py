"""The clock and the ids of this machine fulfil their ports."""

import time

from passerelle.core.ids import (
    REMOTE_CONTEXT,
    STEM_LETTERS,
    Shard,
    compose_stem,
    is_own_context,
    shard_of,
)
from passerelle.runtime.common.clock import SystemClock, SystemIds


def _ask() -> int:
    return time.time_ns() // 1_000_000  # noqa: TID251  what the clock is held against


def test_clock_gives_milliseconds_of_now() -> None:
    before, now_ms, after = _ask(), SystemClock().now_ms(), _ask()
    assert before <= now_ms <= after


def test_ids_are_of_their_shard_and_differ() -> None:
    ids = [SystemIds().mint("task", Shard(47)) for _ in range(100)]
    assert {shard_of(identifier) for identifier in ids} == {Shard(47)}
    assert len(set(ids)) == 100
    assert sorted(identifier[:17] for identifier in ids) == [identifier[:17] for identifier in ids]


def test_draw_stays_below_its_bound() -> None:
    assert all(0 <= SystemIds().draw(3) < 8 for _ in range(100))


def test_ids_and_draws_differ_however_many_are_asked_for() -> None:
    ids = SystemIds()
    stems = [compose_stem(Shard(3), 0, ids.draw_letters()) for _ in range(600)]
    assert len(set(stems)) == 600
    assert {shard_of(f"ev{stem}00") for stem in stems} == {Shard(3)}
    drawn = [ids.draw(bits) for bits in (64, 62) * 100]
    assert len(set(drawn)) == 200
    assert max(drawn).bit_length() > 60
    assert ids.draw(5000).bit_length() > 4900
    assert ids.draw(64).bit_length() > 32


def test_ids_and_stems_that_are_asked_for_in_turn_are_whole() -> None:
    ids = SystemIds()
    for _ in range(2_000):
        assert len(ids.mint("task", Shard(3))) == len("task_03") + 26
        assert len(ids.draw_letters()) == STEM_LETTERS
    assert len({ids.mint("ev", Shard(3))[-16:] for _ in range(2_000)}) == 2_000


def test_context_for_an_agent_is_minted_like_an_id() -> None:
    assert is_own_context(SystemIds().mint(REMOTE_CONTEXT, Shard(3)))

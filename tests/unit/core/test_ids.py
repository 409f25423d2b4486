"""Ids sort by time and carry their shard, and the three task id spaces are disjoint."""

import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.ids import (
    ALL_SHARDS,
    SHARDS,
    Shard,
    TaskId,
    compose_context,
    derive_id,
    derive_shard,
    encode_base32,
    expose,
    is_own_context,
    parse_facade,
    read_minted_ms,
    read_shard,
    shard_of,
)
from tests.support.spelt_ids import compose_id

PREFIXES = st.text("abcdefghijklmnopqrstuvwxyz", min_size=2, max_size=5)
SHARD = st.sampled_from(ALL_SHARDS)
TIMES = st.integers(0, 32**10 - 1)
ENTROPY = st.integers(0, 2**80 - 1)
PARTS = st.lists(st.text(max_size=6), min_size=1, max_size=4)
TASK = TaskId(compose_id("task", Shard(47), 1_767_323_045_678, 5))
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


@given(prefix=PREFIXES, shard=SHARD, now_ms=TIMES, entropy=ENTROPY)
def test_a_minted_id_has_its_shard_and_time(
    prefix: str, shard: Shard, now_ms: int, entropy: int
) -> None:
    minted = compose_id(prefix, shard, now_ms, entropy)
    assert read_minted_ms(minted) == now_ms
    assert minted.startswith(f"{prefix}_{shard.tag}")
    assert read_shard(minted) == shard_of(minted) == shard


@given(
    shard=SHARD,
    earlier=TIMES,
    later=TIMES,
    first=ENTROPY,
    second=ENTROPY,
)
def test_ids_of_one_shard_sort_by_time(
    shard: Shard, earlier: int, later: int, first: int, second: int
) -> None:
    one, other = (earlier, first), (later, second)
    assert (compose_id("ev", shard, *one) < compose_id("ev", shard, *other)) is (one < other)
    assert (compose_id("ev", shard, *one) == compose_id("ev", shard, *other)) is (one == other)


@given(number=st.integers(0, 32**16 - 1))
def test_base_32_is_crockfords_and_loses_nothing(number: int) -> None:
    text = encode_base32(number, 16)
    assert len(text) == 16
    assert (
        sum(ALPHABET.index(letter) << (5 * at) for at, letter in enumerate(reversed(text)))
        == number
    )


@given(prefix=PREFIXES, shard=SHARD, parts=PARTS)
def test_a_derived_id_is_the_same_for_everyone_and_has_the_form_of_a_minted_one(
    prefix: str, shard: Shard, parts: list[str]
) -> None:
    derived = derive_id(prefix, shard, *parts)
    assert derived == derive_id(prefix, shard, *parts)
    assert read_shard(derived) == shard
    assert len(derived) == len(compose_id(prefix, shard, 0, 0))


def test_a_derived_id_never_changes_between_versions() -> None:
    """Stored ids are found again by deriving them, so these are part of the storage format."""
    assert (
        derive_id("thr", Shard(1), "default", "alice", "ctx-1")
        == "thr_01tecdsgegcemqqax2jzrrd5kp6b"
    )
    assert derive_shard("principal", "default", "alice") == Shard(37)


def test_parts_are_not_run_together() -> None:
    shard = Shard(0)
    told_apart = {
        derive_id("thr", shard, "ab", "c"),
        derive_id("thr", shard, "a", "bc"),
        derive_id("thr", shard, "abc"),
        derive_id("thr", shard, "abc", ""),
    }
    assert len(told_apart) == 4


def test_names_spread_over_all_shards() -> None:
    seen = {derive_shard("context", str(number)) for number in range(2000)}
    assert seen == set(ALL_SHARDS)


@pytest.mark.parametrize("number", [-1, SHARDS, 255])
def test_there_are_sixty_four_shards(number: int) -> None:
    assert len(ALL_SHARDS) == SHARDS == 64
    with pytest.raises(ValueError, match="a shard is 0 to 63"):
        Shard(number)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "task",
        "task_",
        TASK[:-1],
        TASK + "0",
        TASK.upper(),
        f"{TASK}~2",
        f" {TASK}",
        f"{TASK}\n",
        TASK.replace("task_2f", "task_4f"),
        TASK.replace("task_2f", "task_2F"),
        TASK.replace("task_", "t_"),
        TASK.replace("task_", "tasker_"),
        TASK.replace("task_", "tásk_"),
        TASK.replace("0", "o"),
        "ctx-of-a-caller",
    ],
)
def test_text_that_is_no_minted_id_has_no_shard(text: str) -> None:
    assert read_shard(text) is None
    with pytest.raises(ValueError, match=re.escape("not an id")):
        shard_of(text)


@pytest.mark.requirement("A2A-12")
@given(shard=SHARD, now_ms=TIMES, entropy=ENTROPY, exposure=st.integers(1, 10**6))
def test_each_exposure_has_an_id_of_its_own_that_leads_back_to_the_task(
    shard: Shard, now_ms: int, entropy: int, exposure: int
) -> None:
    task = TaskId(compose_id("task", shard, now_ms, entropy))
    facade = expose(task, exposure)
    assert parse_facade(facade) == (task, exposure)
    assert (str(facade) == task) is (exposure == 1)
    assert expose(task, exposure + 1) != facade


@pytest.mark.requirement("A2A-12")
@pytest.mark.parametrize(
    "tail",
    ["~", "~0", "~1", "~01", "~02", "~-2", "~+2", "~2 ", "~2~3", "~x", "~2\n", "~٢", "2", " "],
)
def test_one_exposure_has_one_spelling(tail: str) -> None:
    assert parse_facade(TASK + tail) is None


@pytest.mark.requirement("A2A-12")
@pytest.mark.parametrize("text", ["", "~2", "remote-task-7", compose_id("ses", Shard(0), 0, 0)])
def test_text_that_is_no_task_id_is_no_facade_id(text: str) -> None:
    assert parse_facade(text) is None


@given(now_ms=st.integers(0, 2**48 - 1), entropy=st.integers(0, 2**62 - 1))
def test_a_context_for_an_agent_is_a_uuid_that_is_recognized(now_ms: int, entropy: int) -> None:
    context = compose_context(now_ms, entropy)
    read = uuid.UUID(context)
    assert (str(read), read.version, read.variant) == (context, 8, uuid.RFC_4122)
    assert is_own_context(context)
    assert int(context.replace("-", "")[:12], 16) == now_ms


@given(st.uuids(version=4) | st.uuids(version=1))
def test_a_context_that_an_agent_created_is_not_recognized(made: uuid.UUID) -> None:
    assert not is_own_context(str(made))
    assert not is_own_context(TASK)

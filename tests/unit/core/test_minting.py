"""What was asked of chance can be asked again, and is written as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from passerelle.core.ids import Shard
from passerelle.core.minting import RecordedIds, Wanted, form_number

SHARD, ELSEWHERE = Shard(7), Shard(8)


@dataclass(slots=True)
class Counted:
    """Ids that count, so that each is told from every other."""

    made: int = field(default=0)

    def mint(self, prefix: str, shard: Shard) -> str:
        self.made += 1
        return f"{prefix}_{shard.tag}{self.made}"

    def mint_all(self, prefixes: Sequence[str], shard: Shard) -> list[str]:
        return [self.mint(prefix, shard) for prefix in prefixes]

    def draw(self, bits: int) -> int:
        self.made += 1
        return self.made % (1 << bits)


def test_what_is_asked_of_chance_for_the_shard_can_be_asked_again() -> None:
    recorded = RecordedIds(Counted(), SHARD)
    recorded.mint("ev", SHARD)
    recorded.mint("acct", ELSEWHERE)
    recorded.draw(4)
    recorded.draw(64)
    assert recorded.asked == ["ev", 64]
    assert recorded.values == ["ev_071", "0000000000000004"]
    assert Wanted([64, None, *recorded.asked]).ask(Counted(), SHARD) == (
        "0000000000000002",
        "",
        "ev_071",
        "0000000000000003",
    )


def test_of_nothing_asked_for_nothing_is_made() -> None:
    assert Wanted([]).ask(Counted(), SHARD) == ()
    assert Wanted([None]).ask(Counted(), SHARD) == ("",)


@pytest.mark.parametrize(
    ("drawn", "bits", "written"), [(255, 32, "000000ff"), (1, 33, "000000001")]
)
def test_a_number_is_written_with_all_its_digits(drawn: int, bits: int, written: str) -> None:
    assert form_number(bits) % drawn == written

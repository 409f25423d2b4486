"""Files of tiers that wait are spread over the run, and those of the unit tier fill its end."""

from __future__ import annotations

from tests.support.order import spread


def name_files(tier: str, count: int) -> list[str]:
    return [f"tests/{tier}/room/test_{number}.py" for number in range(count)]


def test_each_tier_is_spread_and_unit_comes_last() -> None:
    files = [*name_files("unit", 3), *name_files("e2e", 2), *name_files("contract", 4)]
    places = spread(files)
    e2e, contract, unit = (name_files(*one) for one in (("e2e", 2), ("contract", 4), ("unit", 3)))
    assert sorted(files, key=lambda file: places[file]) == [
        *(contract[0], e2e[0], contract[1]),
        *(contract[2], e2e[1], contract[3]),
        *unit,
    ]


def test_the_order_within_a_tier_stays_the_drawn_one() -> None:
    drawn = ["tests/e2e/test_c.py", "tests/e2e/test_a.py", "tests/e2e/test_b.py"]
    places = spread([*drawn, *drawn])
    shuffled = [drawn[1], drawn[2], drawn[0]]
    assert sorted(shuffled, key=lambda file: places[file]) == drawn

"""The cost of retention is measured apart from the use of an idle gateway."""

from __future__ import annotations

import pytest

from bench.retention import Look, find_leaving_s
from bench.rows import BenchBroken


def test_cost_of_retention_is_the_cpu_time_above_idle() -> None:
    looks = [
        Look(0.0, 7, (1.0, 2.0)),
        Look(5.0, 7, (2.0, 2.5)),
        Look(6.0, 8, (2.4, 2.8)),
        Look(7.0, 10, (3.0, 3.0)),
        Look(17.0, 10, (4.0, 3.0)),
    ]
    assert find_leaving_s(looks) == pytest.approx([0.8, 0.5])


@pytest.mark.parametrize("left", [(3, 3, 3), (3, 4, 5)])
def test_a_retention_run_without_removals_or_end_is_no_measurement(left: tuple[int, ...]) -> None:
    looks = [Look(float(at), count, (0.1 * at,)) for at, count in enumerate(left)]
    with pytest.raises(BenchBroken):
        find_leaving_s(looks)

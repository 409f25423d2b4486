"""What leaving costs is told apart from what a gateway uses that rests."""

from __future__ import annotations

import pytest

from bench.retention import RetentionSample, find_leaving_s
from bench.rows import MeasurementError


def test_what_is_used_beyond_rest_is_what_leaving_costs() -> None:
    looks = [
        RetentionSample(0.0, 7, (1.0, 2.0)),
        RetentionSample(5.0, 7, (2.0, 2.5)),
        RetentionSample(6.0, 8, (2.4, 2.8)),
        RetentionSample(7.0, 10, (3.0, 3.0)),
        RetentionSample(17.0, 10, (4.0, 3.0)),
    ]
    assert find_leaving_s(looks) == pytest.approx([0.8, 0.5])


@pytest.mark.parametrize("left", [(3, 3, 3), (3, 4, 5)])
def test_nothing_that_leaves_and_no_end_of_it_are_no_measurement(left: tuple[int, ...]) -> None:
    looks = [RetentionSample(float(at), count, (0.1 * at,)) for at, count in enumerate(left)]
    with pytest.raises(MeasurementError):
        find_leaving_s(looks)

"""The floors of coverage are held or missed by lines and branches together."""

from tools.coverage import sum_up

SUMMARY = {"covered_lines": 9, "num_statements": 10, "covered_branches": 10, "num_branches": 10}


def test_area_below_its_floor_does_not_hold() -> None:
    area = sum_up("pure", 100.0, {"core/x.py": SUMMARY})
    assert (area.covered, area.all, area.holds) == (19, 20, False)


def test_area_at_its_floor_holds() -> None:
    assert sum_up("rest", 95.0, {"store/x.py": SUMMARY}).holds


def test_area_without_code_holds() -> None:
    assert sum_up("rest", 95.0, {}).holds

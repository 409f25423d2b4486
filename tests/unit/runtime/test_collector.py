"""The cycle collector pauses for imports and for bursts, and always resumes."""

import gc

import pytest

from passerelle.runtime.common import collector
from passerelle.runtime.common.collector import CROWD, GcPause, collect_nothing
from tests.support.waiting import wait_until


def test_collector_goes_on_after_imports_that_work_and_that_do_not() -> None:
    with collect_nothing():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), collect_nothing():
        raise ImportError
    assert gc.isenabled()


def test_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collect_nothing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.anyio
async def test_collector_rests_while_many_come_and_goes_on_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collector, "RESTS_S", 0.01)
    monkeypatch.setattr(collector, "CROWD_WITHIN_S", 3600.0)
    rest = GcPause()
    try:
        for _ in range(CROWD):
            rest.join()
            assert gc.isenabled()
        for _ in range(2):
            rest.join()
            assert not gc.isenabled()
        await wait_until(gc.isenabled, 5, "the collector goes on")
        rest.join()
        assert not gc.isenabled()
        rest.end()
        assert gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.anyio
async def test_collector_that_was_off_before_a_crowd_stays_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collector, "CROWD_WITHIN_S", 3600.0)
    gc.disable()
    try:
        rest = GcPause()
        for _ in range(CROWD + 1):
            rest.join()
        rest.end()
        assert not gc.isenabled()
    finally:
        gc.enable()

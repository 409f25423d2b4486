"""The cycle collector stands still for imports, and goes on however they end."""

import gc

import pytest

from passerelle.gateway.collector import collect_nothing


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

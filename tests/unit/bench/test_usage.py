"""CPU time and children of processes, as the kernel tells them."""

import os
import subprocess
import sys

import pytest

from bench.rows import MeasurementError
from bench.usage import find_children, read_cpu_s


def test_a_started_process_is_found_among_the_children() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        try:
            assert child.pid in find_children(os.getpid())
            assert read_cpu_s(child.pid) >= 0
        finally:
            child.kill()


def test_a_process_that_is_gone_has_no_cpu_time() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait(20)
    with pytest.raises(MeasurementError, match="is gone"):
        read_cpu_s(child.pid)

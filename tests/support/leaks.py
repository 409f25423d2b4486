"""Checks that a test leaves nothing open: no child process, thread, file, socket or pipe.

The first snapshot is taken when the fixtures of the test are set up, the second when they are torn down. A server
that the session shares and starts on first use is therefore in both.
"""

import contextlib
import gc
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.fork_server import SHARED
from tests.support.waiting import block_until

_SETTLE_WITHIN_S: Final = 15.0
# Opened once by the interpreter or a library, and kept open on purpose.
_SHARED: Final = ("/dev/", "/proc/", "/usr/", "/etc/", "/sys/")
_BEFORE: Final = pytest.StashKey[frozenset[str]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Takes a snapshot before the test runs."""
    yield
    item.stash[_BEFORE] = take_snapshot()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Raises an error that names what the test left open."""
    yield
    before = item.stash.get(_BEFORE, None)
    if before is None or not take_snapshot() - before:
        return
    # What only a reference cycle keeps alive is left to the garbage collector.
    gc.collect()
    with contextlib.suppress(AssertionError):
        block_until(lambda: not take_snapshot() - before, _SETTLE_WITHIN_S, "everything is gone")
        return
    pytest.fail(
        f"the test left behind: {', '.join(sorted(take_snapshot() - before))}", pytrace=False
    )


def take_snapshot() -> frozenset[str]:
    """Names the resources that this process holds now and would have to release."""
    return frozenset((*_children(), *_threads(), *_files()))


def _children() -> Iterator[str]:
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            yield from (f"process {pid}" for pid in task.read_text("ascii").split())
    for fork_server in SHARED:
        yield from (f"process {pid}" for pid in fork_server.list_processes())


def _threads() -> Iterator[str]:
    yield from (f"thread {thread.name}" for thread in threading.enumerate())


def _files() -> Iterator[str]:
    for descriptor in Path("/proc/self/fd").iterdir():
        # One of them is the descriptor of this listing, which is closed by now.
        with contextlib.suppress(OSError):
            target = str(descriptor.readlink())
            if not target.startswith(_SHARED):
                yield f"{target} as descriptor {descriptor.name}"

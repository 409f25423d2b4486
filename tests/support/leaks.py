"""Nothing that a test opens outlives it: no child process, no thread, no file, socket or pipe.

The first look is taken when the fixtures of the test are set up, the second when they are torn down: a
server that a session shares and starts on first use is there in both.
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
# Opened once by the interpreter or a library, and kept on purpose.
_SHARED: Final = ("/dev/", "/proc/", "/usr/", "/etc/", "/sys/")
_BEFORE: Final = pytest.StashKey[frozenset[str]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Remembers what there is before the test runs."""
    yield
    item.stash[_BEFORE] = look()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Makes an error of what the test left behind, and names it."""
    yield
    before = item.stash.get(_BEFORE, None)
    if before is None or not look() - before:
        return
    # What only a reference cycle keeps is the collector's business.
    gc.collect()
    with contextlib.suppress(AssertionError):
        block_until(lambda: not look() - before, _SETTLE_WITHIN_S, "everything is gone")
        return
    pytest.fail(f"the test left behind: {', '.join(sorted(look() - before))}", pytrace=False)


def look() -> frozenset[str]:
    """Names everything that this process has now and would have to give back."""
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
        # One is that of this very listing, and gone when it is asked for.
        with contextlib.suppress(OSError):
            target = str(descriptor.readlink())
            if not target.startswith(_SHARED):
                yield f"{target} as descriptor {descriptor.name}"

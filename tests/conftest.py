"""What every tier shares: the async backend, one printed seed, and the last line of a run."""

import gc
import logging
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog

TESTS = Path(__file__).resolve().parent
CI = bool(os.environ.get("CI"))

pytest_plugins = ["tests.support.leaks", "tests.support.order"]

# As the gateway sets it: without it a test that starts a process makes gRPC open descriptors in its name.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A deadline and "too slow" would assert a speed; a blob lets a failure be played again without a database.
hypothesis.settings.register_profile(
    "local",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
hypothesis.settings.register_profile(
    "ci", hypothesis.settings.get_profile("local"), derandomize=True
)
hypothesis.settings.load_profile("ci" if CI else "local")

# The default renderer draws every local variable of a traceback: seconds in which the loop stands still.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A verb that is called in this process sets the logs of the whole process up: the next test has its own again."""
    root = logging.getLogger()
    handlers, level, before = root.handlers[:], root.level, structlog.get_config()
    yield
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """One seed orders the tests and feeds hypothesis; a parallel worker takes its controller's."""
    if not _redis_at_hand() and os.environ.get("PASSERELLE_REQUIRE_REDIS") == "1":
        raise pytest.UsageError("redis-server is not on PATH: install the package redis-server")
    chosen = getattr(config.option, "randomly_seed", None)
    seed = chosen if isinstance(chosen, int) else secrets.randbelow(2**32)
    if chosen == "default":
        config.option.randomly_seed = seed
    # Derandomized examples come from the test itself; a forced seed would replace them.
    if not CI and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(seed)


def pytest_report_header(config: pytest.Config) -> str:
    examples = "derandomized" if CI else f"seed {config.option.hypothesis_seed}"
    return f"hypothesis: {examples}"


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: the cycle collector has what is made from now on to look at, and not them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Prints the summary after everything else, so that it is the last line of the run."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if hasattr(config, "workerinput") or reporter is None or config.option.collectonly:
        return
    reports: dict[str, list[pytest.TestReport]] = reporter.stats
    counts = {word: len(reports.get(word, ())) for word in ("passed", "failed", "error")}
    tiers = Counter(
        report.nodeid.split("/")[1]
        for report in reports.get("passed", ())
        if report.nodeid.count("/") > 1
    )
    words = ", ".join(f"{n} {word}" for word, n in counts.items() if n or word == "passed")
    split = ", ".join(f"{tier} {n}" for tier, n in sorted(tiers.items()))
    leg = (
        ""
        if "contract" not in tiers or _redis_at_hand()
        else "; redis-server leg not run (no redis-server on PATH)"
    )
    reporter.write_line(f"test: {words} ({split}){leg}")


def _redis_at_hand() -> bool:
    """Whether the contract suite can run against a server that is not the embedded one."""
    return bool(os.environ.get("REDIS_URL") or shutil.which("redis-server"))

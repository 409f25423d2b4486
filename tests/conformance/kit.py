"""``python -m tests.conformance.kit CHECKOUT``: the official conformance kit itself, through the gateway.

``make conformance KIT=CHECKOUT`` calls it. The checkout is copied, gets a separate environment, and is never changed.
Counts come from the JUnit file, since the kit's own summary counts records and not tests. The run passes when

- no test fails but those in ``known-deviations.txt``, all of which are gRPC, - no test is skipped but those in
``expected-skips.txt``, - the kit registers the requirements in ``kit-requirements.toml``, and - the gateway counted
the calls: with a copied address of the agent the kit would test the agent alone.

The kit cannot authenticate: the plugin ``kit_key.py`` adds the owner's key to its calls. It sends no tenant over gRPC
either, so ``grpc.default_agent`` is the tested agent.

It tests the conformance agent by its name; with ``--root`` the gateway's own agent, which routes to it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

import orjson

from passerelle.core.agent_name import ROUTER
from tests.conformance.registry import HERE, read_requirements
from tests.conformance.site import AGENT, make_settings, open_http, run_agent
from tests.support.ports import find_free_port
from tests.support.processes import run_gateway

SKIPS: Final = HERE / "expected-skips.txt"
DEVIATIONS: Final = HERE / "known-deviations.txt"
MOST_SKIPS: Final = 16
_KEY_PLUGIN: Final = "kit_key"
_REPORT: Final = Path("reports/junitreport.xml")
_WITHIN_S: Final = 900
_LIST: Final = """
import json
from tck.requirements.registry import ALL_REQUIREMENTS
print(json.dumps({one.id: one.level.value for one in ALL_REQUIREMENTS}))
"""


@dataclass(slots=True)
class Outcome:
    """Test results by name; a skip or a failure with its message."""

    passed: set[str] = field(default_factory=set[str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    failed: dict[str, str] = field(default_factory=dict[str, str])

    def list_faults(self, deviations: set[str], skips: set[str]) -> Iterator[str]:
        """The reasons why the run fails; empty if it passes."""
        for name in sorted(self.failed.keys() - deviations):
            yield f"failed: {name}: {self.failed[name]}"
        for name in sorted(self.skipped.keys() - skips):
            yield f"skipped: {name}: {self.skipped[name]}"
        if len(self.skipped) > MOST_SKIPS:
            yield f"{len(self.skipped)} tests are skipped, at most {MOST_SKIPS} may be"
        for name in sorted(
            (deviations & self.passed) | (skips & (self.passed | self.failed.keys()))
        ):
            yield f"listed, and not so any more: {name}"


def read_outcome(report: Path) -> Outcome:
    """The results in a JUnit file."""
    outcome = Outcome()
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314  the kit of this run wrote it
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        skip, fault = case.find("skipped"), case.find("failure")
        fault = case.find("error") if fault is None else fault
        if fault is not None:
            outcome.failed[name] = _shorten(fault)
        elif skip is not None:
            outcome.skipped[name] = _shorten(skip)
        else:
            outcome.passed.add(name)
    return outcome


def _shorten(element: ET.Element) -> str:
    return " ".join((element.get("message") or "").split())[:200]


def read_names(path: Path) -> set[str]:
    """The names in a list; text after ``#`` is a comment."""
    lines = (line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    return {line for line in lines if line}


def prepare(checkout: Path, folder: Path) -> tuple[Path, Path]:
    """A copy of the kit, and an interpreter with its dependencies."""
    kit, python = folder / "kit", folder / "venv/bin/python"
    shutil.copytree(checkout, kit, ignore=shutil.ignore_patterns(".git", ".venv", "reports"))
    project = tomllib.loads((kit / "pyproject.toml").read_text("utf-8"))["project"]
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*install, *project["dependencies"]], check=True)
    return kit, python


def compare_registry(kit: Path, python: Path) -> Iterator[str]:
    """Differences between the requirements of the kit and the known ones."""
    listed = subprocess.run(
        [python, "-c", _LIST], cwd=kit, check=True, capture_output=True, text=True
    )
    theirs: Mapping[str, str] = orjson.loads(listed.stdout)
    ours = {name: row.level for name, row in read_requirements().items()}
    for name in sorted(theirs.keys() ^ ours.keys()):
        yield f"{name} is registered by {'the kit' if name in theirs else 'us'} alone"
    for name in sorted(name for name in theirs.keys() & ours.keys() if theirs[name] != ours[name]):
        yield f"{name} is {theirs[name]} in the kit"


async def run_kit(kit: Path, python: Path, folder: Path, tested: str) -> tuple[Outcome, int]:
    """Runs the kit against an agent of the gateway; returns the results and the gateway's count of calls."""
    settings = make_settings(find_free_port())
    settings["grpc"] |= {"default_agent": tested}
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(run_agent(folder, "agent"))
        gateway = await stack.enter_async_context(
            run_gateway(folder, {AGENT: agent.url}, **settings)
        )
        shutil.copy(HERE / f"{_KEY_PLUGIN}.py", folder)
        keyed = {
            **os.environ,
            "KIT_KEY": gateway.token,
            "PYTHONPATH": str(folder),
            "PYTEST_ADDOPTS": f"-p {_KEY_PLUGIN}",
        }
        where = gateway.url if tested == ROUTER else f"{gateway.url}/agents/{tested}"
        command = [python, "run_tck.py", "--sut-host", where]
        said = (folder / "kit.log").open("wb")
        stack.callback(said.close)
        running = await asyncio.create_subprocess_exec(
            *map(str, command), cwd=kit, stdout=said, stderr=said, env=keyed
        )
        try:
            await asyncio.wait_for(running.wait(), _WITHIN_S)
        finally:
            if running.returncode is None:
                running.kill()
        return read_outcome(kit / _REPORT), await count_calls(gateway.url, tested)


async def count_calls(url: str, agent: str) -> int:
    """The number of A2A calls to an agent that the gateway has answered, from its metrics."""
    async with open_http() as http:
        text = (await http.get(f"{url}/metrics")).text
    return sum(
        int(float(line.rpartition(" ")[2]))
        for line in text.splitlines()
        if line.startswith(f'passerelle_requests_total{{agent="{agent}"')
    )


def main() -> int:
    """Runs the kit and prints in one line whether it passes."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.kit", description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--root", action="store_true", help="test the gateway's own agent")
    asked = parser.parse_args()
    checkout: Path = asked.checkout.resolve()
    tested = ROUTER if asked.root else AGENT
    with tempfile.TemporaryDirectory(prefix="psr-kit-") as name:
        folder = Path(name)
        kit, python = prepare(checkout, folder)
        faults = list(compare_registry(kit, python))
        outcome, calls = asyncio.run(run_kit(kit, python, folder, tested))
    faults += outcome.list_faults(read_names(DEVIATIONS), read_names(SKIPS))
    if calls < len(outcome.passed):
        faults.append(f"the gateway counted {calls} calls: the kit has tested something else")
    for fault in faults:
        print(fault)  # noqa: T201  it talks to the terminal
    verdict = "held" if not faults else f"missed, {len(faults)} faults"
    print(  # noqa: T201
        f"kit: {len(outcome.passed)} passed, {len(outcome.failed)} failed, "
        f"{len(outcome.skipped)} skipped, {calls} calls through the gateway: {verdict}"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

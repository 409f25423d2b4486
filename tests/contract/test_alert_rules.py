"""Alert rules as Prometheus reads them: promtool checks them and runs the unit tests of each alert."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

FOLDER: Final = Path(__file__).parents[2] / "deploy" / "prometheus"


def run_promtool(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The output of promtool. A missing promtool is an error: a skipped test would prove nothing."""
    promtool = shutil.which("promtool")
    assert promtool is not None, "no promtool: apt install prometheus"
    return subprocess.run(
        [promtool, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules", "passerelle.rules.yaml"),
        ("test", "rules", "passerelle.tests.yaml"),
        ("check", "config", "--syntax-only", "prometheus.yaml"),
    ],
)
def test_promtool_finds_nothing(words: tuple[str, ...]) -> None:
    done = run_promtool(FOLDER, *words)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_that_fires_too_late_is_noticed(tmp_path: Path) -> None:
    for path in FOLDER.glob("*.yaml"):
        shutil.copy(path, tmp_path)
    rules = tmp_path / "passerelle.rules.yaml"
    text = rules.read_text("utf-8")
    assert ">= 0.9\n" in text
    rules.write_text(text.replace(">= 0.9\n", ">= 0.99\n"), "utf-8")
    done = run_promtool(tmp_path, "test", "rules", "passerelle.tests.yaml")
    assert done.returncode != 0
    assert "PasserelleStoreMemoryFull" in done.stdout + done.stderr

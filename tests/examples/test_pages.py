"""Examples that are tested by running their page only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.stage import EXAMPLES, PAGE, open_example

ALONE = ("agent-behind-nat", "asking-agent", "caller", "payments-policy")
OTHERS = {"adk-agent", "browser-page", "langgraph-agent", "two-instances", "webhook-receiver"}
"""Examples with a separate test, here or in ``tests/interop``."""


@pytest.mark.parametrize("name", ALONE)
def test_example_behaves_as_its_page_describes(name: str, tmp_path: Path) -> None:
    with open_example(name, tmp_path) as example:
        example.play()
        assert example.played == len(example.steps) > 2


def test_each_example_is_run_and_listed() -> None:
    there = {path.parent.name for path in EXAMPLES.glob(f"*/{PAGE}")}
    played = {*ALONE, *OTHERS}
    listed = set(re.findall(r"\]\(([a-z-]+)/README\.md\)", (EXAMPLES / PAGE).read_text("utf-8")))
    assert there == played == listed

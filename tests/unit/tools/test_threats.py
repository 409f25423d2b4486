"""The threat model: each threat is held by tests that there are."""

from __future__ import annotations

from pathlib import Path

from tools.threat_docs import KINDS, Edge, Threat, find_missing, read_edges, render_threats


def test_each_threat_is_held_by_tests_that_there_are() -> None:
    edges = read_edges()
    assert find_missing(edges) == []
    for edge in edges:
        for threat in edge.threats:
            assert threat.tests, threat.threat
            assert threat.kind in KINDS, threat.threat


def test_each_edge_has_more_than_one_kind_of_threat_and_each_kind_is_somewhere() -> None:
    edges = read_edges()
    by_edge = [{threat.kind for threat in edge.threats} for edge in edges]
    assert all(len(kinds) > 2 for kinds in by_edge)
    assert set[str]().union(*by_edge) == set(KINDS)


def test_a_test_that_was_renamed_is_named(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text(
        "async def test_there(): ...\nclass A:\n    def test_inside(self): ...\n", "utf-8"
    )
    named = ("tests/test_one.py::test_there", "tests/test_one.py::test_gone", "tests/no.py::test_a")
    inside = "tests/test_one.py::test_inside"
    edges = (Edge("a", "", (Threat("S", "", "", (*named, inside), None),)),)
    assert find_missing(edges, tmp_path) == [named[2], named[1], inside]


def test_every_threat_has_a_row_of_five_cells() -> None:
    rows = [line for line in render_threats().splitlines() if line.startswith("| ")]
    heads = [row for row in rows if row.startswith("| | threat")]
    assert len(rows) - len(heads) == sum(len(edge.threats) for edge in read_edges())
    assert {row.count(" |") for row in rows} == {5}

"""The page of error codes: each code that the source can give has its section, and nothing else has one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from passerelle.core.errors import PasserelleError, list_codes
from tools.error_docs import Part, list_answers, read_advice, render_error_codes

ROOT: Final = Path(__file__).parents[3]
PARTS: Final[tuple[Part, ...]] = ("answers", "tasks")


def list_literals(node: ast.expr) -> Iterator[str]:
    """The texts that an expression may have, as far as it is a literal."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=body, orelse=otherwise):
            yield from (*list_literals(body), *list_literals(otherwise))
        case _:
            return


def list_recorded() -> set[str]:
    """Codes that the product gives the errors of tasks and jobs, where they are literals."""
    found: set[str] = set()
    for room in ("core", "control", "delegation"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "ErrorDetail":
                    named = {word.arg: word.value for word in node.keywords}
                    found.update(list_literals(node.args[0] if node.args else named["code"]))
    return found


def list_classes(kind: type[PasserelleError] = PasserelleError) -> Iterator[type[PasserelleError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from list_classes(below)


def test_each_code_of_an_answer_has_its_section_and_no_other() -> None:
    assert {one.code for one in read_advice("answers")} == set(list_answers())


def test_a_class_that_refines_its_code_lists_the_codes() -> None:
    for kind in list_classes():
        if "stable_code" in vars(kind):
            assert kind is PasserelleError or kind.codes, kind.__name__
        assert set(list_codes(kind)) <= set(list_answers()) or not kind.__module__.startswith(
            "passerelle."
        )


def test_each_literal_code_of_a_task_has_its_section() -> None:
    recorded = list_recorded()
    assert {"lost", "peer_failed", "rejected", "items_failed"} <= recorded
    assert recorded <= {one.code for one in read_advice("tasks")}


@pytest.mark.parametrize("part", PARTS)
def test_each_code_has_one_section_with_all_three_parts(part: Part) -> None:
    rows = read_advice(part)
    assert len({one.code for one in rows}) == len(rows)
    for one in rows:
        assert one.means.endswith("."), one.code
        assert one.look, one.code
        assert one.do, one.code
        assert all(text.endswith((".", "?")) for text in (*one.look, *one.do)), one.code


def test_the_list_links_each_section_in_order() -> None:
    page = render_error_codes()
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert re.findall(r"\]\(#([\w-]+)\)", page) == headings
    assert len(headings) == sum(len(read_advice(part)) for part in PARTS)

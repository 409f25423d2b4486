"""Documents become pages at their own paths; links follow, and code that no page has is shown as its text."""

from pathlib import Path

import pytest

from tools.links import ROOT
from tools.site import list_pages, name_page, render_page

PAGES = frozenset(map(Path, ("README.md", "docs/README.md", "docs/a.md", "docs/how-to/b.md")))


@pytest.mark.parametrize(
    ("document", "text", "shown"),
    [
        ("README.md", "[a](docs/a.md#part)", "[a](docs/a.md#part)"),
        ("README.md", "[all](docs/README.md)", "[all](docs/index.md)"),
        ("docs/how-to/b.md", "[up](../../README.md)", "[up](../../index.md)"),
        ("docs/how-to/b.md", "[`a`](../a.md), [here](#part)", "[`a`](../a.md), [here](#part)"),
        ("docs/a.md", "[the code](../gateway/app.py) says", "the code says"),
        ("docs/a.md", "[gone](gone.md)", "[gone](gone.md)"),
        ("docs/a.md", "[far](https://a2a-protocol.org)", "[far](https://a2a-protocol.org)"),
        ("docs/a.md", "```sh\n[x](../gateway)\n```", "```sh\n[x](../gateway)\n```"),
    ],
)
def test_links_lead_where_the_page_is(tmp_path: Path, document: str, text: str, shown: str) -> None:
    (tmp_path / document).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / document).write_text(text, "utf-8")
    assert render_page(tmp_path, Path(document), PAGES) == shown


def test_every_document_for_readers_has_a_page_of_its_own() -> None:
    pages = list_pages(ROOT)
    assert {Path("README.md"), Path("docs/glossary.md"), Path("clients/js/README.md")} <= pages
    assert len({name_page(page) for page in pages}) == len(pages)
    assert not [page for page in pages if page.parts[0] == "tests"]

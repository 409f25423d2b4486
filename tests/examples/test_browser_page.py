"""The example's page in Chromium: it shows an approval, answers it, and continues after a restart of the gateway."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.examples.devtools import open_page
from tests.examples.stage import open_example

ASKED = "40 EUR to the baker"


def test_page_of_another_origin_answers_an_approval_with_tickets(tmp_path: Path) -> None:
    with open_example("browser-page", tmp_path) as example:
        example.play(before="passerelle call payments")
        with open_page(example.url("8090"), tmp_path) as page:
            page.await_text("live")
            example.play()
            page.await_text(ASKED)
            # The gateway restarts: the page continues by itself, with another ticket.
            example.restart("gateway")
            page.await_text("live")
            page.evaluate(
                "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Pay').click()"
            )
            page.await_no_text(ASKED)
            held = page.evaluate(
                "document.documentElement.innerHTML + JSON.stringify({...localStorage})"
            )
        token = (example.folder / "state" / "owner-token").read_text("ascii").strip()
        assert token not in str(held)
        assert "allowed" in example.run("passerelle approvals list --state closed")


def test_the_server_of_the_page_gives_no_ticket_to_other_pages(tmp_path: Path) -> None:
    with open_example("browser-page", tmp_path) as example:
        example.play(before="passerelle call payments")
        url = f"{example.url('8090')}/ticket"
        origins = {"http://evil.example": 403, example.url("8090"): 201}
        for origin, status in origins.items():
            answer = httpx.post(url, headers={"Origin": origin}, trust_env=False)
            assert answer.status_code == status

"""The command line in this process: what it prints, where, and how it ends, without the cost of starting it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import sys
from dataclasses import dataclass
from typing import Any, cast
from unittest.mock import patch

from passerelle.cli.main import main
from passerelle.demo.processes import GatewayProcess
from passerelle.gateway.settings.variables import PREFIX


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """What it printed, line by line; a test that reads them expects no complaint."""
        assert self.status == 0, self.err
        return self.out.splitlines()

    @property
    def answer(self) -> dict[str, Any]:
        """What it printed as JSON."""
        return cast("dict[str, Any]", json.loads("\n".join(self.lines)))


async def run_command(gateway: GatewayProcess, *words: str, stdin: str = "") -> CommandResult:
    """One call, as a user of this machine makes it; in a thread, as agents answer from this loop."""
    told = ("--url", gateway.url, "--data-dir", str(gateway.data_dir))
    return await asyncio.to_thread(_run, (*words, *told), stdin)


def _run(words: tuple[str, ...], stdin: str) -> CommandResult:
    out, err = io.StringIO(), io.StringIO()
    status: object = 0
    # Settings of whoever runs the tests are none of this user's.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    with (
        patch.dict(os.environ, environ, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        patch.object(sys, "argv", ["passerelle", *words]),
        patch.object(sys, "stdin", io.StringIO(stdin)),
    ):
        try:
            main()
        except SystemExit as ended:
            status = ended.code
    assert isinstance(status, int), status
    return CommandResult(status, out.getvalue(), err.getvalue())

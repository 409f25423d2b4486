"""The command line run in this process: its output and exit status, without the cost of starting a process."""

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
    """The exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of standard output; fails if anything is on standard error."""
        assert self.status == 0, self.err
        return self.out.splitlines()

    @property
    def answer(self) -> dict[str, Any]:
        """Standard output parsed as JSON."""
        return cast("dict[str, Any]", json.loads("\n".join(self.lines)))


async def run_command(gateway: GatewayProcess, *words: str, stdin: str = "") -> CommandResult:
    """Runs one command in a thread, since the agents answer from this event loop."""
    options = ("--url", gateway.url, "--data-dir", str(gateway.data_dir))
    return await asyncio.to_thread(_run, (*words, *options), stdin)


def _run(words: tuple[str, ...], stdin: str) -> CommandResult:
    out, err = io.StringIO(), io.StringIO()
    status: object = 0
    # Settings of the user who runs the tests must not apply here.
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

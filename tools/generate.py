"""``python -m tools.generate``: writes the files that are drawn from code; ``--check`` only compares.

To add one, add a row to ``GENERATED``: the path from the top of the repository and a function without
arguments that returns the whole text. The function is pure over the code, so the same tree gives the same
bytes on every machine.
"""

import argparse
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from passerelle.gateway.settings.source import render_schema
from tools.alert_docs import render_rule_tests, render_rules, render_runbook
from tools.board import render_board
from tools.capability_data import render_capabilities
from tools.channel_docs import render_frames
from tools.channel_docs import render_schema as render_frame_schema
from tools.channel_types import render_types
from tools.cli_docs import render_cli
from tools.difference_docs import render_differences
from tools.error_docs import render_error_codes
from tools.event_docs import render_events
from tools.event_schema import render_event_schema
from tools.http_docs import render_http
from tools.machine_docs import render_state_machine
from tools.settings_docs import render_settings
from tools.sync_client import render_sync_client
from tools.table_docs import render_tables
from tools.threat_docs import render_threats

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "check_evidence.py"


def render_hash() -> str:
    """The SHA-256 of the program that checks evidence, and its name, as ``sha256sum -c`` reads them."""
    content = (ROOT / "cli" / PROGRAM).read_bytes()
    return f"{hashlib.sha256(content).hexdigest()}  {PROGRAM}\n"


GENERATED: Mapping[str, Callable[[], str]] = {
    "clients/js/src/frames.d.ts": render_types,
    "clients/python/passerelle_client/api_sync.py": render_sync_client,
    "deploy/grafana/passerelle.json": render_board,
    "deploy/prometheus/passerelle.rules.yaml": render_rules,
    "deploy/prometheus/passerelle.tests.yaml": render_rule_tests,
    "docs/operate/error-codes.md": render_error_codes,
    "docs/operate/runbook.md": render_runbook,
    "docs/reference/cli.md": render_cli,
    "docs/reference/events.md": render_events,
    "docs/reference/http-api.md": render_http,
    "docs/protocol/channel-frames.md": render_frames,
    "docs/protocol/channel-frames.schema.json": render_frame_schema,
    "docs/protocol/check_evidence.sha256": render_hash,
    "docs/protocol/differences.md": render_differences,
    "docs/reference/settings.md": render_settings,
    "docs/reference/table-columns.md": render_tables,
    "docs/protocol/events.schema.json": render_event_schema,
    "docs/threat-model.md": render_threats,
    "docs/reference/state-machine.md": render_state_machine,
    "gateway/capabilities.json": render_capabilities,
    "gateway/settings.schema.json": render_schema,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 when files were written, or with ``--check`` when none has drifted."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    only_compare: bool = parser.parse_args(arguments).check
    drifted = find_drift(ROOT, GENERATED)
    for path, text in drifted.items():
        if only_compare:
            print(f"generate: {path} is not what the code says; run make generate", file=sys.stderr)
        else:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(text, encoding="utf-8")
    print(
        f"generate: {len(GENERATED)} files, {len(drifted)} {'drifted' if only_compare else 'written'}"
    )
    return 1 if drifted and only_compare else 0


def find_drift(root: Path, generated: Mapping[str, Callable[[], str]]) -> dict[str, str]:
    """Path and wanted text of every file that is absent or differs."""
    wanted = {path: draw() for path, draw in generated.items()}
    return {path: text for path, text in wanted.items() if _read(root / path) != text}


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tools.ledger``: what the requirement ledger says, and the one edit it needs often.

Without arguments it prints the faults and the counts. ``close ID …`` drops the reason of rows that a test
covers. ``list STATE`` prints rows with their reason and their tests; STATE is closed, begun or open.
"""

import argparse
import re
import sys
from collections.abc import Sequence

from tests.support.ledger import (
    INVARIANTS,
    LEDGER,
    LedgerFault,
    LedgerReport,
    LedgerRow,
    Mark,
    State,
    collect,
    judge,
    load,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 when the ledger is sound and the edit was made."""
    parser = argparse.ArgumentParser(prog="python -m tools.ledger", description=__doc__)
    verbs = parser.add_subparsers(dest="verb")
    verbs.add_parser("close").add_argument("ids", nargs="+")
    verbs.add_parser("list").add_argument("state", type=State, choices=list(State))
    chosen = parser.parse_args(arguments)
    try:
        rows = load()
        marks = collect()
        verdict = judge(rows, marks)
        match chosen.verb:
            case "close":
                return _close(chosen.ids, verdict)
            case "list":
                return _list([r for r in rows if verdict.states.get(r.id) is chosen.state], marks)
            case _:
                return _report(rows, verdict)
    except LedgerFault as fault:
        print(f"ledger: {fault}", file=sys.stderr)
        return 1


def _report(rows: Sequence[LedgerRow], verdict: LedgerReport) -> int:
    for fault in verdict.faults:
        print(f"ledger: {fault}", file=sys.stderr)
    invariants = sum(row.source == INVARIANTS for row in rows)
    print(f"{len(rows) - invariants} requirements and {invariants} invariants")
    print(verdict.summary)
    return 1 if verdict.faults else 0


def _list(rows: Sequence[LedgerRow], marks: Sequence[Mark]) -> int:
    for row in rows:
        print(f"{row.id}: {row.sentence}")
        if row.missing:
            print(f"    missing: {row.missing}")
        for mark in marks:
            if mark.id == row.id:
                print(f"    test: {mark.where}")
    return 0


def _close(ids: Sequence[str], verdict: LedgerReport) -> int:
    untested = [i for i in ids if verdict.states.get(i) not in {State.BEGUN, State.CLOSED}]
    if untested:
        print(f"ledger: no test covers {', '.join(untested)}", file=sys.stderr)
        return 1
    text = LEDGER.read_text(encoding="utf-8")
    for name in ids:
        block = re.compile(
            rf'(\[\[row\]\]\nid = "{re.escape(name)}"\n(?:(?!\[\[row\]\]).*\n)*?)missing = .*\n'
        )
        text = block.sub(r"\1", text, count=1)
    LEDGER.write_text(text, encoding="utf-8")
    rows = load()
    return _report(rows, judge(rows, collect()))


if __name__ == "__main__":
    sys.exit(main())

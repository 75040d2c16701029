"""Run case files against the code they are about: `python tests/run_cases.py FILE...`.

Prints one line per record, `id pass|fail|not-yet reason`, and exits 0 only when none failed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from case_drivers.dispatch import read_records, run_record
from case_drivers.outcome import Outcome, Status


def main(arguments: list[str]) -> int:
    if not arguments or any(argument.startswith("-") for argument in arguments):
        print(__doc__, file=sys.stderr)
        return 2
    has_failed = False
    for path in map(Path, arguments):
        try:
            records = list(read_records(path))
        except (OSError, UnicodeDecodeError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            has_failed = True
            continue
        for name, record in records:
            outcome = record if isinstance(record, Outcome) else run_record(record)
            has_failed |= outcome.status is Status.FAIL
            reason = " ".join(outcome.reason.split())
            print(f"{name} {outcome.status} {reason}".rstrip(), flush=True)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""An engine process that plays a script: `python -m support.scripted_worker SOCKET`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from support.scripted_engine import INFO, Script, ScriptedEngine
from trnrt_router.engine_process import run_engine
from trnrt_router.http_server import listen_unix, run


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("socket", type=Path)
    parser.add_argument("--token", type=int, action="append", help="ids that are repeated")
    parser.add_argument("--step-s", type=float, default=0.001)
    parser.add_argument("--load-s", type=float, default=0.0)
    parser.add_argument("--vocab-size", type=int, default=INFO.vocab_size)
    parser.add_argument("--max-num-seqs", type=int, default=INFO.max_num_seqs)
    args = parser.parse_args()

    async def load(progress: Callable[[str], None]) -> ScriptedEngine:
        progress("learning the script")
        await asyncio.sleep(args.load_s)
        return ScriptedEngine(
            info=msgspec.structs.replace(
                INFO, vocab_size=args.vocab_size, max_num_seqs=args.max_num_seqs
            ),
            script=Script(steps=[[token] for token in args.token or [10]], repeat=True),
            step_s=args.step_s,
        )

    with listen_unix(args.socket) as listener:
        return run(run_engine(load, listener, grace_s=5.0))


if __name__ == "__main__":
    sys.exit(main())

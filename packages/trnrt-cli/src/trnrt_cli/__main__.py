"""`python -m trnrt_cli` is `trnrt`, by the interpreter it is called with."""

from trnrt_cli.main import main

main()

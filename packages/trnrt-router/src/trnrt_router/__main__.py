"""`python -m trnrt_router`: the same commands as `trnrt-router`."""

from trnrt_router.cli import main

if __name__ == "__main__":
    main()

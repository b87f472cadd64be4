"""`python -m pyromq` is the `pyromq` command."""

from pyromq.cli.app import main

if __name__ == "__main__":
    main()

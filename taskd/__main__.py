"""`python -m taskd` is the command `taskd`."""

import sys

from taskd.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

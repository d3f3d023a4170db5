"""`python -m taskd.manager`: the job's manager as a process of its own, configured like everything else.

It says that it is ready in the log and by manager.json in the run directory, and ends on SIGTERM, on SIGINT or with
the job. It does NOT take arguments: the environment and the configuration file say everything.
"""

from __future__ import annotations

import argparse
import sys

from taskd import config, log
from taskd.errors import UsageError
from taskd.manager.loop import ManagerLoop


def main() -> int:
    """Run the manager; the exit code is the job's, or 1 when there could be no manager."""
    log.identify("manager")
    argparse.ArgumentParser(prog="python -m taskd.manager", description=__doc__).parse_args()
    try:
        loaded = config.load()
        log.configure(loaded.log.path, loaded.log.file_level, loaded.log.std_level, loaded.log.stdout)
        return ManagerLoop(loaded).run()
    except UsageError as error:
        log.get(__name__).error("%s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m taskd.manager`: the job's manager as a process of its own, configured like everything else.

It says that it is ready in the log and by manager.json in the run directory, and ends on SIGTERM, on SIGINT or with
the job. `--copies FD` is for the launcher: a listening socket at which workers hand in copies of their records. It does
NOT take other arguments: the environment and the configuration file do.
"""

from __future__ import annotations

import argparse
import socket
import sys

from taskd import config, log
from taskd.errors import UsageError
from taskd.manager.loop import ManagerLoop


def main() -> int:
    """Run the manager; the exit code is the job's, or 1 when there could be no manager."""
    log.identify("manager")
    parser = argparse.ArgumentParser(prog="python -m taskd.manager", description=__doc__)
    parser.add_argument("--copies", type=int, metavar="FD", help=argparse.SUPPRESS)
    descriptor = parser.parse_args().copies
    copies = socket.socket(fileno=descriptor) if descriptor is not None else None
    if copies is not None:
        copies.set_inheritable(False)
    try:
        loaded = config.load()
        log.configure(loaded.log.path, loaded.log.file_level, loaded.log.std_level, loaded.log.stdout)
        return ManagerLoop(loaded, copies).run()
    except UsageError as error:
        log.get(__name__).error("%s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())

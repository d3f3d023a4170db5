"""Computes wrongly in the probe."""

import sys

if "taskd.check" in sys.orig_argv:
    from taskd.check import work

    right = work.Device.compute

    def compute(self, *words):
        return right(self, *words) ^ 1

    work.Device.compute = compute

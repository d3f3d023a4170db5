"""Says that another version of torch is installed."""

import sys

if "taskd.check" in sys.orig_argv:
    import torch

    torch.__version__ = "1.0.0"

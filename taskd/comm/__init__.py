"""Guarded process groups: the group that user code holds stays, the inner group that carries it may be replaced.

guard.py puts a guard (taskd._c10d, C++) around the groups that torch makes. An adapter (adapter.py) makes the inner
group: cpu.py over rails (rail.py) or gloo (gloo.py), nccl.py, hccl.py.
This package needs torch. Nothing here decides a recovery.
"""

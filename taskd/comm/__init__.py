"""Guarded process groups: what user code holds stays, what carries it may come and go.

guard.py puts a guard (taskd._c10d, C++) around the groups that torch makes, and an adapter (adapter.py) makes what is
inside: cpu.py over rails (rail.py) or gloo (gloo.py), nccl.py, hccl.py.
This room needs torch; nothing here decides a recovery.
"""

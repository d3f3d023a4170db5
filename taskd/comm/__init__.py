"""Guarded process groups: what user code holds stays, what carries it may come and go.

guard.py puts a guard (taskd._c10d, C++) around the groups that torch makes, and cpu.py makes the inner groups:
over rails (rail.py) or gloo (gloo.py).
This room needs torch; nothing here decides a recovery.
"""

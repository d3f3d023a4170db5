"""Measurements: each module here measures one thing on this machine and reports figures with their goals.

They start real processes and cause real faults. Nothing in the product imports them.
"""

"""Errands: what an operator wants done to ranks between two steps, and what has become of it."""

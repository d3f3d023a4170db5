"""Pauses: all ranks stand before one agreed step until an operator lets them go on, or the lease ends."""

"""The agent: one per node. It reads the beats, sees deaths, speaks with the manager and relays its orders."""

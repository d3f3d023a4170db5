"""The manager's process: a loop that drives the core, its front door, its journal. No torch, no decision of its own."""

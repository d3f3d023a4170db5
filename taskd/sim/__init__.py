"""The simulator: one more shell around the production core, with virtual time and a seed instead of a machine room.

The manager's, the agents' and the workers' machines are the ones that run in a real job; only what surrounds them is
made up: clock, network, processes, a crowd of ranks that trains numbers. Faults strike by the seed, checkers watch what
the simulated workers *do*, and the same seed always gives the same story. It imports no shell and knows no torch.
"""

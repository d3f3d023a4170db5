"""The simulator: one more shell around the production core, with virtual time and a seed instead of real machines.

The state machines of the manager, the agents and the workers are those of a real job. Only their surroundings are
simulated: clock, network, processes, and a crowd of ranks that trains numbers. The seed decides the faults. Checkers
watch what the simulated workers *do*. The same seed always gives the same story. It imports no shell and no torch.
"""

"""A training of a few steps: each rank prints where it is, and the sum that all ranks have."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} on node {os.environ['HOST']}: {total.item():g}")
dist.destroy_process_group()

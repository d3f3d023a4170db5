"""Epochs as many scripts have them, with plain code between the loops. --kind says what that code and the steps do."""

import logging
import os
import sys
import tempfile

import torch.distributed as dist
from torch.utils.data import DataLoader

import taskd
from tests.trust.loops.stage import BATCH, EPOCHS, Stage
from tests.trust.scene import say

stage = Stage()
table = stage.folder / f"table{stage.rank}.csv"
opened = open(stage.folder / f"opened{stage.rank}.csv", "a") if "opened" in stage.args.kind else None  # noqa: SIM115
logging.basicConfig(stream=sys.stdout, level=logging.ERROR, format="%(message)s")
loader = DataLoader(stage.data, batch_sampler=taskd.StepSampler(stage.data, BATCH, seed=3))
session = taskd.session()
session.register(model=stage.model, optimizer=stage.optimizer)
for epoch in range(EPOCHS):
    for step in session.steps(loader):
        with step as batch:
            if "gathers" in stage.args.kind:
                found: list[dict[str, int]] = [{}, {}]
                dist.all_gather_object(found, {"one": 1})
                assert sum(one["one"] for one in found) == 2
            if "receives" in stage.args.kind:
                number = [step.number]
                dist.broadcast_object_list(number, 0)
                assert number[0] >= 0
            stage.train(batch, step.number, step.rehearsal)
            if "raises" in stage.args.kind and step.number == 6 and not step.rehearsal:
                dist.barrier()
                if stage.rank == 1:
                    raise ValueError("rank 1 has had enough")
    if "adds" in stage.args.kind:
        with table.open("a") as file:
            file.write(f"{epoch}\n")
    if "swallows" in stage.args.kind:
        try:
            table.unlink(missing_ok=True)
        except Exception:
            say("swallowed")
    if opened is not None:
        opened.write(f"{epoch}\n")
    if "harmless" in stage.args.kind:
        logging.error("epoch %d", epoch)
        with open(os.devnull, "w") as nowhere, tempfile.TemporaryFile() as passing:
            nowhere.write(f"{epoch}")
            passing.write(b"one")
        (stage.folder / "folder").mkdir(exist_ok=True)
        list(DataLoader(stage.data, batch_size=BATCH, num_workers=1))
stage.end()

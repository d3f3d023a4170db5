"""A loop for each epoch. The script gives the epoch's number to its sampler, with a session or with plain torch."""

from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import taskd
from tests.trust.loops.stage import BATCH, EPOCHS, PER_EPOCH, Stage

stage = Stage()
if "distributed" in stage.args.kind:
    sampler = DistributedSampler(stage.data, seed=3)
    loader = DataLoader(stage.data, batch_size=BATCH, sampler=sampler)
else:
    sampler = taskd.StepSampler(stage.data, BATCH, seed=3)
    loader = DataLoader(stage.data, batch_sampler=sampler)
for epoch in range(EPOCHS):
    sampler.set_epoch(10 + epoch)
    if "plain" in stage.args.kind:
        for at, batch in enumerate(loader):
            stage.train(batch, epoch * PER_EPOCH + at)
        continue
    session = taskd.session()
    session.register(model=stage.model, optimizer=stage.optimizer)
    for step in session.steps(loader):
        with step as batch:
            stage.train(batch, step.number, step.rehearsal)
stage.end()

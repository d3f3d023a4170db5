"""Epochs of a session. An evaluation over all ranks, a schedule, a table and a checkpoint follow each epoch."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import taskd
from tests.trust.loops.stage import BATCH, EPOCHS, Stage
from tests.trust.scene import loss_of, say

stage = Stage()
sampler = DistributedSampler(stage.data, seed=3)
loader = DataLoader(stage.data, batch_size=BATCH, sampler=sampler)
scheduler = torch.optim.lr_scheduler.ExponentialLR(stage.optimizer, 0.8)
session = taskd.session()
session.register(model=stage.model, optimizer=stage.optimizer, scheduler=scheduler)
history: list[float] = []


def evaluate() -> float:
    """Return the loss of all ranks. It draws numbers, switches the model's mode and moves the schedule."""
    stage.model.eval()
    scheduler.step()
    noise = float(torch.rand(1))
    stage.here("evaluation", epoch)
    with torch.no_grad():
        mine = sum(float(loss_of(stage.model, x)) for _, x in DataLoader(stage.data, batch_size=BATCH))
    found: list[dict[str, float]] = [{}, {}]
    dist.all_gather_object(found, {"loss": mine + noise})
    stage.here("gathered", epoch)
    stage.model.train()
    say(f"evaluated {stage.rank} {epoch}")
    return sum(one["loss"] for one in found)


def report(loss: float) -> None:
    """Write the files of this rank."""
    stage.here("report", epoch)
    rows = "".join(f"{at} {row}\n" for at, row in enumerate([*history, loss]))
    taskd.write_file(stage.folder / f"table{stage.rank}.csv", rows)
    stage.here("reported half", epoch)
    taskd.save(stage.model.state_dict(), stage.folder / f"epoch{epoch}rank{stage.rank}.pt")
    stage.here("reported", epoch)


if "before" in stage.args.kind:
    epoch = -1
    history.append(session.between(evaluate, report))
for epoch in session.epochs(EPOCHS):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as batch:
            stage.train(batch, step.number, step.rehearsal)
    history.append(session.between(evaluate, report))
    stage.here("behind", epoch)
say(f"history {stage.rank} {history}")
stage.end()

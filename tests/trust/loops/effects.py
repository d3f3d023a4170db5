"""Steps that write: every other step, each rank adds a line of metrics and rank 0 saves a checkpoint."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import taskd
from tests.trust.loops.stage import BATCH, EPOCHS, Stage
from tests.trust.scene import average_gradients, loss_of, say

stage = Stage()
loader = DataLoader(stage.data, batch_sampler=taskd.StepSampler(stage.data, BATCH, seed=3))
session = taskd.session()
session.register(model=stage.model, optimizer=stage.optimizer)


def log(number: int, loss: float) -> None:
    """Add a line to this rank's metrics."""
    torch.rand(1)  # must not change the draws of the training
    stage.here("before the line", number)
    taskd.add_line(stage.folder / f"metrics{stage.rank}.csv", f"{number},{loss}")
    stage.here("behind the line", number)


def checkpoint(number: int) -> None:
    """Save the weights that the step has made."""
    stage.here("before the checkpoint", number)
    taskd.save(stage.model.state_dict(), stage.folder / f"step{number}.pt")
    stage.here("behind the checkpoint", number)


def mean(number: int) -> None:
    """Run a collective, which all ranks have to join."""
    total = torch.ones(1)
    stage.here("before the mean", number)
    dist.all_reduce(total)
    stage.here("behind the mean", number)


late = "late" in stage.args.kind
for _ in session.epochs(EPOCHS):
    for step in session.steps(loader):
        with step as (indices, x):
            if not step.rehearsal:
                say(f"saw {stage.rank} {step.number} {indices.tolist()}")
            stage.optimizer.zero_grad()
            loss = loss_of(stage.model, x)
            if step.number % 2 and not late:
                step.on_commit(log, step.number, loss.item())
                if stage.rank == 0:
                    step.on_commit(checkpoint, step.number)
                if "talks" in stage.args.kind:
                    step.on_commit(mean, step.number)
            stage.here("forward", step.number)
            loss.backward()
            average_gradients(stage.model)
            stage.here("reduced", step.number)
            if "saves" in stage.args.kind and stage.rank == 0:
                torch.save(stage.model.state_dict(), stage.folder / f"by itself {step.number}.pt")
            stage.optimizer.step()
            stage.here("updated", step.number)
            if step.number % 2 and late:
                step.on_commit(log, step.number, loss.item())
stage.end()

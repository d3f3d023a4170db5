"""Loops that number their steps by enumerate(), and compute with the number."""

import itertools
import time
from contextlib import nullcontext
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import taskd
from tests.trust.scene import Net, Scene

scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")
ACCUMULATE = 3
data = TensorDataset(torch.randn(56, 8), torch.randint(0, 3, (56,)))
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = DistributedDataParallel(Net(), static_graph=kind == "static")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=1)
torch.manual_seed(100 + scene.rank)
session = taskd.session()
session.register(model=model, optimizer=optimizer, scheduler=scheduler)
updates = 0
optimizer.zero_grad()


class Log:
    """What many training scripts have around their loader: it prints now and then."""

    def every(self, steps, count, header):
        begun = time.time()
        for step in steps:
            yield step
            if step.number % count == 0 and scene.rank == 0:
                print(f"{header} {step.number}: {time.time() - begun:.2f} s", flush=True)


def one(step):
    with step as (x, _):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x)
        scene.here(step, "forward")
        loss.backward()
        scene.here(step, "reduced")
        optimizer.step()
        scene.here(step, "updated")
    scene.here(step, "behind")


log = Log()
for epoch in session.epochs(3):
    sampler.set_epoch(epoch)
    if kind == "zipped":
        for i, (step, more) in enumerate(zip(session.steps(loader), itertools.repeat(0)), 1):
            with step as (x, _):
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), x) * (i / 7) + more
                scene.here(step, "forward")
                loss.backward()
                scene.here(step, "reduced")
                optimizer.step()
                scene.here(step, "updated")
            scene.here(step, "behind")
    elif kind == "logged":
        for i, step in enumerate(log.every(session.steps(loader), 3, f"epoch {epoch}:")):
            with step as (x, _):
                for group in optimizer.param_groups:
                    group["lr"] = 0.01 * (1 + i / len(loader))
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), x)
                scene.here(step, "forward")
                loss.backward()
                scene.here(step, "reduced")
                optimizer.step()
                scene.here(step, "updated")
            scene.here(step, "behind")
    elif kind == "counted":
        for i, step in zip(itertools.count(), session.steps(loader)):
            with step as (x, _):
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), x) * (1 + i / 7)
                scene.here(step, "forward")
                loss.backward()
                scene.here(step, "reduced")
                optimizer.step()
                scene.here(step, "updated")
            scene.here(step, "behind")
    elif kind == "listed":
        inputs, targets = data.tensors
        for step in session.steps(
            list(zip(inputs[scene.rank :: 2].split(4), targets[scene.rank :: 2].split(4), strict=True))
        ):
            one(step)
        i = 0
    elif kind == "accumulate":
        for i, step in enumerate(session.steps(loader)):
            with step as (x, _):
                updating = (i + 1) % ACCUMULATE == 0 or i + 1 == len(loader)
                with nullcontext() if updating else model.no_sync():
                    loss = F.mse_loss(model(x), x) / ACCUMULATE
                    scene.here(step, "forward")
                    loss.backward()
                scene.here(step, "reduced")
                if updating:
                    optimizer.step()
                    optimizer.zero_grad()
                    updates += 1
                scene.here(step, "updated")
            scene.here(step, "behind")
    else:
        for i, step in enumerate(session.steps(loader), 5):
            with step as (x, _):
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), x)
                scene.here(step, "forward")
                loss.backward()
                scene.here(step, "reduced")
                optimizer.step()
                scheduler.step(epoch + (i - 5) / len(loader))
                scene.here(step, "updated")
            if (i - 5) % 3 == 0 and scene.rank == 0:
                print(f"epoch {epoch} [{i}]: loss {loss.item():.4f}", flush=True)
            scene.here(step, "behind")
    scene.here(SimpleNamespace(number=epoch, rehearsal=False), "between")
scene.end(model, updates, i, scheduler.get_last_lr()[0])

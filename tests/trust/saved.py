"""A training that can write a last checkpoint, and takes it up when it is started again."""

import os
import signal
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.trust.scene import Net, Scene, die, say

STEPS = 14
MEMORY = "mem" + "ory"  # no source shows that a step keeps something there
scene = Scene()
kind, _, place = scene.args.place.partition(", ")
path = scene.args.folder / "last.pt"
model = DistributedDataParallel(Net().eval())  # without dropout: all that a step needs is in the checkpoint
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
setattr(torch.fft, MEMORY, torch.zeros(8))
first = tried = seen = 0
carried = torch.zeros(8)
if path.exists():
    kept = torch.load(path)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    setattr(torch.fft, MEMORY, kept.get("memory", getattr(torch.fft, MEMORY)))
    first = kept["done"]
    tried, seen = kept.get("tried", 0), kept.get("seen", 0)
    say(f"goes on from {first}")


def save(updates: int) -> None:
    say(f"saves {scene.rank} {first + updates}")
    if kind in ("fails", "stays"):
        model.train()  # with dropout; training goes on without it, if it goes on
        torch.manual_seed(updates)
        (scene.args.folder / "failed").touch()
        raise OSError("no space left on device")
    if kind == "communicates":
        dist.barrier()
    if kind == "dies" and scene.rank == 0:
        die()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": first + updates}
    if kind == "counts":
        state |= {"tried": tried, "seen": seen}
    if kind == "moves":
        state["meter"] = meter.state_dict()
    if kind == "carries":
        state["carried"] = carried
    if kind == "hides":
        state["memory"] = getattr(torch.fft, MEMORY).clone()
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)


class Meter:
    """Counts steps, and is registered."""

    def __init__(self) -> None:
        self.steps = torch.zeros(1)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.steps.copy_(state["steps"])


meter = Meter()
if first and kind == "moves":
    meter.load_state_dict(kept["meter"])
victim = 0 if kind == "first" else 1
session = taskd.session()
function = None if kind == "none" or (kind == "one" and scene.rank) else save
session.register(model=model, optimizer=optimizer, last_checkpoint=function, local={"meter": meter})
batches = [8 * torch.randn(4, 8, generator=torch.Generator().manual_seed(9 * at + scene.rank)) for at in range(STEPS)]
for step in session.steps(batches[first:]):
    number = first + step.number

    def here(where: str, number: int = number) -> None:
        """Die here once, if this is the place."""
        dead = scene.args.folder / "dead"
        if (scene.rank, number, where) == (victim, scene.args.at, place) and not dead.exists():
            dead.touch()
            die()
        if not (scene.rank or dead.exists()) and (number, f"holds {where}") == (scene.args.at, place):
            dead.touch()
            say("holds")
            while not (scene.args.folder / "go").exists():
                time.sleep(0.02)  # a file of the test has no event

    if kind == "twice" and scene.rank == 0 and number == scene.args.at + 3:
        say("holds again")
        while not (scene.args.folder / "again").exists():
            time.sleep(0.02)  # a file of the test has no event

    with step as batch:
        if kind == "stays" and (scene.args.folder / "failed").exists():
            signal.pause()  # training goes on after the failure, and is not over before its end is wanted
        optimizer.zero_grad()
        tried += 1
        if kind == "counts":
            optimizer.param_groups[0]["lr"] = 0.001 * (tried + seen)
        here("forward")
        found = model(batch) + (kind == "moves") * meter.steps
        if kind == "carries":
            found = found + 0.1 * carried
            carried = found.detach().mean(0)
        if kind in ("refuses", "hides") and number % 3 == 2:
            found = found + (kind == "hides") * getattr(torch.fft, MEMORY)
        found.square().mean().backward()
        here("reduced")
        optimizer.step()
        here("updated")
        if kind in ("refuses", "hides") and number % 3 == 0:
            setattr(torch.fft, MEMORY, 0.1 * next(model.parameters()).detach()[0].clone())
    seen += 1
    if kind not in ("twice", "still"):  # what moves behind a step may make all start over after a death
        meter.steps += 0.1
scene.end(model.module)

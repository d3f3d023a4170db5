"""Scripts that take up their own checkpoint. --place says how they do it, and where rank 1 dies.

"returned": session.between() before the loops returns the epochs that are done. "first": session.epochs() is told what
the script has read, and nothing else depends on it. "counted": it trains some epochs more than are done. "skipped":
finished epochs are skipped by `continue`. "together": one rank reads, and tells the others. "newest": each epoch has a
file of its own, and older ones are removed. "drawn": the work before the loops also draws, and switches modules.
"tensor": it returns a tensor. "alias": it returns a dict that the script also holds. "failed": it fails without a
checkpoint. "begun": there is a checkpoint before the job begins. "object": the work returns what nobody can keep.
"plain": there is no session.between().
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of

EPOCHS = 4
scene = Scene()
kind, _, place = scene.args.place.partition(", ")
scene.args.place = place
model = Net()
if kind in ("plain", "object"):
    model.drop.p = 0.0  # a run from the checkpoint draws otherwise
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
folder = scene.args.folder / "checkpoints"
state = dict[str, Any]()
session = taskd.session()
session.register(model=model, optimizer=optimizer)


class Found:
    """What a checkpoint says."""

    def __init__(self, done: int, best: float) -> None:
        self.done, self.best = done, best


def path_of(done: int) -> Path:
    return folder / (f"{done}.pt" if kind == "newest" else "last.pt")


def save(done: int, best: float) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    taskd.save({**state, "done": done, "best": best}, path_of(done))
    if kind == "newest":
        path_of(done - 1).unlink(missing_ok=True)


def read() -> tuple[int, float]:
    """Load the newest checkpoint, if there is one."""
    found = sorted(folder.glob("*.pt"))
    if not found:
        return 0, math.inf
    saved = torch.load(found[-1], weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["done"], saved["best"]


def take_up() -> tuple[int, float]:
    """Return how many epochs are done, and the best score, on a newcomer like on its predecessor."""
    if kind == "together":
        return together()
    if kind == "drawn":
        done, best, model.drop.p = session.between(lambda: (*read(), 0.1 + 0.1 * float(torch.rand(()))))
    elif kind == "tensor":
        done, found = session.between(lambda: (read()[0], torch.tensor(read()[1])))
        best = float(found)
    elif kind == "alias":
        session.between(lambda: state.update(zip(("done", "best"), read(), strict=True)) or state)
        done, best = state["done"], state["best"]
    elif kind == "failed":
        try:
            done, best = session.between(read_strictly)
        except FileNotFoundError:
            done, best = session.between(lambda: (0, math.inf))
    elif kind == "object":
        object_ = session.between(lambda: Found(*read()))
        done, best = object_.done, object_.best
    else:
        done, best = read() if kind in ("plain", "first", "counted") else session.between(read)
    return done, math.inf if kind in ("first", "counted", "failed") else best


def read_strictly() -> tuple[int, float]:
    if not [*folder.iterdir()]:
        raise FileNotFoundError(folder)
    return read()


def together() -> tuple[int, float]:
    """Rank 1 reads, and tells the others."""
    done, best = session.between(lambda: read() if scene.rank == 1 else (0, 0.0))
    found: list[Any] = [{"done": done, "best": best, "history": ["epoch"] * done}]
    dist.broadcast_object_list(found, 1)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 1)
    return found[0]["done"], found[0]["best"]


def epochs(done: int) -> Iterator[int]:
    if kind == "skipped":
        for epoch in range(EPOCHS):
            if epoch < done:
                continue
            yield epoch
    elif kind == "plain":
        yield from range(done, EPOCHS)
    else:
        yield from session.epochs(done + EPOCHS if kind == "counted" else EPOCHS, first=done)


def one_step(step: Any) -> None:
    with step as batch:
        scene.here(step, "forward")
        optimizer.zero_grad()
        loss_of(model, batch["x"]).backward()
        average_gradients(model)
        scene.here(step, "reduced")
        optimizer.step()
        scene.here(step, "updated")


def evaluate() -> float:
    with torch.no_grad():
        found = loss_of(model, torch.ones(2, 8))
    dist.all_reduce(found)
    return float(found)


def train(done: int, best: float) -> None:
    for epoch in epochs(done):
        loader.batch_sampler.set_epoch(epoch)
        for step in session.steps(loader):
            one_step(step)

        def keep(score: float, epoch: int = epoch, best: float = best) -> None:
            if scene.rank == 0:
                save(epoch + 1, min(best, score))

        best = min(best, session.between(evaluate, then=keep))


if scene.rank == 0:
    folder.mkdir(exist_ok=True)
    if kind == "begun" and not [*folder.iterdir()]:
        save(1, 3.0)
dist.barrier()
done, best = take_up()
loader = scene.loader()
train(done, best)
scene.end(model)

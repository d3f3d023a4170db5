"""A compiled model. A newcomer finds the compiler imported, and compiled code in the caches of earlier processes.

The first word of --place is what is compiled, and how (WAYS), the second one is where rank 1 dies. Rank 1 waits for the
test before that. A rank that ends prints the hits and misses of torch's caches ("caches RANK HITS MISSES").
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

COMPILER = "torch._inductor.compile_fx"
ready = COMPILER in sys.modules

import torch  # noqa: E402 - what was there before the script began is asked first
from scene import Net, Scene, loss_of, say  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import taskd  # noqa: E402

WAYS: dict[str, dict[str, Any]] = {
    "all": {},
    "inside": {},  # the model inside DistributedDataParallel
    "fullgraph": {"fullgraph": True},  # that, too
    "overhead": {"mode": "reduce-overhead"},
    "dynamic": {"dynamic": True},  # and batches of several lengths
    "lengths": {},  # batches of several lengths, which torch finds out
    "breaks": {},  # a model that is compiled in two pieces
    "update": {},  # the step of the optimizer, too
}


class Broken(Net):
    """A model with a line that the compiler leaves to Python."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        found: torch.Tensor = self.second(self.drop(x))
        return found


def main() -> None:
    scene = Scene()
    say(f"compiler {'was there' if ready else 'is to come'} {scene.rank}")
    way, place = scene.args.place.split()
    scene.args.place = place
    net: Any = Broken() if way == "breaks" else Net()
    inside = way in ("inside", "fullgraph")
    model: Any = DistributedDataParallel(torch.compile(net, **WAYS[way]) if inside else net)
    trained: Any = model if inside else torch.compile(model, **WAYS[way])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    update = torch.compile(optimizer.step) if way == "update" else optimizer.step
    session = taskd.session()
    session.register(model=model, optimizer=optimizer)
    for step in session.steps(scene.loader()):
        with step as batch:
            rows = batch["x"]
            if way in ("dynamic", "lengths"):
                rows = rows[: 2 + step.number % 3]
            optimizer.zero_grad()
            loss = loss_of(trained, rows)
            if scene.rank == 1 and step.number == scene.args.at and not step.rehearsal:
                wait_for_the_test(scene)
            scene.here(step, "forward")
            loss.backward()
            scene.here(step, "backward")
            update()
            scene.here(step, "updated")
    say(f"caches {scene.rank} {' '.join(map(str, counted()))}")
    scene.end(net)


def wait_for_the_test(scene: Scene) -> None:
    """Wait for the test before the death, and not again after it."""
    if not scene.dead.exists():
        os.close(os.open(scene.args.folder / "go", os.O_RDONLY))


def counted() -> tuple[int, int]:
    """Return the hits and misses of both caches."""
    counters = sys.modules["torch._dynamo.utils"].counters
    both = [(counters["inductor"], "fxgraph_cache"), (counters["aot_autograd"], "autograd_cache")]
    hits = sum(counter[f"{name}_hit"] for counter, name in both)
    return hits, sum(counter[f"{name}_{word}"] for counter, name in both for word in ("miss", "bypass"))


if __name__ == "__main__":
    main()

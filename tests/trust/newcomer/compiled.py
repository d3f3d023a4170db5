"""A compiled model. A newcomer finds the compiler imported, and compiled code in the caches of earlier processes.

--place "inside ..." compiles only the model inside DistributedDataParallel, otherwise all of it. Rank 1 waits for the
test before it dies. A rank that ends prints the hits and misses of torch's caches ("caches RANK HITS MISSES").
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


def main() -> None:
    scene = Scene()
    say(f"compiler {'was there' if ready else 'is to come'} {scene.rank}")
    inside = scene.args.place.startswith("inside ")
    scene.args.place = scene.args.place.removeprefix("inside ")
    net: Any = Net()
    model: Any = DistributedDataParallel(torch.compile(net) if inside else net)
    trained = model if inside else torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    session = taskd.session()
    session.register(model=model, optimizer=optimizer)
    for step in session.steps(scene.loader()):
        with step as batch:
            optimizer.zero_grad()
            loss = loss_of(trained, batch["x"])
            if scene.rank == 1 and step.number == scene.args.at and not step.rehearsal:
                wait_for_the_test(scene.args.folder)
            loss.backward()
            scene.here(step, scene.args.place)
            optimizer.step()
    say(f"caches {scene.rank} {' '.join(map(str, counted()))}")
    scene.end(net)


def wait_for_the_test(folder: Path) -> None:
    """Wait for the test before the death, and not again after it."""
    if not (folder / "dead").exists():
        os.close(os.open(folder / "go", os.O_RDONLY))


def counted() -> tuple[int, int]:
    """Return the hits and misses of both caches."""
    counters = sys.modules["torch._dynamo.utils"].counters
    both = [(counters["inductor"], "fxgraph_cache"), (counters["aot_autograd"], "autograd_cache")]
    hits = sum(counter[f"{name}_hit"] for counter, name in both)
    return hits, sum(counter[f"{name}_{word}"] for counter, name in both for word in ("miss", "bypass"))


if __name__ == "__main__":
    main()

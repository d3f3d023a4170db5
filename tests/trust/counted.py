"""A script that counts its steps by itself, and computes its learning rate and loss from the count.

--place says where the count is kept, where it grows and where rank 1 dies: "frame, behind, backward" in the backward.
"""

import torch
import torch.distributed as dist

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of, metric_of

scene = Scene()
kind, where, place = f"{scene.args.place}, ".split(", ")[:3]
scene.args.place = place
count = 0


def warmup(number: int) -> float:
    """Return the factor of the gradients in this step."""
    return min(1.0, (number + 1) / 6)


def counted() -> None:
    """Count one step in a variable of the module."""
    global count
    count += 1


def pair() -> None:
    """Rank 1 sends something to rank 0. No other rank takes part."""
    if scene.rank == 0:
        dist.recv(torch.empty(1), src=1)
    elif scene.rank == 1:
        dist.send(torch.ones(1), dst=0)


class Schedule:
    """A schedule of the script's own, as many scripts have one. It is not registered."""

    steps = 0
    made = 0
    """The steps of all instances together."""

    def __init__(self) -> None:
        self.last = ""

    def advance(self) -> None:
        """Count one step."""
        self.steps += 1
        type(self).made += 1
        self.last = f"step {self.steps}"


class Meter:
    """One of several objects that are told of each step."""

    def __init__(self) -> None:
        self._seen = 0

    @property
    def seen(self) -> int:
        """Return how many steps it has seen."""
        return self._seen

    def on_step(self) -> None:
        """Count one step."""
        self._seen += 1


class Inherited(Meter):
    """Counts like Meter, and in a call."""

    def on_step(self) -> None:
        super().on_step()

    def __call__(self) -> None:
        """Count one step."""
        self.on_step()


class Totals:
    """A class that holds a count and has no instances."""

    steps = 0


class Trainer:
    """Has the model. Counts in an attribute, in a local variable of its loop, or in a variable of the module."""

    def __init__(self) -> None:
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.session = taskd.session()
        self.session.register(model=self.model, optimizer=self.optimizer)
        self.count = 0
        self.schedule = Schedule()
        self.meters = [Meter(), Meter()]
        self.named = {"one": Meter(), "other": Meter()}
        self.unseen = Meter()
        self.inherited = Inherited()

    def count_apart(self, totals: dict[str, int]) -> None:
        """Count in objects, in classes and in a dict."""
        self.schedule.advance()
        Totals.steps += 1
        for meter in self.meters:
            meter.on_step()
        for meter in self.named.values():
            meter.on_step()
        self.inherited()
        for name in ("unseen",):
            getattr(self, name).on_step()
        totals["steps"] += 1

    def train(self) -> None:
        """Train in a loop that stands in a method."""
        here, totals = 0, {"steps": 0}
        for step in self.session.steps(scene.loader()):
            if where == "before":
                here, self.count = here + 1, self.count + 1
                counted()
                self.count_apart(totals)
            with step as batch:
                if where == "beginning":
                    here, self.count = here + 1, self.count + 1
                    counted()
                    self.count_apart(totals)
                scene.here(step, "forward")
                variables = {"frame": here, "module": count, "attribute": self.count}
                others = {"object": self.schedule.steps, "dict": totals["steps"], "one of many": self.meters[1].seen}
                others |= {"named": self.named["other"].seen, "unseen": self.unseen.seen}
                others |= {"inherited": self.inherited.seen}
                classes = {"class": Totals.steps, "its class": Schedule.made}
                number = {**variables, **others, **classes}[kind]
                for group in self.optimizer.param_groups:
                    group["lr"] = 0.01 / (1 + number)
                self.optimizer.zero_grad()
                loss = loss_of(self.model, batch["x"]) * warmup(number)
                loss.backward()
                scene.here(step, "backward")
                average_gradients(self.model)
                scene.here(step, "reduced")
                self.optimizer.step()
                if where == "metric":
                    scene.here(step, "updated")
                    metric_of(loss)
                if where == "pair":
                    scene.here(step, "updated")
                    pair()
                if where in ("updated", "metric", "pair"):
                    here, self.count = here + 1, self.count + 1
                    counted()
                    self.count_apart(totals)
                scene.here(step, "updated")
            if where == "behind":
                here, self.count = here + 1, self.count + 1
                counted()
                self.count_apart(totals)
        scene.end(self.model, here, self.count, count, self.schedule.steps, totals["steps"])


Trainer().train()

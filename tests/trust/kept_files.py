"""Steps read files. --place: the kind, and where rank 1 dies.

"mean": each step keeps a mean in a file, whose first version the set-up writes. "shared": one rank keeps it for all,
and replaces the file. "lines": each step adds a line and reads all of them. "base": each step opens a database.
"handle": the set-up opens the file, and keeps it open. "saved": torch writes and reads it. "tree": the set-up removes
its folder. "seldom": few steps read it. "first": in the step in which rank 1 dies, all read it for the first time, and
write it. "late": a later step reads for the first time, and dies there. "own": each step writes a file and reads it.
"given": the set-up of each rank writes a file that steps read. "log": the set-up opens a log that is only written.
"plotted": another thread reads the log. "copied": steps copy the file. "added": steps add two lines. "both": steps add
a line and read all with the mode "a+". "habit": they only add, with that mode.
"""

import json
import os
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.trust.scene import Net, Scene, say

scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")
own, shared = (scene.args.folder / name for name in (f"mean{scene.rank}.json", "mean.json"))


def write(path: Path) -> Path:
    """Write the first version of the file."""
    path.write_text(json.dumps({"mean": 1.0}))
    return path


def remove(path: Path) -> Path:
    """Remove what an earlier run has left."""
    path.unlink(missing_ok=True)
    return path


def write_for_all() -> Path:
    """Let one rank write the first version of the file."""
    if scene.rank == 0:
        write(shared)
    dist.barrier()
    return shared


def table() -> Path:
    """Make a table of losses in a file."""
    with sqlite3.connect(remove(own)) as base:
        base.execute("CREATE TABLE losses (loss REAL)")
    return own


def mean_of_file(loss: float) -> float:
    """Return the mean in the file."""
    return 1 + float(json.loads(kept.read_text())["mean"]) / 100


def move_mean(loss: float) -> None:
    """Move the mean in the file a little."""
    mean = json.loads(kept.read_text())["mean"]
    kept.write_text(json.dumps({"mean": 0.5 * mean + 0.5 * loss}))


def move_mean_for_all(loss: float) -> None:
    """Let one rank replace the file, once all have read it."""
    if scene.rank == 0:
        mean = json.loads(kept.read_text())["mean"]
        new = kept.with_suffix(".new")
        new.write_text(json.dumps({"mean": 0.5 * mean + 0.5 * loss}))
        os.replace(new, kept)
    dist.barrier()


def add_line(loss: float) -> None:
    """Add a line."""
    with kept.open("a") as file:
        file.write(f"{loss}\n")


def count_lines(loss: float) -> float:
    """Read all lines."""
    return 1 + len(kept.read_text().splitlines()) / 100 if kept.exists() else 1.0


def count_lines_late(loss: float) -> float:
    """Read all lines in one late step."""
    return count_lines(loss) if step.number == 4 else 1.0


def add_row(loss: float) -> None:
    """Add the loss to a table in a file."""
    with sqlite3.connect(kept) as base:
        base.execute("INSERT INTO losses VALUES (?)", (loss,))


def mean_of_rows(loss: float) -> float:
    """Ask a table in a file."""
    with sqlite3.connect(kept) as base:
        (mean,) = base.execute("SELECT avg(loss) FROM losses").fetchone()
    return 1 + float(mean or 0) / 100


def write_and_read(loss: float) -> float:
    """Write a file, add to it, and read it."""
    if step.rehearsal:
        return 1.0
    kept.write_text("")
    add_line(loss)
    return count_lines(loss)


def log_it(loss: float) -> None:
    """Write the loss down."""
    log.write(f"{loss}\n")
    log.flush()


def log_and_plot(loss: float) -> None:
    """Write the loss down, and let another thread read all of it."""
    log_it(loss)
    plots = threading.Thread(target=kept.read_text)
    plots.start()
    plots.join()


def as_it_is(loss: float) -> float:
    """Use nothing else."""
    return 1.0


def count_lines_seldom(loss: float) -> float:
    """Read all lines in two steps."""
    return count_lines(loss) if step.number in (2, 6) else 1.0


def move_mean_early(loss: float) -> float:
    """In one step, read the mean, and move it."""
    if step.number != 4:
        return 1.0
    mean = mean_of_file(loss)
    if not step.rehearsal:
        move_mean(loss)
    return mean


def add_by_handle(loss: float) -> None:
    """Add a line to the file that is open."""
    handle.write(f"{loss}\n")
    handle.flush()


def load_mean(loss: float) -> float:
    """Return the mean in the file."""
    return 1 + float(torch.load(kept)["mean"]) / 100


def save_mean(loss: float) -> None:
    """Move the mean in the file a little."""
    torch.save({"mean": 0.5 * torch.load(kept)["mean"] + 0.5 * loss}, kept)


def saved(path: Path) -> Path:
    """Write the first version of the file."""
    torch.save({"mean": 1.0}, path)
    return path


def in_a_folder() -> Path:
    """Make a folder anew."""
    folder = scene.args.folder / f"tree{scene.rank}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder / "lines"


def add_and_count(loss: float) -> float:
    """Add a line through a file object that also reads all of them."""
    with kept.open("a+") as file:
        file.write(f"{loss}\n")
        file.seek(0)
        return 1 + len(file.readlines()) / 100


def add_by_habit(loss: float) -> None:
    """Add a line, with a mode that could read."""
    with kept.open("a+") as file:
        file.write(f"{loss}\n")


def copy(loss: float) -> None:
    """Write the file, and copy it as it was before."""
    if kept.exists():
        shutil.copy(kept, kept.with_suffix(".copy"))
    kept.write_text(f"{loss}")


def add_two_lines(loss: float) -> None:
    """Add two lines."""
    taskd.add_line(kept, f"{step.number}")
    taskd.add_line(kept, f"{loss}")


weigh, note, made = {
    "mean": (mean_of_file, move_mean, lambda: write(own)),
    "shared": (mean_of_file, move_mean_for_all, write_for_all),
    "lines": (count_lines, add_line, lambda: remove(own)),
    "base": (mean_of_rows, add_row, table),
    "late": (count_lines_late, add_line, lambda: remove(own)),
    "seldom": (count_lines_seldom, add_line, lambda: remove(own)),
    "first": (move_mean_early, as_it_is, lambda: write(own)),
    "handle": (count_lines, add_by_handle, lambda: own),
    "saved": (load_mean, save_mean, lambda: saved(own)),
    "tree": (count_lines, add_line, in_a_folder),
    "both": (add_and_count, as_it_is, lambda: remove(own)),
    "habit": (as_it_is, add_by_habit, lambda: own),
    "copied": (as_it_is, copy, lambda: own),
    "added": (as_it_is, add_two_lines, lambda: own),
    "own": (write_and_read, as_it_is, lambda: own),
    "given": (mean_of_file, as_it_is, lambda: write(own)),
    "log": (as_it_is, log_it, lambda: own),
    "plotted": (as_it_is, log_and_plot, lambda: own),
}[kind]
kept: Any = made()
handle: Any = own.open("w") if kind == "handle" else None
log: Any = own.open("w") if kind in ("log", "plotted") else None
if log is not None:
    log.write("loss\n")
model = DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)
for step in session.steps(scene.loader()):
    with step as batch:
        optimizer.zero_grad()
        loss = (model(batch["x"]) - batch["x"]).pow(2).mean()
        loss = loss * weigh(loss.item())
        scene.here(step, "forward")
        loss.backward()
        optimizer.step()
        scene.here(step, "updated")
        note(loss.item())
        scene.here(step, "noted")
if log is not None:
    log.close()
    say(f"log {scene.rank} {own.read_text().split()}")
scene.end(model)

"""A loop keeps what its steps need in objects in which nobody can see. --place: the kind, and where rank 1 dies.

"database": a table in memory, whose mean decides how much each sample counts. "cursor": the same through a cursor that
each step asks for. "hash": a running hash gives each step its weight. "stream": bytes in memory that are read again.
"attribute": an object has the table. "late": the first step makes the table. "replaced": a packer that holds all that
the one before held takes its place. "fresh": each step makes a hash of its own. "log": a stream in memory that is only
written. "index": a table that is only asked. "apart": only the rank that dies has a table. "alias": the table has
another name in a function. "line": each step reads a line of a file. "array": an array of the standard library.
"future": each step uses what the one before has begun. "packed": each step uses the bytes that a packer flushes.
"group": a group of processes. "rows": a table that is only written. "saving": a thread saves something meanwhile.
"""

import hashlib
import io
import os
import sqlite3
import struct
import zlib
from array import array
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.trust.scene import Net, Scene

scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")
INSERT, MEAN = "INSERT INTO losses VALUES (?)", "SELECT avg(loss) FROM losses"


def table() -> sqlite3.Connection:
    """Return a table of losses in memory."""
    made = sqlite3.connect(":memory:")
    made.execute("CREATE TABLE losses (loss REAL)")
    made.execute(INSERT, (0.5,))
    return made


def by_database(loss: float) -> float:
    """Keep the loss in a table."""
    kept.execute(INSERT, (loss,))
    return float(kept.execute(MEAN).fetchone()[0])


def by_one_rank(loss: float) -> float:
    """Keep the loss in a table, if this rank has one."""
    if kept is None:
        return 1.0
    kept.execute(INSERT, (loss,))
    return float(kept.execute(MEAN).fetchone()[0])


def by_alias(loss: float) -> float:
    """Keep the loss in a table that has another name here."""
    mine = kept
    _ = mine.execute(INSERT, (loss,))
    rows = mine.execute(MEAN)
    (mean,) = rows.fetchone()
    return float(mean)


def by_line(loss: float) -> float:
    """Read the next line of a file."""
    return 1 + len(kept.readline()) / 100


def by_array(loss: float) -> float:
    """Keep the loss in an array."""
    kept[step.number % 4] = loss
    return float(1 + sum(kept) / 100)


def by_future(loss: float) -> float:
    """Use what was begun in the step before, and begin the next one."""
    kept["next"], found = pool.submit(abs, -loss), kept["next"].result()
    return float(1 + found / 100)


def with_rows(loss: float) -> float:
    """Write the loss down in a table that nobody asks."""
    kept.execute(INSERT, (loss,))
    kept.cursor().execute(INSERT, (loss,))
    kept.commit()
    return 1.0


def while_saving(loss: float) -> float:
    """Wait for what is being saved, and save the next thing."""
    if kept["saving"] is not None:
        kept["saving"].result()
    kept["saving"] = pool.submit(abs, -loss)
    return 1.0


def with_a_group(loss: float) -> float:
    """Reduce over a group, and ask for its size."""
    total = torch.tensor([loss])
    dist.all_reduce(total, group=kept)
    return float(total) / dist.get_world_size(kept)


def by_cursor(loss: float) -> float:
    """Keep the loss in a table, by way of a cursor."""
    cursor = kept.cursor()
    cursor.execute(INSERT, (loss,))
    cursor.execute(MEAN)
    return float(cursor.fetchone()[0])


class Keeper:
    """Has a table, from the beginning or from the first step on."""

    def __init__(self) -> None:
        self.base: Any = None if kind == "late" else table()

    def keep(self, loss: float) -> float:
        """Keep this loss. Return the mean of all losses."""
        if self.base is None:
            self.base = table()
        self.base.execute(INSERT, (loss,))
        (mean,) = self.base.execute(MEAN).fetchone()
        return float(mean)


def by_keeper(loss: float) -> float:
    """Keep the loss in an object that has a table."""
    return float(kept.keep(loss))


def by_hash(loss: float) -> float:
    """Hash all losses."""
    kept.update(struct.pack("d", loss))
    return float(1 + kept.digest()[0] / 256)


def by_stream(loss: float) -> float:
    """Keep the loss as bytes, and read all of them."""
    kept.write(struct.pack("d", loss))
    return 1 + zlib.crc32(kept.getvalue()) % 100 / 100


def by_packer(loss: float) -> float:
    """Pack all losses, and go on with a copy of the packer."""
    global kept
    kept.compress(struct.pack("d", loss))
    kept = kept.copy()
    return float(1 + len(kept.copy().flush()) / 100)


def by_packed_bytes(loss: float) -> float:
    """Pack all losses, and use the bytes that are ready."""
    kept.compress(struct.pack("d", loss))
    return float(1 + zlib.crc32(kept.flush(zlib.Z_SYNC_FLUSH)) % 100 / 100)


def by_hash_of_its_own(loss: float) -> float:
    """Hash this loss alone."""
    own = hashlib.sha256()
    own.update(struct.pack("d", loss))
    return 1 + own.digest()[0] / 256


def with_a_log(loss: float) -> float:
    """Write the loss down."""
    kept.write(f"{loss}\n")
    return 1.0


def by_index(loss: float) -> float:
    """Ask a table that stays as it is."""
    return loss + float(kept.execute(MEAN).fetchone()[0])


pool = ThreadPoolExecutor(1)
weigh, made = {
    "database": (by_database, table),
    "cursor": (by_cursor, table),
    "apart": (by_one_rank, lambda: table() if scene.rank == 1 else None),
    "alias": (by_alias, table),
    "line": (by_line, lambda: os.fdopen(os.open(__file__, os.O_RDONLY))),
    "array": (by_array, lambda: array("d", [0.0] * 4)),
    "future": (by_future, lambda: {"next": pool.submit(abs, -1.0)}),
    "rows": (with_rows, table),
    "saving": (while_saving, lambda: {"saving": None}),
    "group": (with_a_group, dist.new_group),
    "attribute": (by_keeper, Keeper),
    "late": (by_keeper, Keeper),
    "hash": (by_hash, hashlib.sha256),
    "stream": (by_stream, io.BytesIO),
    "replaced": (by_packer, zlib.compressobj),
    "packed": (by_packed_bytes, zlib.compressobj),
    "fresh": (by_hash_of_its_own, dict),
    "log": (with_a_log, io.StringIO),
    "index": (by_index, table),
}[kind]
kept: Any = made()
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
scene.end(model)

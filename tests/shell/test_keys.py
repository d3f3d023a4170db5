"""The job's key: where it comes from, who may read it, and which peer is let in with it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from taskd import config
from taskd.errors import UsageError
from taskd.wire import keys, run_dir

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]
ROOT = Path(__file__).resolve().parents[2]
HEX = "ab" * 32


def loaded(base: Path, **variables: str) -> config.Config:
    return config.load(environ={"TASKD_RUN_DIR": str(base), "TASKD_JOB_ID": "job", **variables})


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_is_made_once_and_kept_for_this_user_alone(run_dir: Path) -> None:
    settings = loaded(run_dir)
    assert keys.find(settings) is None
    key = keys.load_or_create(settings)
    assert len(key.secret) == 32
    assert mode(run_dir / "job" / "key") == 0o600 and mode(run_dir / "job") == 0o700
    assert os.listdir(run_dir / "job") == ["key"]
    again = keys.load_or_create(settings)
    found = keys.find(settings)
    assert found is not None and again.secret == found.secret == key.secret
    assert key.secret.hex() not in repr(key) and key.server.secret.decode() not in repr(key.server)


def test_a_umask_changes_nothing(run_dir: Path) -> None:
    before = os.umask(0)
    try:
        keys.load_or_create(loaded(run_dir))
    finally:
        os.umask(before)
    assert mode(run_dir / "job" / "key") == 0o600 and mode(run_dir / "job") == 0o700


def test_many_makers_get_one_key(run_dir: Path) -> None:
    code = (
        "from taskd import config; from taskd.wire import keys; print(keys.load_or_create(config.load()).secret.hex())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TASKD_JOB_ID": "job"}
    made = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    assert len({process.communicate()[0] for process in made}) == 1
    assert os.listdir(run_dir / "job") == ["key"]


def test_environment_wins_over_file_and_file_over_run_dir(run_dir: Path, tmp_path: Path) -> None:
    keys.load_or_create(loaded(run_dir))
    file = tmp_path / "given"
    file.write_text("cd" * 32 + "\n")
    file.chmod(0o600)
    by_file = keys.find(loaded(run_dir, TASKD_KEY_FILE=str(file)))
    both = keys.find(loaded(run_dir, TASKD_KEY_FILE=str(file), TASKD_KEY=HEX))
    assert by_file is not None and by_file.secret.hex() == "cd" * 32 and by_file.source == str(file)
    assert both is not None and both.secret.hex() == HEX and both.source == "TASKD_KEY"
    file.write_bytes(bytes(range(32)))
    raw = keys.find(loaded(run_dir, TASKD_KEY_FILE=str(file)))
    assert raw is not None and raw.secret == bytes(range(32))


@pytest.mark.parametrize(
    ("content", "permissions", "says"),
    [
        (HEX, 0o644, "chmod 600"),
        (HEX, 0o640, "chmod 600"),
        ("no key", 0o600, "holds no key"),
        ("", 0o600, "holds no key"),
        ("ab" * 31, 0o600, "64 hexadecimal digits"),
        ("é" * 64, 0o600, "holds no key"),
    ],
)
def test_an_unsafe_or_broken_key_file_is_refused_with_the_cure(
    run_dir: Path, tmp_path: Path, content: str, permissions: int, says: str
) -> None:
    file = tmp_path / "given"
    file.write_text(content)
    file.chmod(permissions)
    with pytest.raises(UsageError, match=says):
        keys.find(loaded(run_dir, TASKD_KEY_FILE=str(file)))


def test_pipes_folders_and_missing_files_are_refused(run_dir: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (pipe, tmp_path / "missing", tmp_path):
        with pytest.raises(UsageError, match="key file"):
            keys.find(loaded(run_dir, TASKD_KEY_FILE=str(path)))


def test_a_link_is_followed_where_the_user_named_it_and_only_there(run_dir: Path, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text(HEX)
    real.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(real)
    found = keys.find(loaded(run_dir, TASKD_KEY_FILE=str(link)))
    assert found is not None and found.secret.hex() == HEX
    keys.load_or_create(loaded(run_dir))
    (run_dir / "job" / "key").unlink()
    (run_dir / "job" / "key").symlink_to(real)
    with pytest.raises(UsageError, match="symbolic link"):
        keys.find(loaded(run_dir))
    real.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        keys.find(loaded(run_dir, TASKD_KEY_FILE=str(link)))


def test_a_run_directory_that_others_could_have_made_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base"
    run_dir.ensure(str(base / "job"))
    (base / "job").chmod(0o755)
    with pytest.raises(UsageError, match="chmod 700"):
        run_dir.ensure(str(base / "job"))
    (base / "job").chmod(0o700)
    base.chmod(0o777)
    with pytest.raises(UsageError, match="not safe"):
        run_dir.ensure(str(base / "job"))
    base.chmod(0o1777)  # like /tmp: with the sticky bit no other user can move our folder away
    run_dir.ensure(str(base / "job"))
    (base / "real").mkdir(mode=0o700)
    (base / "linked").symlink_to(base / "real")
    with pytest.raises(UsageError, match="symbolic link"):
        run_dir.ensure(str(base / "linked"))
    if os.getuid() == 0:
        os.chown(base / "real", 12345, 12345)
        with pytest.raises(UsageError, match="another user"):
            run_dir.ensure(str(base / "real"))


def test_a_run_directory_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="TASKD_RUN_DIR"):
        run_dir.ensure(str(tmp_path / "file" / "base" / "job"))


def test_pairs_are_derived_and_differ() -> None:
    one, same, other = keys.Key(b"1" * 32, "a"), keys.Key(b"1" * 32, "b"), keys.Key(b"2" * 32, "c")
    assert one.server == same.server and one.client == same.client
    assert len({one.server.public, one.client.public, other.server.public, other.client.public}) == 4
    assert zmq.curve_public(one.client.secret) == one.client.public and len(one.client.public) == 40


def test_zap_lets_in_the_derived_client_and_nobody_else() -> None:
    key, other = keys.Key(b"1" * 32, "a"), keys.Key(b"2" * 32, "b")
    ask = [b"1.0", b"7", keys.ZAP_DOMAIN, b"10.0.0.9", b"", b"CURVE", z85.decode(key.client.public)]
    assert keys.zap_answer(ask, key.client.public) == ([b"1.0", b"7", b"200", b"OK", b"", b""], "")
    for wrong in (
        [*ask[:6], z85.decode(other.client.public)],
        [*ask[:6], z85.decode(key.server.public)],
        [*ask[:6], b""],
        [*ask[:6], ask[6] + b"x"],
        [*ask[:5], b"NULL"],
        [*ask[:5], b"PLAIN", b"user", b"password"],
        [*ask[:5], b"PLAIN", ask[6]],
    ):
        reply, refused = keys.zap_answer(wrong, key.client.public)
        assert reply[2] == b"400" and refused == "10.0.0.9"
    for nonsense in ([], [b"1.0"], [b"2.0", *ask[1:]]):
        assert keys.zap_answer(nonsense, key.client.public)[0] == []


ENDS = """
import contextlib, os, sys, threading
from datetime import timedelta
import torch.distributed as dist
from taskd import config
from taskd.errors import BackendError
from taskd.worker import connector, presence
from taskd.worker.identity import Identity

def none(*_):
    raise BackendError("there is no agent here")

def look():
    looking.set()
    with contextlib.suppress(RuntimeError):
        store.wait(["what never comes"], timedelta(seconds=0.5))
    return b""

connector.start_agent = none
looking = threading.Event()
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=0, world_size=1)
store = dist.distributed_c10d._get_default_store()
there = presence.Presence(config.load(), Identity("job", "nowhere", 5, 6, 5, 0))
there.link._keys.share._look = look
there.start()
looking.wait()
"""


def test_a_process_may_end_while_it_looks_for_the_key(run_python: RunPython, run_dir: Path) -> None:
    """A thread of taskd is in the job's store then, and the end of the interpreter cannot take it out of there."""
    said = run_python(ENDS, env={"TASKD_RUN_DIR": str(run_dir)}).stderr
    assert "terminate called" not in said

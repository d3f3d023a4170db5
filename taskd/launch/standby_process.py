"""The standby's own process: imports what a training script will need, then forks a worker for each request.

It stays single-threaded, because a thread's locks would stay locked in every child. It can serve any number of
requests. Each request is a double fork: the launcher, which adopts orphans, is then the worker's parent and gets its
exit code. The command line names the function that a child runs. The child's request passes through here unread, in a
memory file.
It ends with the launcher. It does NOT touch CUDA, open stores or sockets, or know what a worker is.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # the folder that `-m` put there is not a script's: what lies in it must not shadow a library

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
from collections.abc import Callable

from taskd import _native

DESCRIPTORS_MAX = 8
REPLY_BYTES_MAX = 512


def main(arguments: list[str]) -> None:
    """`FD PARENT MODULE:FUNCTION FOLDER MODULE[:FUNCTION]...`: import the last ones and call the functions that they
    name. Then serve on socket FD; in each child call the first function."""
    descriptor, parent, entry, folder, *modules = arguments
    # If this process has another parent now, the launcher is gone already: no signal would report its death.
    _native.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != int(parent):
        return
    line = socket.socket(fileno=int(descriptor))
    line.set_inheritable(False)
    with _searching(folder), uncollected():
        for named in filter(str.strip, modules):
            module, _, function = named.partition(":")
            found = importlib.import_module(module)
            if function:
                getattr(found, function)()
    run: Callable[[list[int]], None] = getattr(
        importlib.import_module(entry.partition(":")[0]), entry.partition(":")[2]
    )
    gc.collect()
    gc.freeze()  # else each child would copy every page at its first collection
    # Fork once: OpenBLAS ends its threads before a fork and starts them again at the next use.
    _gone(lambda: os._exit(0))
    try:
        line.send(f"ready {_native.thread_count()}".encode())
        descriptors = _serve(line, int(parent))
    except ConnectionError:  # the launcher has ended and did not read the last message
        return
    if descriptors is not None:
        run(descriptors)


@contextlib.contextmanager
def uncollected():  # type: ignore[no-untyped-def]
    """Switch the garbage collector off during imports: it finds no garbage there, and takes a quarter of the time."""
    usual = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        if gc.get_threshold()[0] == 0:  # else an imported module has set a threshold of its own
            gc.set_threshold(*usual)


@contextlib.contextmanager
def _searching(folder: str):  # type: ignore[no-untyped-def]
    """Find modules beside the script, as the script will."""
    if folder:
        sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder:
            sys.path.remove(folder)


def _serve(line: socket.socket, parent: int) -> list[int] | None:
    """Answer requests until the launcher closes the socket; returns None then. In a child, returns the descriptors that
    came with the request."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(line, 64, DESCRIPTORS_MAX)
        if not data:
            return None
        try:
            answer = _answer(line, parent)
            if answer is None:
                line.close()
                return descriptors
        except OSError as error:
            answer = f"failed {error.strerror}"
        for fd in descriptors:
            os.close(fd)
        line.send(answer.encode()[:REPLY_BYTES_MAX])


def _answer(line: socket.socket, parent: int) -> str | None:
    """Fork a worker and return the answer for the launcher; None in the worker itself."""
    count = _native.thread_count()
    if count != 1:
        return f"threads {count}"
    told, tell = os.pipe()
    try:
        middle = os.fork()
        if middle == 0:
            child = _fork_of_middle(tell)
            if child == 0:
                os.close(told)
                os.close(tell)
                _wait_for_adoption(parent)
                return None
            os._exit(0)
        os.waitpid(middle, 0)
        os.close(tell)
        tell = -1
        pid = os.read(told, 32).decode()
        return f"started {pid}" if pid else "failed the system has no room for another process"
    finally:
        if line.fileno() >= 0:
            for fd in (told, tell):
                with contextlib.suppress(OSError):
                    os.close(fd)


def _fork_of_middle(tell: int) -> int:
    """Fork once more; returns 0 in the worker. The process in between ends at once, and its parent sends the worker's
    pid to the launcher."""
    try:
        child = os.fork()
    except OSError:
        os._exit(1)
    if child:
        os.write(tell, str(child).encode())
    return child


def _wait_for_adoption(parent: int) -> None:
    """Wait until the launcher is this process' parent. If the launcher is gone, this process ends."""
    middle = os.getppid()
    if middle != parent:
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(middle)
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            poller.poll()
            os.close(fd)
    if os.getppid() != parent:
        os._exit(1)


def _gone(child: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        child()
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Tests aside.py: work that may block for ever is left behind when an order says so, and nothing polls by the clock."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from taskd.comm import aside
from taskd.errors import StepAbandoned


def test_the_result_and_the_error_are_the_works_own() -> None:
    assert aside.do(lambda: 7, lambda: False, "never") == 7
    with pytest.raises(ZeroDivisionError):
        aside.do(lambda: 1 // 0, lambda: False, "never")


def test_what_is_over_already_is_not_waited_for() -> None:
    ends = threading.Event()
    with pytest.raises(StepAbandoned, match="no longer"):
        aside.do(ends.wait, lambda: True, "no longer")
    ends.set()


FORKER = """
import os, threading
from taskd.comm import aside
from taskd.errors import StepAbandoned

ends, children = threading.Event(), []

def is_over():
    children.append(os.fork())
    return True

try:
    aside.do(ends.wait, is_over, "given up")
except StepAbandoned:
    if children[0] == 0:
        os._exit(0)
ends.set()
assert children[0] and os.waitpid(children[0], 0)[1] == 0
"""


def test_a_child_that_is_forked_in_the_wait_leaves_it_as_its_parent_does() -> None:
    done = subprocess.run([sys.executable, "-c", FORKER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_order_ends_the_wait_and_others_do_not() -> None:
    ends, asked, over = threading.Event(), threading.Semaphore(0), threading.Event()

    def is_over() -> bool:
        asked.release()
        return over.is_set()

    def orders() -> None:
        asked.acquire()  # the caller waits now
        aside.look()
        asked.acquire()  # the order did not concern it
        over.set()
        aside.look()

    ordering = threading.Thread(target=orders)
    ordering.start()
    with pytest.raises(StepAbandoned, match="given up"):
        aside.do(ends.wait, is_over, "given up")
    ordering.join()
    ends.set()
    assert asked.acquire(blocking=False), "it asks at first, and for each order"
    assert not asked.acquire(blocking=False), "and at no other time"
    aside.look()  # no caller waits any more

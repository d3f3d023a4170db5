"""The identity of a training process, from what launchers leave in the environment."""

from __future__ import annotations

from taskd import config
from taskd.worker import identity

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "2",
    "TORCHELASTIC_RESTART_COUNT": "3",
    "TORCHELASTIC_RUN_ID": "none",
}


def test_torchrun_s_variables():
    found = identity.find(config.load(environ={}), 5, TORCHRUN)
    assert found == identity.Identity("default", "node-2", 5, 8, 1, 4)


def test_a_configured_node_name_wins():
    settings = config.load(environ={"TASKD_NODE": "left"})
    assert identity.node_name(settings, TORCHRUN) == "left"
    assert identity.node_name(config.load(environ={}, job={"node": "right"}), TORCHRUN) == "right"


def test_a_pod_s_number_comes_before_the_host_s_name():
    settings = config.load(environ={})
    assert identity.node_name(settings, {"NODE_RANK": "1"}) == "node-1"
    assert identity.node_name(settings, {"GROUP_RANK": "-1"}) == settings.job.node
    assert identity.node_name(settings, {}) == settings.job.node


def test_the_world_size_of_a_pod_is_not_that_of_the_job():
    settings = config.load(environ={}, job={"node_nums": 2, "proc_per_node": 8})
    assert identity.world_size(settings, {"WORLD_SIZE": "2"}) == 16
    assert identity.world_size(settings, {"WORLD_SIZE": "32", "LOCAL_RANK": "0"}) == 32


def test_what_is_no_number_is_left_aside():
    for text in ("", " ", "x", "-1", "1.5", "9" * 30, "١"):
        assert identity.find(config.load(environ={}), 0, {"TORCHELASTIC_RESTART_COUNT": text}).incarnation == 0


def test_the_launcher_s_own_count_of_lives_wins():
    environ = {**TORCHRUN, identity.INCARNATION_VARIABLE: "9"}
    assert identity.find(config.load(environ={}), 5, environ).incarnation == 9

"""Which tests belong to which of three tiers, and which of three processes runs them.

The gate (`make test`) asks whether a change is right, on any machine and in minutes. It runs one example of everything;
what has its story in virtual time is tested by that story. Full is what the gate leaves out: many seeds, storms, thread
sanitizers, all launched jobs and all network namespaces; `make test-full` runs it, and then the gate's tests with half
a core. Timing (tests/timing, `make test-timing`) asks how quick it is. A test is in the gate unless FULL names it. Of a
test marked `one_in`, the gate runs some examples. Of the tests of ONE_EXAMPLE, which train and kill, it runs one, and
of a file of TRUST that of its first test. Whoever changes what these files are about runs them whole. Only tests/timing
may judge by a clock.

The three processes are equal, and the split is fixed, so a test runs beside the same tests every day. There is one more
than the two cores of the smallest machine, because tests wait for processes that start or end. The split follows from
SECONDS, the times of the longer files in a gate on a quiet machine. A file is never split, since its fixtures are
shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

TIERS = ("gate", "full", "timing")
TIMING = "tests/timing/"
FULL = (
    # data races: the same programs again, much slower
    "tests/rail/test_sessions.py::test_engines[races",
    "tests/rail/test_sessions.py::test_engines[memory-10",
    "tests/rail/test_sessions.py::test_parts_of_a_session[parts",
    "tests/rail/test_parts.py::test_every_part[races]",
    "tests/native/test_sanitizers.py::test_native[races]",
    "tests/train/test_guard_sanitizers.py::test_storm_over_lanes[races",
    # more seeds, more ranks, longer storms
    "tests/train/test_guard_sanitizers.py::test_storm_over_lanes[memory-2]",
    "tests/rail/test_collectives.py::test_over_engines[4",
    "tests/rail/test_collectives.py::test_over_engines[0-4",
    "tests/rail/test_collectives.py::test_over_engines[0-8",
    "tests/rail/test_collectives.py::test_threads_of_engines_do_not_race",
    "tests/rail/test_collectives.py::test_the_largest_and_the_widest",
    "tests/rail/test_fuzz.py::test_nothing_that_is_said_breaks_it[today's",
    "tests/sim/test_rails.py",
    "tests/sim/test_pauses.py::test_every_decision",
    "tests/sim/test_pauses.py::test_a_rank_that_stands_without_end",
    "tests/shell/test_bench_pause.py::test_a_job",
    "tests/train/test_gpu_proof.py",
    *(f"tests/sim/test_seeds.py::test_fixed_seeds[{tens}" for tens in (1, 2, 4, 5, 7, 8, 9)),
    "tests/sim/test_seeds.py::test_fresh_seeds",
    "tests/sim/test_seeds.py::test_faults_really_strike",
    "tests/sim/test_broken.py::test_broken_promise_is_caught[first_report",
    "tests/sim/test_broken.py::test_broken_promise_is_caught[sleep",
    "tests/sim/test_broken.py::test_broken_promise_is_caught[nobody_rests",
    *(
        f"tests/scripts/test_stories.py::test_story[{one}]"
        for one in (
            *("last_holder_hangs", "slow_set_up", "pause_kill_long", "slow_restore", "restarts_forgotten"),
            "first_long_step",
        )
    ),
    "tests/sim/test_broken.py::test_broken_promise_is_caught[every_fault",
    "tests/sim/test_broken.py::test_broken_machine_is_caught[restless]",
    "tests/sim/test_broken.py::test_broken_machine_is_caught[credulous agent]",
    "tests/sim/test_broken.py::test_broken_machine_is_caught[wordy]",
    "tests/train/test_guard_storm.py::test_storm[2",
    "tests/train/test_guard_storm.py::test_storm[3-40-gloo]",
    "tests/train/test_guard_storm.py::test_reconfigurations",
    # whole jobs: each of these has a smaller one in the gate, or a story
    "tests/check/test_nodes.py::test_the_node_at_fault_leaves[stopped",
    "tests/check/test_nodes.py::test_the_node_at_fault_leaves[other",
    "tests/check/test_nodes.py::test_a_node_that_never",
    "tests/check/test_nodes.py::test_a_node_that_lies",
    "tests/check/test_nodes.py::test_two_nodes",
    "tests/check/test_nodes.py::test_rails_of_hosts",
    "tests/check/test_job.py::test_nodes_without",
    "tests/check/test_job.py::test_too_few",
    "tests/test_packaging.py",
    "tests/train/test_guard_apis.py::test_api[adopt",
    "tests/train/test_guard_apis.py::test_compiled",
    "tests/train/test_guard_compat.py",
    "tests/trust/test_found.py::test_a_script_without_epochs",
    "tests/trust/test_reckoned.py::test_the_rank_is_its_own",
    "tests/trust/test_reckoned.py::test_a_newcomer_takes_what_it_had_drawn_itself",
    "tests/trust/test_hsdp.py::test_a_death_before_any_line",
    "tests/trust/test_raising.py::test_a_sample_that_is_never_there",
    "tests/trust/test_raising.py::test_a_stream_that_fails",
    "tests/trust/loops/test_loops.py::test_what_leaves_no_trace",
    "tests/trust/test_handed.py::test_what_a_newcomer_rehearses_is_right",
    "tests/trust/newcomer/test_newcomer.py::test_a_compiled_model",
    "tests/trust/proof/test_flips.py::test_a_scheduler_that_is_ahead",
    "tests/trust/loops/test_loaders.py::test_a_session",
    "tests/trust/loops/test_loaders.py::test_draws",
    "tests/trust/loops/test_loaders.py::test_a_batch",
    "tests/trust/loops/test_loaders.py::test_an_evaluation",
    "tests/train/test_loaders.py::test_processes_that_are_not_forked",
    "tests/train/test_rail_backend.py::test_compiled",
    "tests/train/test_rail_backend.py::test_api_without_a_guard",
    "tests/train/test_rail_backend.py::test_drawn_operations_equal_the_reference[4-4]",
    "tests/train/test_bench_compiled.py::test_two_jobs",
    "tests/train/test_practice.py::test_a_newcomer_compiles",
    "tests/train/test_practice.py::test_a_standby_can",
    "tests/train/test_samples.py::test_a_sample_heals[train_function",
    "tests/train/test_samples.py::test_a_sample_heals[train_hsdp",
    "tests/test_site.py::test_the_first_script_heals",
    "tests/check/test_nodes.py::test_a_node_that_computes",
    "tests/train/test_heal.py::test_killed_in_turn_at_every_place[1",
    "tests/train/test_heal.py::test_several_at_once[t",
    "tests/train/test_heal.py::test_over_gloo",
    "tests/train/test_heal.py::test_twenty",
    "tests/train/test_heal.py::test_other_ways_to_die",
    "tests/train/test_heal.py::test_without_the_standby",
    "tests/train/test_heal_bad_input.py::test_a_newcomer_that_is_set_up_otherwise[collectives",
    "tests/train/test_heal_bad_input.py::test_a_newcomer_that_is_set_up_otherwise[groups",
    "tests/train/test_heal_bad_input.py::test_a_sharded_model_starts_over_at_once[mesh]",
    "tests/train/test_heal_bad_input.py::test_an_average_of_the_weights",
    "tests/train/test_heal_bad_input.py::test_a_second_model",
    "tests/train/test_heal_bad_input.py::test_children_outlive",
    "tests/train/test_heal_bad_input.py::test_groups_of_some_ranks",
    "tests/train/test_heal_bad_input.py::test_a_group_that_not_all",
    "tests/train/test_heal_bad_input.py::test_limits_of_files",
    "tests/train/test_heal_bad_input.py::test_no_file",
    "tests/train/test_heal_bad_input.py::test_gradients_carried",
    "tests/train/test_heal_bad_input.py::test_the_scripts_own_handler",
    "tests/train/test_heal_faults.py::test_a_second_death",
    "tests/train/test_heal_faults.py::test_a_death_in_the_middle",
    "tests/train/test_heal_faults.py::test_the_system_kills",
    "tests/train/test_heal_faults.py::test_a_worker_is_refused",
    "tests/train/test_errands.py::test_a_rank_is_replaced_between_two_steps[0",
    "tests/train/test_errands.py::test_it_uses_up_no_restart",
    "tests/train/test_errands.py::test_the_manager_is_started_again",
    "tests/train/test_node_loss.py::test_two_nodes_are_lost_in_turn_and_two_spares_wait[start",
    "tests/train/test_node_loss.py::test_two_nodes_are_lost_in_turn_and_two_spares_wait[backward",
    "tests/train/test_node_loss.py::test_the_manager_was_started_again_before",
    "tests/train/test_node_loss.py::test_the_launcher_of_a_lost_node",
    "tests/train/test_node_loss.py::test_a_spare_that_comes",
    "tests/train/test_node_loss.py::test_the_spare_has_died",
    "tests/train/test_node_loss.py::test_the_spare_d",
    "tests/shell/test_launcher.py::test_a_worker_finds_what_it_finds_under_torchrun[options1]",
    "tests/shell/test_launcher.py::test_a_worker_finds_what_it_finds_under_torchrun[options2]",
    "tests/shell/test_launcher.py::test_the_cause_is_shown",
    "tests/shell/test_torchrun.py::test_it_heals[launch]",
    "tests/shell/test_torchrun.py::test_it_heals[module]",
    "tests/shell/test_torchrun.py::test_with_the_manager",
    "tests/shell/test_torchrun.py::test_the_older",
    "tests/shell/test_torchrun.py::test_torchrun_stays_as_it_is[disabled]",
    "tests/shell/test_torchrun.py::test_on_two_nodes",
    "tests/shell/test_torchrun.py::test_torchrun_stays_as_it_is[off]",
    "tests/shell/test_launcher.py::test_spawned",
    "tests/shell/test_launcher.py::test_log_files",
    "tests/shell/test_launcher.py::test_switched_off",
    "tests/shell/test_launcher.py::test_modules",
    "tests/shell/test_launcher.py::test_two_nodes[static]",
    "tests/shell/test_dropin.py::test_an_unchanged_script_under_two_torchruns[made]",
    "tests/shell/test_launcher_ends.py::test_a_signal_reaches_the_workers[1",
    "tests/shell/test_launcher_ends.py::test_a_spare_counts",
    "tests/shell/test_launcher_port.py::test_jobs_that_start",
    "tests/shell/test_hangs.py::test_who_is_waited_for_is_named_once[call]",
    "tests/shell/test_bench_strangers.py::test_a_job_is_measured",
    "tests/rail/test_bench_transport.py::test_ratios",
    "tests/shell/test_launcher_ends.py::test_ranks_that_communicate",
    "tests/shell/test_launcher_ends.py::test_restarts",
    "tests/shell/test_launcher_ends.py::test_a_manager_that_hangs_before",
    "tests/shell/test_launcher_ends.py::test_a_dead_standby",
    "tests/shell/test_launcher_ends.py::test_two_launchers",
    "tests/shell/test_launcher_ends.py::test_a_node_that_comes_after",
    "tests/shell/test_launcher_ends.py::test_the_first_node",
    "tests/shell/test_policy_jobs.py::test_what_no_rule_names_heals_in_place[3",
    "tests/rail/test_bench_rail.py::test_uneven",
    "tests/rail/test_decisions.py::test_a_flapping",
    "tests/rail/test_decisions.py::test_an_operator",
    "tests/rail/test_decisions.py::test_a_rail_that_is_out",
    "tests/rail/test_decisions.py::test_a_rank_is_healed",
    "tests/rail/test_decisions.py::test_a_rail_that_some",
    "tests/rail/test_training.py::test_rails_fail_under_training",
    "tests/rail/test_training.py::test_ranks_die_while_rails_fail",
    "tests/rail/test_namespaces.py::test_no_fault_changes_a_bit_between_eight",
    "tests/rail/test_namespaces.py::test_gloo",
    "tests/shell/test_npu_rail.py::test_a_way_back",
    # what is long, and has a shorter one like it in the gate
    "tests/shell/test_dropin.py::test_an_unchanged_script_under_two_torchruns",
    "tests/shell/test_torchrun.py::test_a_manager_elsewhere_that_never_comes",
    "tests/shell/test_torchrun.py::test_torchrun_stays_as_it_is[not",
    "tests/train/test_guard_storm.py::test_storm[3-30-rail]",
    "tests/train/test_guard_barrier.py::test_who_is_missing",
    "tests/train/test_guard_apis.py::test_api[install-names]",
    "tests/train/test_errands.py::test_a_rank_is_replaced_between_two_steps[2",
    "tests/train/test_loaders.py::test_a_loader_that_was_used_before",
    "tests/train/test_heal_bad_input.py::test_two_loops",
    "tests/shell/test_launcher.py::test_a_worker_finds_what_it_finds_under_torchrun[options0]",
    "tests/shell/test_launcher.py::test_a_program_that_is_no_script",
    "tests/shell/test_launcher_ends.py::test_a_manager_that_hangs_is_replaced",
    "tests/shell/test_hangs.py::test_who_is_waited_for_is_named_once[match]",
    "tests/shell/test_handing.py::test_a_node_that_cannot_be_of_the_job",
    "tests/comm/test_gloo_listener.py::test_nothing_listens",
    "tests/sim/test_broken.py::test_broken_promise_is_caught[deaths_are_ignored",
    "tests/sim/test_broken.py::test_broken_promise_is_caught[nobody_is_said",
    "tests/sim/test_broken.py::test_broken_promise_is_caught[those_who_wait",
    "tests/sim/test_broken.py::test_broken_machine_is_caught[forgetful",
    "tests/test_harness.py::test_a_process_that_dies",
    "tests/trust/test_beside.py",
    "tests/trust/test_gathered.py",
    "tests/trust/test_hidden.py",
    "tests/trust/test_numbered.py",
    "tests/trust/test_pruned.py",
    "tests/trust/test_sums.py",
    "tests/trust/test_unseen.py",
    # others of two or more like them
    "tests/check/test_nodes.py::test_the_node_at_fault_leaves[killed",
    "tests/shell/test_hangs.py::test_who_is_waited_for_is_named_once[hold]",
    "tests/shell/test_launcher_ends.py::test_a_mistake_of_ours_is_not_the_end_of_a_node[core.agent",
    "tests/shell/test_launcher_files.py::test_what_is_enough_is_enough_for_a_repair[more",
    "tests/shell/test_launcher_leaves.py::test_a_job_starts_on_a_host_without_a_name[words1",
    "tests/shell/test_pause_cli.py::test_who_does_not_stand_is_shown",
    "tests/shell/test_torchrun.py::test_two_hosts_with_the_manager_of_the_guide",
    "tests/shell/test_worker_ends.py::test_a_thread_of_gloo_that_is_late_does_not_abort_the_process[off",
    "tests/train/test_forked_groups.py::test_under_the_launcher[gloo]",
    "tests/train/test_guard_heal.py::test_weights_are_identical_after_a_kill[gloo]",
    "tests/train/test_heal_bad_input.py::test_a_newcomer_that_is_set_up_otherwise[shape",
    "tests/train/test_practice.py::test_a_practice_that_fails",
    "tests/trust/test_crowded.py",
    "tests/shell/test_store.py::test_eight_processes_at_once_lose_nothing_and_do_nothing_twice[calm]",
    "tests/comm/test_gloo_listener.py::test_only_the_listener_of_gloo_is_closed[a",
    "tests/rail/test_namespaces.py::test_all_rails_gone",
    "tests/shell/test_launcher_ends.py::test_a_mistake_of_ours_is_not_the_end_of_a_node[agent.store",
    "tests/shell/test_launcher_ends.py::test_a_run_after",
    "tests/shell/test_launcher_ends.py::test_a_spare_waits",
    "tests/shell/test_manager_restart.py::test_a_manager_that_was_stopped",
    "tests/shell/test_torchrun.py::test_a_caller",
    "tests/sim/test_broken.py::test_broken_promise_is_caught[nobody_compares",
    "tests/train/test_errands.py::test_a_script_without_a_session_is_left",
    "tests/train/test_forked_groups.py::test_under_torchrun",
    "tests/train/test_guarding.py::test_live_groups_are_guarded_and_the_result_is_the_same[off",
    "tests/train/test_pause.py::test_without_a_session",
    "tests/train/test_shards.py::test_a_part_is",
    "tests/train/test_shards.py::test_whole_parameters",
)
"""The beginnings of the names of tests that the gate leaves out."""
ONE_EXAMPLE = ("tests/trust/", "tests/train/test_loaders.py", "tests/train/test_moved.py")
"""The beginnings of the names of tests of which the gate runs one example: the middle one."""
TRUST = "tests/trust/"
"""Each file there trains one kind of script, and kills it in many ways."""
SECONDS = {
    "tests/scripts/test_stories.py": 51,
    "tests/test_harness.py": 46,
    "tests/shell/test_launcher_ends.py": 39,
    "tests/shell/test_agent_plane.py": 37,
    "tests/rail/test_decisions.py": 31,
    "tests/rail/test_sessions.py": 31,
    "tests/shell/test_operator_cli.py": 31,
    "tests/shell/test_manager_restart.py": 29,
    "tests/train/test_node_loss.py": 28,
    "tests/train/test_session.py": 27,
    "tests/train/test_store_c10d.py": 27,
    "tests/train/test_heal_bad_input.py": 25,
    "tests/train/test_tensor_rows_shared.py": 23,
    "tests/train/test_rail_backend.py": 22,
    "tests/rail/test_namespaces.py": 21,
    "tests/shell/test_rail_cli.py": 21,
    "tests/shell/test_store.py": 21,
    "tests/train/test_pause.py": 21,
    "tests/shell/test_hangs.py": 20,
    "tests/shell/test_said_aloud.py": 20,
    "tests/sim/test_check.py": 20,
    "tests/train/test_heal.py": 20,
    "tests/train/test_session_calls.py": 20,
    "tests/shell/test_launcher.py": 19,
    "tests/shell/test_torchrun.py": 18,
    "tests/test_tidy.py": 18,
    "tests/sim/test_broken.py": 17,
    "tests/train/test_guard_apis.py": 17,
    "tests/comm/test_reach.py": 16,
    "tests/shell/test_agent_bad_input.py": 16,
    "tests/shell/test_npu_rail.py": 16,
    "tests/train/test_errands.py": 16,
    "tests/train/test_loaders.py": 16,
    "tests/train/test_samples.py": 16,
    "tests/shell/test_copies.py": 15,
    "tests/shell/test_pause_cli.py": 15,
    "tests/shell/test_worker_ends.py": 15,
    "tests/shell/test_doctor.py": 14,
    "tests/shell/test_launcher_leaves.py": 14,
    "tests/shell/test_manager_door.py": 14,
    "tests/sim/test_seeds.py": 14,
    "tests/train/test_shards.py": 14,
    "tests/check/test_job.py": 12,
    "tests/property/test_wire.py": 12,
    "tests/shell/test_handing.py": 12,
    "tests/shell/test_policy_jobs.py": 12,
    "tests/train/test_guard_sandbox.py": 12,
    "tests/comm/test_gloo_listener.py": 11,
    "tests/devices/test_watch.py": 10,
    "tests/rail/test_descriptors.py": 10,
    "tests/rail/test_fuzz.py": 10,
    "tests/shell/test_launcher_files.py": 10,
    "tests/shell/test_patches.py": 10,
    "tests/test_readme.py": 10,
    "tests/test_site.py": 10,
    "tests/train/test_guard_adapters.py": 10,
    "tests/train/test_guard_modes.py": 10,
    "tests/train/test_guarding.py": 10,
    "tests/train/test_heal_faults.py": 10,
    "tests/trust/test_found.py": 10,
    "tests/trust/test_launcher_stopped.py": 10,
    "tests/property/test_check.py": 9,
    "tests/rail/test_collectives.py": 9,
    "tests/trust/test_reckoned.py": 9,
    "tests/comm/test_agreement.py": 8,
    "tests/rail/test_reports.py": 8,
    "tests/sim/test_pauses.py": 8,
    "tests/train/test_flow.py": 8,
    "tests/train/test_guard_bad_input.py": 8,
    "tests/trust/proof/test_flips.py": 8,
    "tests/trust/test_behind.py": 8,
    "tests/trust/test_handed.py": 8,
    "tests/trust/test_kinds.py": 8,
    "tests/trust/test_odd.py": 8,
    "tests/train/test_session_loops.py": 7,
    "tests/trust/loops/test_loaders.py": 7,
    "tests/trust/test_follows.py": 7,
    "tests/trust/test_late.py": 7,
    "tests/trust/test_printed.py": 7,
    "tests/check/test_parts.py": 6,
    "tests/train/test_guard_sanitizers.py": 6,
    "tests/trust/newcomer/test_newcomer.py": 6,
    "tests/trust/test_counted.py": 6,
    "tests/trust/test_groups.py": 6,
    "tests/trust/test_hsdp.py": 6,
    "tests/trust/test_kept.py": 6,
    "tests/trust/test_kept_files.py": 6,
    "tests/rail/test_parts.py": 5,
    "tests/shell/test_config.py": 5,
    "tests/test_clock.py": 5,
    "tests/test_imports.py": 5,
    "tests/train/test_forked_groups.py": 5,
    "tests/train/test_guard_adopt.py": 5,
    "tests/train/test_guard_heal.py": 5,
    "tests/train/test_tensor_rows.py": 5,
    "tests/trust/loops/test_loops.py": 5,
    "tests/trust/test_done.py": 5,
    "tests/trust/test_lacking.py": 5,
    "tests/trust/test_sealed.py": 5,
    "tests/trust/test_shown.py": 5,
    "tests/check/test_options.py": 4,
    "tests/shell/test_policy.py": 4,
    "tests/trust/test_leftover.py": 4,
}
"""The times of the files that take longer than the others, in a gate on a quiet machine with two cores."""
OTHERS_SECONDS = 1
UNEVEN = 1.2
"""The split is called old if one process takes this many times as long as the other."""


class Test(NamedTuple):
    """One example of a test."""

    name: str
    one_in: int = 1
    """The gate runs one in so many examples."""
    is_slow: bool = False


def tier_of(name: str) -> str:
    """Return the tier to which the name of a test assigns it. Not all examples of the gate's tests are the gate's."""
    return "timing" if name.startswith(TIMING) else "full" if name.startswith(FULL) else "gate"


def of_tier(tier: str, tests: Iterable[Test]) -> set[str]:
    """Return the names of a tier's tests. Each test belongs to one tier."""
    by_tier: dict[str, list[Test]] = {each: [] for each in TIERS}
    for test in tests:
        by_tier[tier_of(test.name)].append(test)
    if tier == "timing":
        return {test.name for test in by_tier["timing"]}
    few = few_of_many(by_tier["gate"])
    return few if tier == "gate" else {test.name for test in by_tier["gate"] + by_tier["full"]} - few


def few_of_many(tests: Iterable[Test]) -> set[str]:
    """Return the names of the examples that the gate runs. Of each test it runs the first example and every Nth after
    it. Neighbouring examples differ in one thing. So most kinds are met if N does not divide the numbers of kinds."""
    examples: dict[str, list[Test]] = {}
    jobs: dict[str, list[str]] = {}
    for one in tests:
        test = one.name.partition("[")[0]
        if test not in examples and one.is_slow and test.startswith(TRUST):
            jobs.setdefault(test.partition("::")[0], []).append(test)
        examples.setdefault(test, []).append(one)
    left_out = {test for found in jobs.values() for test in found[1:]}
    few = set[str]()
    for test, found in examples.items():
        if test in left_out:
            continue
        if test.startswith(ONE_EXAMPLE):
            few.add(found[len(found) // 2].name)
        else:
            few.update(one.name for at, one in enumerate(found) if at % one.one_in == 0)
    return few


def split(files: Iterable[str], processes: int) -> dict[str, int]:
    """Return the process number of each file. Longest first, each file goes to the process with the least work."""
    load = [0] * processes
    place = {}
    for file in sorted(files, key=lambda name: (-SECONDS.get(name, OTHERS_SECONDS), name)):
        place[file] = load.index(min(load))
        load[place[file]] += SECONDS.get(file, OTHERS_SECONDS)
    return place


def is_old(busy: Mapping[str, float], took: Mapping[str, float]) -> list[str]:
    """Return lines about an uneven split, and none about a good one. `busy`: seconds by process; `took`: by file.
    The lines name the files whose times differ most from SECONDS."""
    longest, shortest = max(busy.values(), default=0), min(busy.values(), default=0)
    if longest < UNEVEN * shortest or longest - shortest < 30:
        return []
    known = {file: SECONDS.get(file, OTHERS_SECONDS) for file in took}
    pace = sum(took.values()) / sum(known.values())
    moved = sorted(took, key=lambda file: -abs(took[file] / pace - known[file]))[:12]
    shares = " and ".join(f"{seconds:.0f}" for _, seconds in sorted(busy.items()))
    return [
        f"the split is old: the processes took {shares} s; in SECONDS of tests/tiers.py stand, and should stand:",
        *(f"    {file}: {known[file]}, {took[file] / pace:.0f}" for file in moved),
    ]

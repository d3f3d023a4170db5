"""Which tests belong to which of three tiers, and which of two processes runs them.

The gate (`make test`) asks whether a change is right, on any machine and in minutes. It runs one example of everything;
what has its story in virtual time is tested by that story. Full (`make test-full`) asks again with many seeds,
storms, thread sanitizers, all launched jobs and all network namespaces. Timing (tests/timing, `make test-timing`) asks
how quick it is. A test is in the gate unless FULL names it. Of a test marked `one_in`, the gate runs some examples.
Only tests/timing may judge by a clock.

The two processes are equal, and the split is fixed, so a test runs beside the same tests every day. The split follows
from SECONDS, the times of the longer files on a quiet machine. A file is never split, since its fixtures are shared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

TIERS = ("gate", "full", "timing")
TIMING = "tests/timing/"
FULL = (
    # data races: the same programs again, much slower
    "tests/rail/test_sessions.py::test_engines[races",
    "tests/rail/test_sessions.py::test_engines[memory-10",
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
    "tests/train/test_gpu_proof.py",
    "tests/sim/test_seeds.py::test_fixed_seeds[1",
    "tests/sim/test_seeds.py::test_fresh_seeds",
    "tests/sim/test_broken.py::test_broken_promise_is_caught[first_report",
    "tests/sim/test_broken.py::test_broken_promise_is_caught[sleep",
    "tests/sim/test_broken.py::test_broken_promise_is_caught[every_fault",
    "tests/sim/test_broken.py::test_broken_machine_is_caught[restless]",
    "tests/sim/test_broken.py::test_broken_machine_is_caught[credulous agent]",
    "tests/sim/test_broken.py::test_broken_machine_is_caught[wordy]",
    "tests/train/test_guard_storm.py::test_storm[2",
    "tests/train/test_guard_storm.py::test_storm[3-40-gloo]",
    "tests/train/test_guard_storm.py::test_reconfigurations",
    # whole jobs: each of these has a smaller one in the gate, or a story
    "tests/test_packaging.py",
    "tests/train/test_guard_apis.py::test_api[adopt",
    "tests/train/test_guard_apis.py::test_compiled",
    "tests/train/test_guard_compat.py",
    "tests/trust/test_trust.py::test_a_loader_that_communicates_starts_over[backward-3",
    "tests/trust/test_trust.py::test_a_loader_that_communicates_starts_over[behind-5",
    "tests/trust/test_parts.py::test_a_step_that_one_part_leaves_out_is_healed[3",
    "tests/trust/test_parts.py::test_a_step_that_one_part_leaves_out_is_healed[5",
    "tests/trust/test_handed.py::test_what_is_registered_or_only_summed_up_is_no_reason[sum-f",
    "tests/trust/test_handed.py::test_what_is_registered_or_only_summed_up_is_no_reason[kept-f",
    "tests/trust/test_found.py::test_a_script_without_epochs",
    "tests/trust/test_found.py::test_what_writes_into_parameters_is_named[loose-velocity-u",
    "tests/trust/test_found.py::test_what_writes_into_parameters_is_named[slow-optimizer.slow-f",
    "tests/trust/test_found.py::test_a_loop_that_takes_from_an_iterator_starts_over[u",
    "tests/trust/test_handed.py::test_what_a_newcomer_has_otherwise_starts_over[late-centre-u",
    "tests/trust/test_handed.py::test_what_a_newcomer_rehearses_is_right",
    "tests/trust/test_handed.py::test_what_a_newcomer_has_otherwise_starts_over[losses-losses-f",
    "tests/trust/test_reckoned.py::test_a_newcomer_takes_what_it_had_drawn_itself[forward-7",
    "tests/trust/test_reckoned.py::test_a_newcomer_takes_what_it_had_drawn_itself[updated",
    "tests/trust/test_reckoned.py::test_a_newcomer_takes_what_it_had_drawn_itself[reduced",
    "tests/trust/test_late.py::test_a_loop_that_draws_nothing_there_heals[drawn",
    "tests/trust/test_late.py::test_a_loop_that_draws_nothing_there_heals[updated",
    "tests/trust/test_reckoned.py::test_a_newcomer_that_leaves_its_epochs_on_its_way_refuses[stops-u",
    "tests/trust/newcomer/test_newcomer.py::test_a_compiled_model",
    "tests/trust/newcomer/test_newcomer.py::test_moments_in_their_own_dtype_and_what_is_switched[backward",
    "tests/trust/newcomer/test_newcomer.py::test_moments_in_their_own_dtype_and_what_is_switched[reduced-2",
    "tests/trust/proof/test_flips.py::test_a_bit_that_flips_on_one_of_four_ranks[lr",
    "tests/trust/proof/test_flips.py::test_a_bit_that_flips_on_one_of_four_ranks[moment",
    "tests/trust/proof/test_flips.py::test_a_scheduler_that_is_ahead",
    "tests/trust/proof/test_flips.py::test_a_wrong_repair_shows_after_its_first_updates[1",
    "tests/trust/test_groups.py::test_a_group_may_be_made_outside_of_the_step[4-b",
    "tests/trust/test_groups.py::test_a_group_may_be_made_outside_of_the_step[1",
    "tests/trust/loops/test_loops.py::test_epochs_and_a_death_in_a_step[forward",
    "tests/trust/loops/test_loops.py::test_epochs_and_a_death_in_a_step[reduced-3",
    "tests/trust/loops/test_loops.py::test_epochs_and_a_death_in_a_step[backward",
    "tests/trust/loops/test_loops.py::test_what_leaves_no_trace_is_let_through[gathers",
    "tests/trust/loops/test_loops.py::test_the_scripts_own_epochs_stand[steps",
    "tests/trust/loops/test_loops.py::test_a_newcomer_writes_nothing_of_epochs_that_are_over[swallows",
    "tests/trust/loops/test_loops.py::test_a_newcomer_writes_nothing_of_epochs_that_are_over[opened",
    "tests/trust/loops/test_loops.py::test_a_checkpoint_in_a_step_is_whole[5",
    "tests/trust/loops/test_loops.py::test_a_function_that_communicates_makes_all_start_over[forward",
    "tests/trust/loops/test_loops.py::test_a_function_that_communicates_makes_all_start_over[behind",
    "tests/trust/loops/test_loaders.py::test_a_session",
    "tests/trust/loops/test_loaders.py::test_draws",
    "tests/trust/loops/test_loaders.py::test_a_batch",
    "tests/trust/loops/test_loaders.py::test_an_evaluation",
    "tests/train/test_loaders.py::test_processes_that_are_not_forked",
    "tests/train/test_loaders.py::test_a_loader_that_was_used_before_the_loop[processes",
    "tests/train/test_loaders.py::test_orders[w",
    "tests/train/test_loaders.py::test_orders[d",
    "tests/train/test_loaders.py::test_orders[steps",
    "tests/train/test_loaders.py::test_orders[shuffle-i",
    "tests/train/test_loaders.py::test_orders[shuffle-a",
    "tests/train/test_loaders.py::test_orders[shuffle-pr",
    "tests/train/test_loaders.py::test_orders[generator-i",
    "tests/train/test_loaders.py::test_orders[generator-a",
    "tests/train/test_loaders.py::test_orders[generator-pr",
    "tests/train/test_loaders.py::test_orders[eager-i",
    "tests/train/test_loaders.py::test_orders[eager-a",
    "tests/train/test_loaders.py::test_orders[eager-pr",
    "tests/train/test_loaders.py::test_draws_of_the_dataset[generator-torch",
    "tests/train/test_loaders.py::test_draws_of_the_dataset[generator-own",
    "tests/train/test_loaders.py::test_draws_of_the_dataset[generator-all-i",
    "tests/train/test_loaders.py::test_draws_of_the_dataset[generator-all-a",
    "tests/train/test_loaders.py::test_draws_of_the_dataset[generator-all-pr",
    "tests/train/test_loaders.py::test_draws_of_the_dataset[steps-torch",
    "tests/train/test_loaders.py::test_draws_of_the_dataset[steps-own",
    "tests/train/test_loaders.py::test_draws_of_the_dataset[steps-all-i",
    "tests/train/test_loaders.py::test_draws_of_the_dataset[steps-all-a",
    "tests/train/test_loaders.py::test_draws_of_the_dataset[steps-all-pr",
    "tests/train/test_loaders.py::test_nothing_is_drawn_that_plain_torch_does_not_draw[shuffle",
    "tests/train/test_loaders.py::test_nothing_is_drawn_that_plain_torch_does_not_draw[drawn",
    "tests/train/test_loaders.py::test_nothing_is_drawn_that_plain_torch_does_not_draw[weighted",
    "tests/train/test_loaders.py::test_a_batch_that_was_written_into_comes_again[shuffle",
    "tests/train/test_loaders.py::test_a_batch_that_was_written_into_comes_again[steps",
    "tests/train/test_rail_backend.py::test_compiled",
    "tests/train/test_rail_backend.py::test_api_without_a_guard",
    "tests/train/test_rail_backend.py::test_drawn_operations_equal_the_reference[4-4]",
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
    "tests/shell/test_launcher.py::test_spawned",
    "tests/shell/test_launcher.py::test_log_files",
    "tests/shell/test_launcher.py::test_switched_off",
    "tests/shell/test_launcher.py::test_modules",
    "tests/shell/test_launcher.py::test_two_nodes[static]",
    "tests/shell/test_launcher_ends.py::test_a_signal_reaches_the_workers[1]",
    "tests/shell/test_launcher_ends.py::test_ranks_that_communicate",
    "tests/shell/test_launcher_ends.py::test_restarts",
    "tests/shell/test_launcher_ends.py::test_a_manager_that_hangs_before",
    "tests/shell/test_launcher_ends.py::test_a_dead_standby",
    "tests/shell/test_launcher_ends.py::test_two_launchers",
    "tests/shell/test_launcher_ends.py::test_a_node_that_comes_after",
    "tests/shell/test_launcher_ends.py::test_the_first_node",
    "tests/shell/test_launcher_ends.py::test_a_run_after_one_that_was_killed",
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
    "tests/shell/test_store.py::test_eight_processes_at_once_lose_nothing_and_do_nothing_twice[calm]",
)
"""The beginnings of the names of tests that the gate leaves out."""
SECONDS = {
    "tests/train/test_session.py": 124,
    "tests/trust/test_reckoned.py": 95,
    "tests/trust/loops/test_loops.py": 79,
    "tests/trust/test_hidden.py": 40,
    "tests/trust/test_streams.py": 130,
    "tests/trust/test_late.py": 20,
    "tests/trust/test_raising.py": 70,
    "tests/shell/test_hangs.py": 60,
    "tests/trust/test_hsdp.py": 50,
    "tests/trust/test_parts.py": 40,
    "tests/rail/test_sessions.py": 44,
    "tests/shell/test_launcher.py": 43,
    "tests/trust/test_counted.py": 35,
    "tests/train/test_heal_bad_input.py": 34,
    "tests/shell/test_launcher_ends.py": 33,
    "tests/trust/test_trust.py": 33,
    "tests/trust/loops/test_loaders.py": 28,
    "tests/shell/test_operator_cli.py": 26,
    "tests/shell/test_policy_jobs.py": 24,
    "tests/property/test_policy.py": 12,
    "tests/train/test_rail_backend.py": 25,
    "tests/sim/test_broken.py": 24,
    "tests/rail/test_namespaces.py": 22,
    "tests/trust/test_done.py": 22,
    "tests/shell/test_agent_plane.py": 22,
    "tests/train/test_node_loss.py": 21,
    "tests/train/test_loaders.py": 21,
    "tests/test_harness.py": 20,
    "tests/train/test_session_calls.py": 20,
    "tests/trust/test_handed.py": 20,
    "tests/trust/test_launcher_stopped.py": 19,
    "tests/trust/test_found.py": 18,
    "tests/train/test_guarding.py": 18,
    "tests/trust/test_groups.py": 18,
    "tests/trust/test_kinds.py": 17,
    "tests/shell/test_handing.py": 16,
    "tests/shell/test_worker_ends.py": 16,
    "tests/shell/test_said_aloud.py": 16,
    "tests/shell/test_manager_restart.py": 15,
    "tests/shell/test_dropin.py": 15,
    "tests/trust/proof/test_flips.py": 15,
    "tests/shell/test_store.py": 15,
    "tests/train/test_handed_on.py": 14,
    "tests/sim/test_seeds.py": 14,
    "tests/train/test_guard_apis.py": 14,
    "tests/train/test_guard_adapters.py": 14,
    "tests/rail/test_decisions.py": 14,
    "tests/trust/test_everyday.py": 14,
    "tests/train/test_heal.py": 13,
    "tests/shell/test_rail_cli.py": 13,
    "tests/shell/test_launcher_leaves.py": 13,
    "tests/comm/test_reach.py": 12,
    "tests/train/test_store_c10d.py": 12,
    "tests/test_tidy.py": 11,
    "tests/train/test_variables.py": 11,
    "tests/test_imports.py": 10,
    "tests/train/test_heal_faults.py": 9,
    "tests/train/test_guard_heal.py": 9,
    "tests/shell/test_doctor.py": 9,
    "tests/trust/newcomer/test_newcomer.py": 9,
    "tests/train/test_guard_modes.py": 9,
    "tests/rail/test_fuzz.py": 9,
    "tests/train/test_guard_storm.py": 8,
    "tests/shell/test_npu_rail.py": 8,
}
"""The times on a quiet machine of the files that take longer than the others."""
OTHERS_SECONDS = 2
UNEVEN = 1.2
"""The split is called old if one process takes this many times as long as the other."""


def tier_of(name: str) -> str:
    """Return the first of TIERS that runs the test of this name."""
    return "timing" if name.startswith(TIMING) else "full" if name.startswith(FULL) else "gate"


def runs(name: str, tier: str) -> bool:
    """Whether a tier runs a test. Full runs the gate's, too. Timing runs only its own, and no other tier runs those."""
    own = tier_of(name)
    return own == tier if tier == "timing" else TIERS.index(own) <= TIERS.index(tier)


def few_of_many(tests: Iterable[tuple[str, int]]) -> set[str]:
    """Return the names of the examples that the gate runs. `tests`: each example with its `one_in`, N. Of each test the
    gate runs the first example and every Nth after it. Neighbouring examples differ in one thing. So most kinds are met
    if N does not divide the numbers of kinds."""
    seen, few = Counter[str](), set[str]()
    for name, step in tests:
        test = name.partition("[")[0]
        if seen[test] % step == 0:
            few.add(name)
        seen[test] += 1
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

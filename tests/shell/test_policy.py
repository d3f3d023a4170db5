"""Policy files: what is read, what is refused with which line and which word, and what `taskd policy` says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskd import config
from taskd.core.limits import SECOND
from taskd.core.policy.rules import Complete, Event, Fail, Policy, Restart, Scope
from taskd.errors import UsageError
from taskd.manager.journal import Broken
from taskd.manager.memory import Memory
from taskd.policy import Source, handed, load, parse, to_hand
from taskd.policy.reader import KEYS, RULE_KEYS
from taskd.policy.words import COMPLETES, EVENTS, FAILS, RESTARTS, SCOPES
from tests.source import ROOT

MAIN = "import sys; from taskd.cli.main import main; sys.exit(main(sys.argv[1:]))"
OPERATORS = """\
# as users write it for an operator
faultTolerant: true
completePolicy: All
failPolicy: Any
minReplicas: 1
maxReplicas: 5
restartPolicy: OnNodeFailWithExitCode
restartScope: Pod
restartLimit: 100
restartTimeLimit: 60
restartTimeout: 864000
faultTolerantPolicy:
  - exitCodes: 129,101
    restartPolicy: ExitCode
    restartScope: Pod
  - exceptionalEvent: "nodeNotReady,PodForceDeleted"
    restartPolicy: OnNodeFail
    restartScope: Replica
"""


def read(text: str) -> Policy:
    return parse(Source("policy.yaml", text))


def test_the_keys_as_users_write_them() -> None:
    found = read(OPERATORS)
    assert (found.complete, found.fail, found.limit, found.gap_ns) == (Complete.ALL, Fail.ANY, 100, 60 * SECOND)
    assert (found.restart, found.restart_line) == (Restart.ON_NODE_FAIL_OR_EXIT_CODE, 7)
    assert (found.scope, found.scope_line, found.timeout_ns) == (Scope.NODE, 8, 864_000 * SECOND)
    codes, node = found.rules
    assert (codes.line, codes.codes, codes.restart, codes.scope) == (
        13,
        ((129, 129), (101, 101)),
        Restart.EXIT_CODE,
        Scope.NODE,
    )
    assert codes.text == "exitCodes: 129,101"
    assert (node.line, node.events, node.scope) == (16, {Event.NODE_LOST}, Scope.ALL)


def test_json_is_read_alike() -> None:
    as_json = {
        "restartPolicy": "Always",
        "restartLimit": 5,
        "faultTolerantPolicy": [{"exitCodes": [137, "1-100", -11], "restartScope": "All", "logPattern": "a\\b"}],
    }
    for text in (json.dumps(as_json), json.dumps(as_json, indent="\t"), json.dumps(as_json, separators=(",", ":"))):
        found = read(text)
        assert found.limit == 5 and found.rules[0].codes == ((137, 137), (1, 100), (139, 139))
        assert found.rules[0].pattern == "a\\b"


@pytest.mark.parametrize(
    ("written", "codes"),
    [
        ("exitCodes: 77", ((77, 77),)),
        ("exitCodes: -9", ((137, 137),)),
        ("exitCodes: 137", ((137, 137),)),
        ('exitCodes: "1-100, 129"', ((1, 100), (129, 129))),
        ("exitCodes: [1, -11]", ((1, 1), (139, 139))),
        ("signals: SIGKILL", ((137, 137),)),
        ("signals: segv,6", ((139, 139), (134, 134))),
        ("exitCodes: 3\n    signals: SIGBUS", ((3, 3), (135, 135))),
    ],
)
def test_exit_codes_and_signals(written: str, codes: tuple[tuple[int, int], ...]) -> None:
    (rule,) = read(f"faultTolerantPolicy:\n  - {written}\n").rules
    assert rule.codes == codes


def test_a_rule_takes_what_it_does_not_say_from_the_policy() -> None:
    (rule,) = read("restartPolicy: Never\nrestartScope: All\nfaultTolerantPolicy: [{signals: SIGBUS}]").rules
    assert (rule.restart, rule.scope) == (Restart.NEVER, None)
    assert read("faultTolerant: false").restart is Restart.NEVER


RULES = "faultTolerantPolicy:\n"
REFUSED = [
    ("", 1, "here is no policy"),
    ("- a\n- b", 1, "here is no policy"),
    ("restartPolicy: Never\n  x: y: z", 2, "this is no YAML"),
    ("restartPolicy: 'Never", 1, "this is no YAML"),
    ("failPolicy: Any\n\trestartPolicy: Never", 2, "this is no YAML"),
    ("restartPolicy: Never\n---\na: b", 2, "a second document"),
    ("a: &x 1\nb: *x", 1, "an anchor or a tag"),
    ("restartLimit: !!int 3", 1, "an anchor or a tag"),
    ("restartPolicy: Never\nrestartPolicy: Always", 2, "stands here again, after line 1"),
    ("restartScope: [[[[[[[[1]]]]]]]]", 1, "more than 6 levels"),
    ("{[1]: 2}", 1, "a key is a word"),
    ("apiVersion: v1", 1, "'apiVersion' is no key of a policy; there are faultTolerant"),
    ("restartpolicy: Never", 1, "did you mean restartPolicy?"),
    ("failPolicy: Any\nrestartPolicies: Never", 2, "did you mean restartPolicy?"),
    ("restartPolicy: OnFail", 1, "'OnFail' is no restartPolicy; did you mean OnFailure?"),
    ("restartPolicy: never", 1, "did you mean Never?"),
    ("restartScope: Node", 1, "'Node' is no restartScope; "),
    ("restartPolicy:", 1, "restartPolicy has no value"),
    ("restartPolicy: [Never]", 1, "takes one value"),
    ("restartLimit: many", 1, "a whole number from 0 to 10000, and not 'many'"),
    ("restartLimit: -1", 1, "a whole number"),
    ("restartLimit: 10001", 1, "a whole number"),
    ("restartTimeLimit: 1.5", 1, "a whole number"),
    ("restartWindow: 5", 1, "from 60"),
    ("faultTolerant: maybe", 1, "takes true or false"),
    ("faultTolerant: false\nrestartLimit: 3", 1, "but restartLimit says how"),
    ("minReplicas: 5\nmaxReplicas: 1", 1, "minReplicas 5 is more than maxReplicas 1"),
    ("maxReplicas: 0", 1, "from 1"),
    ("failPolicy: None\ncompletePolicy: None", 2, "together never end a job"),
    ("restartLimit: 0", 1, "write restartPolicy: Never"),
    ("jobRestartLimit: 0", 1, "write restartPolicy: Never"),
    ("restartWindow: 60", 1, "needs a limit"),
    ("restartLimit: 10\nrestartWindow: 60\nrestartTimeLimit: 10", 1, "would never end"),
    ("jobRestartLimit: 100\nrestartWindow: 60", 1, "would never end"),
    ("restartPolicy: ExitCode", 1, "no rule lists exit codes"),
    (RULES + "  exitCodes: 1", 2, "takes a list of rules"),
    (RULES + "  - restartPolicy: Never", 2, "this rule names no fault"),
    (RULES + "  - []", 2, "a rule is a list of keys"),
    (RULES + "  - exitCode: 1", 2, "did you mean exitCodes?"),
    (RULES + "  - exitCodes: 0", 2, "0 is no exit code of a failure"),
    (RULES + "  - exitCodes: 1-300", 2, "1-300 is no exit code"),
    (RULES + "  - exitCodes: 9-3", 2, "write 3-9"),
    (RULES + "  - exitCodes: 1,,2", 2, "without a value"),
    (RULES + "  - exitCodes: []", 2, "an empty list"),
    (RULES + "  - exitCodes:\n      - 1\n      - x", 4, "'x' is no exit code"),
    (RULES + "  - signals: SIGSEV", 2, "did you mean SIGSEGV?"),
    (RULES + "  - signals: 99", 2, "'99' is no signal"),
    (RULES + "  - exceptionalEvent: nodeNotReadi", 2, "'nodeNotReadi' is no event; did you mean nodeNotReady?"),
    (RULES + "  - exceptionalEvent: podforcedeleted", 2, "did you mean PodForceDeleted?"),
    (RULES + "  - logPattern: '*'", 2, "matches everything"),
    (RULES + "  - logPattern: CUDA|", 2, "matches everything"),
    (RULES + "  - exitCodes: 1\n    restartPolicy: Never\n    restartScope: All", 2, "its restartScope means nothing"),
    (RULES + "  - exitCodes: 1\n    restartPolicy: OnNodeFail", 2, "never starts what this rule names"),
    (RULES + "  - exceptionalEvent: nodeNotReady\n    restartPolicy: ExitCode", 2, "a lost node has no exit code"),
    (RULES + "  - exitCodes: 1\n    exceptionalEvent: nodeNotReady", 2, "no fault can be both"),
    (RULES + "  - exitCodes: 1\n    restartLimit: 0", 2, "write restartPolicy: Never"),
    (RULES + "  - exitCodes: 1-100\n  - exitCodes: 7,9\n    restartPolicy: Never", 3, "the one in line 2 takes all"),
    (RULES + "  - exceptionalEvent: hang\n  - exceptionalEvent: hang\n    logPattern: x", 3, "is never reached"),
    ("restartPolicy: \x01", 1, "this is no YAML"),
    ('restartPolicy: "\\x01"', 1, "printable"),
    (RULES + "  - exitCodes: 7\n" * 300, 2, "there are 300 rules"),
]


@pytest.mark.parametrize(("text", "line", "part"), REFUSED)
def test_what_is_wrong_is_refused_with_its_line(text: str, line: int, part: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(text)
    assert part in str(refused.value) and str(refused.value).startswith(f"policy.yaml line {line}: ")
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_text("#" * (70 << 10))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name, part in (("none", "cannot be read"), (".", "cannot be read"), ("large", "larger"), ("bytes", "UTF-8")):
        with pytest.raises(UsageError, match=part):
            load(str(tmp_path / name))


def test_a_launcher_hands_it_over_unchanged() -> None:
    source = Source("policy.yaml", OPERATORS)
    assert handed(to_hand(source)) == source and handed({}) is None and to_hand(None) == {}


def test_a_job_goes_on_under_the_policy_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager that is started again finds another file: the one in its journal holds. A new job takes the new one."""
    file = tmp_path / "policy.yaml"

    def begin(job: str) -> Memory:
        loaded = config.load(job_id=job, job_run_dir=str(tmp_path), recover_policy=str(file), environ={})
        Path(loaded.job.directory).mkdir(exist_ok=True)
        memory = Memory(loaded)
        memory.begin()
        memory.close("")
        return memory

    def broken(*_: object) -> None:
        raise Broken("it is damaged")

    file.write_text("restartPolicy: Never")
    assert not begin("one").taken_up
    file.write_text("restartLimit: 7")
    again, other = begin("one"), begin("two")
    assert again.taken_up and again.core._repairs.rules.policy.restart is Restart.NEVER
    assert not other.taken_up and other.core._repairs.rules.max_restarts == 7
    with monkeypatch.context() as patched:
        patched.setattr(Memory, "_recalled", broken)
        anew = begin("one")
    assert not anew.taken_up and anew.core._repairs.rules.max_restarts == 7, "nothing of a damaged journal holds"
    file.write_text("restartPolicy: Nevr")
    with pytest.raises(UsageError, match="line 1"):
        begin("three")


def test_the_page_has_every_word_and_its_example_is_right() -> None:
    page = (ROOT / "docs/policy.md").read_text()
    words = {*KEYS, *RULE_KEYS, *EVENTS, *RESTARTS, *SCOPES, *COMPLETES, *FAILS}
    assert not {word for word in words if f"`{word}`" not in page}
    assert len(read(page.split("```yaml\n")[1].split("```")[0]).rules) == 4


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def taskd(run_python: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    (tmp_path / "policy.yaml").write_text(OPERATORS)

    def run(*words: str, **more: Any) -> Any:
        paths = [str(tmp_path / word) if word == "policy.yaml" else word for word in words]
        return run_python(MAIN, "policy", *paths, check=False, **more)

    return run


def test_check(taskd: Any, tmp_path: Path) -> None:
    done = taskd("check", "policy.yaml")
    assert done.returncode == 0 and done.stdout.startswith("policy.yaml: 2 rules, no contradiction\n")
    assert "minReplicas does nothing" in done.stdout and "one rank starts again 100 times at most" in done.stdout
    assert [rule["line"] for rule in json.loads(taskd("check", "policy.yaml", "--json").stdout)["rules"]] == [13, 16]
    (tmp_path / "policy.yaml").write_text("restartPolicy: Nevr")
    done = taskd("check", "policy.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "taskd: policy.yaml line 1: 'Nevr' is no restartPolicy; did you mean Never?\n"


@pytest.mark.parametrize(
    ("words", "why", "ladder"),
    [
        (["--exit-code", "101"], "line 13 (exitCodes: 129,101) says restartPolicy ExitCode", ["recover-in-place"]),
        (["--exit-code", "137"], "line 7 says restartPolicy OnNodeFailWithExitCode, and no rule names", ["exit"]),
        (["--exit-code", "-9"], "exit code 137 (SIGKILL)", ["exit"]),
        (["--signal", "SIGHUP"], "line 13 (exitCodes: 129,101)", ["recover-in-place"]),
        (["--event", "PodForceDeleted"], "line 16 (exceptionalEvent: nodeNotReady,PodForceDeleted)", ["respawn"]),
    ],
)
def test_explain(taskd: Any, words: list[str], why: str, ladder: list[str]) -> None:
    done = taskd("explain", "policy.yaml", *words)
    assert done.returncode == 0 and why in done.stdout.splitlines()[0], done
    assert f"  1. {ladder[0]}" in done.stdout
    found = json.loads(taskd("explain", "policy.yaml", *words, "--json").stdout)
    assert found["ladder"][0]["strategy"] == ladder[0] and found["ladder"][-1]["strategy"] == "exit"


def test_explain_without_a_file(taskd: Any, tmp_path: Path) -> None:
    done = taskd("explain", "--exit-code", "137")
    assert "there is no policy, so the cheapest repair is taken" in done.stdout
    assert [line.split()[1] for line in done.stdout.splitlines()[1:5]] == [
        "recover-in-place",
        "respawn",
        "recover",
        "exit",
    ]
    limited = taskd("explain", "--event", "nodeNotReady", env={"HIGH_AVAILABILITY": "recover-in-place"}).stdout
    assert "recover " not in limited and "  1. respawn" in limited, "what HIGH_AVAILABILITY does not allow is no rung"
    assert (
        "line 13" in taskd("explain", "--exit-code", "101", env={"TASKD_POLICY": str(tmp_path / "policy.yaml")}).stdout
    )


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--exit-code", "0"], "'0' is no exit code of a failure"),
        (["--exit-code", "x"], "'x' is no exit code"),
        (["--signal", "SIGSEV"], "did you mean SIGSEGV?"),
        (["--event", "nodeNotRedy"], "did you mean nodeNotReady?"),
        ([], "one of the arguments"),
    ],
)
def test_explain_refuses(taskd: Any, words: list[str], part: str) -> None:
    done = taskd("explain", "policy.yaml", *words)
    assert done.returncode == 2 and part in done.stderr and done.stderr.count("\n") == 1

"""The style rules of the project, checked in the source.

One test per rule. A breach is named as file:line together with the cure, so that the message is enough to mend it.

It judges form only. The tests of each room check what its code does, and the formatter decides what it can format.
test_imports.py checks which room may import which.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from taskd.config import leaves
from tests.source import ROOT, clean, python, texts

FILE_LINES = {".py": 600, ".cpp": 600, ".hpp": 600, ".h": 600}
FUNCTION_LINES = 70
CLASS_METHODS = 20
CLASS_FIELDS = 15
LARGE_STILL: dict[str, tuple[int, int]] = {
    "taskd/agent/workers.py:Worker": (20, 20),
    "taskd/bench/hosts.py:Hosts": (21, 15),
    "taskd/bench/job.py:Job": (22, 16),
    "taskd/core/job.py:Job": (20, 16),
    "taskd/core/local.py:LocalRank": (20, 27),
    "taskd/core/records.py:NodeRecord": (20, 21),
    "taskd/core/repair/incident.py:Incident": (20, 26),
    "taskd/launch/launcher.py:Launcher": (20, 18),
    "taskd/launch/workers.py:Workers": (20, 21),
    "taskd/manager/loop.py:ManagerLoop": (20, 16),
    "taskd/sim/crowd.py:Crowd": (20, 18),
    "taskd/sim/faults.py:Faults": (37, 15),
    "taskd/sim/manager.py:SimManager": (21, 16),
    "taskd/sim/node.py:SimNode": (27, 15),
    "taskd/sim/setting.py:Setting": (20, 17),
    "taskd/sim/worker.py:SimWorker": (25, 28),
    "taskd/sim/world.py:World": (29, 15),
    "taskd/wire/uplink.py:Uplink": (20, 18),
    "taskd/worker/keyshare.py:KeyShare": (20, 19),
    "taskd/worker/loaders.py:Known": (20, 17),
    "taskd/worker/transaction.py:Transaction": (21, 19),
}
"""Larger classes of taskd/, with their limits of methods and fields. Limits only go down, and no class is added."""
FAKE_LINES = 60

UNPICKLING_MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
UNPICKLING_CALLS = re.compile(r"(all_gather|gather|scatter|broadcast|send|recv)_object(_list)?")


# ---- size and prose


def test_files_are_short() -> None:
    clean(
        [
            f"{name}:{len(lines)} the file has {len(lines)} lines, {limit} at most; split it by subject"
            for name, lines in texts()
            if (limit := FILE_LINES.get(Path(name).suffix)) and len(lines) > limit
        ]
    )


def test_functions_are_short() -> None:
    clean(
        [
            f"{source.at(node)} {node.name}() has {length} lines, {FUNCTION_LINES} at most; give its parts names"
            for source in python("taskd", "samples", "tests", "tools")
            for node in source.nodes(ast.FunctionDef, ast.AsyncFunctionDef)
            if (length := node.end_lineno - node.lineno + 1) > FUNCTION_LINES
        ]
    )


def methods_and_fields(one: ast.ClassDef) -> tuple[int, int]:
    """Return how many functions a class has, and how many fields its objects have: declared or set on self."""
    functions = [node for node in one.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    fields = {
        ast.unparse(node.target)
        for node in one.body
        if isinstance(node, ast.AnnAssign)
        and not re.match(r"(typing\.)?(ClassVar|Final)\b", ast.unparse(node.annotation))
    }
    fields |= {
        node.attr
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    return len(functions), len(fields)


def test_classes_are_small() -> None:
    """A class that is too large contains another object: a path, a scheduler, a watch. Look for it. `# large: why` on
    its line says why a class has to be large (a message needs a field for each value)."""
    breaches, large = [], set()
    for source in python("taskd"):
        for node in source.nodes(ast.ClassDef):
            methods, fields = methods_and_fields(node)
            excused = re.search(r"# large: \w+", source.lines[node.lineno - 1]) is not None
            fits = methods <= CLASS_METHODS and fields <= CLASS_FIELDS
            has = f"{source.at(node)} {node.name} has {methods} methods and {fields} fields"
            if excused and fits:
                breaches.append(f"{has}, which is not too large; take `# large:` away")
            elif not excused and not fits:
                name = f"{source.name}:{node.name}"
                large.add(name)
                most_methods, most_fields = LARGE_STILL.get(name, (CLASS_METHODS, CLASS_FIELDS))
                if methods > most_methods or fields > most_fields:
                    breaches.append(f"{has}, {most_methods} and {most_fields} at most; find the object inside it")
                elif (max(methods, CLASS_METHODS), max(fields, CLASS_FIELDS)) != (most_methods, most_fields):
                    breaches.append(f"{has}; lower its entry in LARGE_STILL")
    breaches += [
        f"tests/test_tidy.py:1 {name} is not too large any more; take it out of LARGE_STILL"
        for name in LARGE_STILL.keys() - large
    ]
    clean(breaches)


def test_modules_open_with_what_they_are() -> None:
    """In taskd/ two sentences at least, since what a module does not do matters. One elsewhere and in an __init__."""
    breaches = []
    for source in python("taskd", "samples", "tests", "tools"):
        prose = ast.get_docstring(source.tree) or ""
        sentences = len(re.findall(r"[.!?:](?=\s|$)", prose))
        wanted = 2 if source.name.startswith("taskd/") and not source.path.name.startswith("__") else 1
        if source.text and sentences < wanted:
            breaches.append(f"{source.name}:1 opens with {sentences} sentences; say what it is, why, what it is not")
    for name, lines in texts():
        # A header's comment covers the .cpp of the same name.
        told_by_header = name.endswith(".cpp") and (ROOT / name).with_suffix(".hpp").exists()
        if name.startswith("csrc/") and not told_by_header and not lines[0].startswith(("//", "/*")):
            breaches.append(f"{name}:1 does not open with a comment; say what it is, why, and what it does not do")
    clean(breaches)


def test_fakes_are_small() -> None:
    clean(
        [
            f"{source.at(node)} {node.name} has {length} lines, {FAKE_LINES} at most; use the real thing"
            for source in python("tests")
            for node in source.nodes(ast.ClassDef)
            if re.match(r"_?(Fake|Stub|Mock|Dummy)", node.name)
            if (length := node.end_lineno - node.lineno + 1) > FAKE_LINES
        ]
    )


def test_files_that_are_named_exist() -> None:
    """A comment that names a file by its old name is worse than no comment."""
    word = re.compile(r"(?<![\w./<-])[\w./-]*\w\.(?:hpp|cpp|py|md)(?![\w(])")
    elsewhere = {"torch/distributed/run.py"}
    known = {name for name, _ in texts()}
    known |= {"/".join(Path(name).parts[at:]) for name in known for at in range(1, len(Path(name).parts))}
    clean(
        [
            f"{name}:{number} there is no {found}; name the file that knows it now"
            for name, lines in texts()
            if name.startswith(("csrc/", "taskd/", "docs/", "README", "CONTRIBUTING", "patches/"))
            for number, line in enumerate(lines, 1)
            if "#include <" not in line
            for found in word.findall(line)
            if found.lstrip("./") not in known | elsewhere
        ]
    )


# ---- what the product never does


def test_nothing_is_unpickled() -> None:
    breaches = []
    for source in python("taskd"):
        breaches += [
            f"{source.at(line)} imports {module}; send a message of taskd/core through taskd/wire, or bytes with bounds"
            for module, line in source.imports()
            if module.split(".")[0] in UNPICKLING_MODULES
        ]
        for node in source.nodes(ast.Call):
            called = ast.unparse(node.func)
            safe = {keyword.arg for keyword in node.keywords if ast.unparse(keyword.value) == "True"}
            if UNPICKLING_CALLS.fullmatch(called.rpartition(".")[2]) or (
                called == "torch.load" and "weights_only" not in safe
            ):
                breaches.append(
                    f"{source.at(node)} {called}() unpickles what another process sent; send tensors or bytes"
                )
    clean(breaches)


def test_sleeps_have_a_reason() -> None:
    breaches = []
    for source in python("taskd"):
        for node in source.nodes(ast.Call):
            called = ast.unparse(node.func)
            if called in {"time.sleep", "sleep"} and "#" not in source.lines[node.lineno - 1]:
                breaches.append(
                    f"{source.at(node)} sleeps; wait for an event, or say on this line why nothing else will do"
                )
    clean(breaches)


def test_nobody_waits_by_select() -> None:
    clean(
        [
            f"{source.at(node)} waits by select (no descriptor from 1024 on); use tests/ready.py"
            for source in python("taskd", "tests", "samples")
            for node in source.nodes(ast.Call)
            if ast.unparse(node.func) == "select.select"
        ]
    )


def test_no_error_is_swallowed_whole() -> None:
    breaches = []
    for source in python("taskd", "samples"):
        for node in source.nodes(ast.ExceptHandler):
            kinds = ast.unparse(node.type) if node.type else ""
            only_pass = all(isinstance(inner, ast.Pass) for inner in node.body)
            if kinds in {"", "Exception", "BaseException"} and only_pass:
                breaches.append(f"{source.at(node)} swallows every error; name the expected ones, or log and go on")
        breaches += [
            f"{source.at(node)} swallows every error; name the expected ones, or log and go on"
            for node in source.nodes(ast.Call)
            if re.fullmatch(r"(contextlib\.)?suppress\((Base)?Exception\)", ast.unparse(node))
        ]
    clean(breaches)


def test_only_commands_print() -> None:
    clean(
        [
            f"{source.at(node)} prints; a training job's terminal is the user's: use the module's logger"
            for source in python("taskd")
            if source.room not in {"cli", "run", "bench"}
            for node in source.nodes(ast.Call)
            if isinstance(node.func, ast.Name) and node.func.id == "print"
            if not any(keyword.arg == "file" for keyword in node.keywords)
        ]
    )


def test_durations_carry_their_unit() -> None:
    """timeout_ms, age_ns: never `timeout` for an int or a float. The drop-in's names come from another product."""
    bare = re.compile(r"(\w+_)?(timeout|interval|delay|deadline|duration|age|period|latency)")
    breaches = []
    for source in python("taskd"):
        if source.room in {"api", "compat"}:
            continue
        for node in source.nodes(ast.arg, ast.AnnAssign):
            name = node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
            kind = ast.unparse(node.annotation) if node.annotation else ""
            if bare.fullmatch(name.removeprefix("self.").lower()) and re.search(r"\b(int|float)\b", kind):
                breaches.append(f"{source.at(node)} {name}: {kind} has no unit; it comes last: {name}_ms, {name}_ns")
    clean(breaches)


def test_every_setting_is_read() -> None:
    """A setting that no code reads promises something that does not happen."""
    through_a_property = {"recover.strategies", "recover.restart_fault_process"}  # RecoverConfig.allowed
    without_effect = {"pause.limit_ms"}  # its description says so
    shells = "\n".join(source.text for source in python("taskd") if source.room != "config")
    clean(
        [
            f"taskd/config/tree.py:1 nobody reads {path}; follow it where it matters, or take it out"
            for path in leaves()
            if path not in through_a_property | without_effect and not re.search(rf"\b{re.escape(path)}\b", shells)
        ]
    )


def test_nothing_is_left_for_later() -> None:
    words = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK"]) + r")\b")
    clean(
        [
            f"{name}:{number} {found[0]}: do it now, or write it as a limit in the documentation"
            for name, lines in texts()
            for number, line in enumerate(lines, 1)
            if (found := words.search(line))
        ]
    )


def test_no_path_of_one_machine() -> None:
    paths = re.compile("(?<![\\w.])/(" + "|".join(["wo" + "rk", "ro" + "ot", "ho" + "me", "op" + "t/pypi"]) + ")/\\w")
    clean(
        [
            f"{name}:{number} names a path of one machine ({found[0]}...); take it from the configuration"
            for name, lines in texts()
            for number, line in enumerate(lines, 1)
            if (found := paths.search(line))
        ]
    )

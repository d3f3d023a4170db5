"""Which room may import which: the map of docs/ARCHITECTURE.md as a table, and tests that walk the real import graph.

A change of the map needs a change of the table. A breach is named as file:line, together with the cure.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable

from tests.source import ROOT, Source, clean, python, texts

# Room of taskd/ -> the rooms that it may import, besides itself and taskd/__init__.py (which imports nothing).
COMMON = {"errors", "log", "config"}
SHELLS = {"manager", "backup", "agent", "launch", "worker"}
MAY_IMPORT = {
    "__init__": {"errors", "api", "client", "worker", "comm", "state"},  # names that are looked up later
    "__main__": {"cli"},
    "errors": set[str](),
    "descriptors": set[str](),
    "memory": set[str](),
    "processes": set[str](),
    "torch_versions": set[str](),
    "log": {"errors"},
    "config": {"errors", "log"},
    "core": set[str](),
    "mistakes": {"core"},
    "wire": {"core", *COMMON},
    "nics": {"core", "_native", *COMMON},
    "policy": {"core", *COMMON},
    "manager": {"descriptors", "processes", "core", "wire", "policy", *COMMON},
    "backup": {"mistakes", "core", "wire", "_native", *COMMON},
    "devices": {"core", "_native"},
    "agent": {"memory", "mistakes", "processes", "core", "wire", "backup", "devices", "_native", *COMMON},
    "board": {*COMMON},
    "check": {"board", "core", "nics", "_native", *COMMON},
    "launch": {
        "board",
        "check",
        "client",
        "descriptors",
        "processes",
        "torch_versions",
        "core",
        "wire",
        "policy",
        "backup",
        "agent",
        "_native",
        *COMMON,
    },
    "worker": {"memory", "core", "wire", "backup", "comm", "state", "_native", "_c10d", *COMMON},
    "comm": {"descriptors", "core", "wire", "nics", "_native", "_c10d", *COMMON},
    "state": {"core", "wire", "backup", "comm", *COMMON},
    "sim": {"core", "wire", *COMMON},
    "api": {"core", "wire", "manager", "agent", "worker", *COMMON},
    "compat": {"run", "launch", "worker", "_native", *COMMON},
    "bench": {"processes", "client", "core", "wire", "manager", "comm", "_native", "_c10d", *COMMON},
    "cli": {"client", "core", "wire", "nics", "policy", "check", "sim", "bench", "manager", "_native", *COMMON},
    "client": {"core", "wire", "manager", *COMMON},
    "run": {"launch", *COMMON},
}
# Subject of taskd/core -> the other subjects that it may import. Files in core itself are below or above all of them.
CORE_SUBJECTS = {
    "check": {"policy"},
    "pause": set[str](),
    "policy": set[str](),
    "repair": {"policy"},
    "errands": {"pause", "proof", "repair"},
    "rails": {"repair"},
    "proof": {"repair"},
}
NATIVE = {"_native", "_c10d"}
TORCH_ROOMS = {"worker", "comm", "state", "bench", "check", "board", "launch"}
OTHER_PEOPLES = {
    "core": set[str](),
    "wire": {"msgpack"},
    "taskd/wire/keys.py": {"msgpack", "zmq"},
    "taskd/wire/uplink.py": {"zmq"},
    "taskd/wire/strangers.py": {"zmq"},
}
IMPURE = {
    "asyncio", "concurrent", "datetime", "logging", "multiprocessing", "os", "queue", "random", "secrets", "select",
    "selectors", "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "_thread", "time", "uuid",
}  # fmt: skip
# Files of one room that name each other's types in a circle, though no import at run time is circular. A circle that is
# mended leaves this table, and no circle may be added.
KNOWN_CIRCLES_OF_TYPES: set[frozenset[str]] = set()
# Lines that import only a table of numbers from an impure module.
PURE_AFTER_ALL = {"from signal import Signals"}


def room_of(module: str) -> str:
    """Return the room of one of our modules; "__init__" for the package itself and the names in it."""
    name = module.split(".")[1] if "." in module else ""
    inside = ROOT / "taskd" / name
    known = name in MAY_IMPORT or (name and (inside.is_dir() or inside.with_suffix(".py").is_file())) or name in NATIVE
    return name if known else "__init__"


def test_rooms_import_only_what_the_map_allows() -> None:
    breaches = []
    for source in python("taskd"):
        if source.room not in MAY_IMPORT:
            breaches.append(f"{source.name}:1 a new room; give it a row in MAY_IMPORT here and in docs/ARCHITECTURE.md")
            continue
        for module, line in source.imports():
            if module.split(".")[0] != "taskd":
                continue
            room = room_of(module)
            if room not in {"__init__", source.room, *MAY_IMPORT[source.room]}:
                breaches.append(
                    f"{source.at(line)} {source.room} may not import {module}; move what both need to a "
                    f"lower room (core, wire) or turn the dependency round"
                )
    clean(breaches)


def test_the_map_allows_nothing_that_nobody_needs() -> None:
    """Exceptions: the names that are looked up in the package itself, and the lowest rooms, which all may use."""
    used: dict[str, set[str]] = {room: set() for room in MAY_IMPORT}
    for source in python("taskd"):
        used[source.room] |= {room_of(module) for module, _ in source.imports() if module.split(".")[0] == "taskd"}
    clean(
        [
            f"tests/test_imports.py:1 {room} may import {', '.join(idle)} and does not; take that out of MAY_IMPORT"
            for room, allowed in MAY_IMPORT.items()
            if room != "__init__" and (idle := sorted(allowed - used[room] - {"core", "wire", *COMMON}))
        ]
    )


def test_the_map_has_no_circle() -> None:
    left = {room: allowed & MAY_IMPORT.keys() for room, allowed in MAY_IMPORT.items()}
    while ready := {room for room, allowed in left.items() if not allowed & left.keys()}:
        left = {room: allowed for room, allowed in left.items() if room not in ready}
    assert not left, f"these rooms may import each other in a circle: {sorted(left)}"


def test_subjects_of_the_core_import_what_the_map_allows() -> None:
    breaches = []
    for source in python("taskd/core"):
        subject = source.path.parent.name
        for module, line in source.imports():
            other = module.split(".")[2] if module.startswith("taskd.core.") else ""
            if subject in CORE_SUBJECTS and other in CORE_SUBJECTS.keys() - {subject, *CORE_SUBJECTS[subject]}:
                breaches.append(f"{source.at(line)} {subject} may not import {module}; let core/manager.py bring both")
    clean(breaches)


def files_imported(source: Source, rooms: dict[str, str], types_too: bool) -> set[str]:
    """Return the files of its own room that this file imports, inside functions too. `rooms`: the room of each file."""
    found = set()
    for module, name, _, for_types in source.imported():
        inner, whole = f"{module}.{name}".replace(".", "/"), module.replace(".", "/")
        places = (f"{inner}.py", f"{inner}/__init__.py", f"{whole}.py", f"{whole}/__init__.py")
        place = next((place for place in places if place in rooms), source.name)
        if rooms[place] == source.room and (types_too or not for_types):
            found.add(place)
    return found - {source.name}


def circles(types_too: bool) -> set[frozenset[str]]:
    """Return sets of files in which each file imports each other one, directly or through others."""
    rooms = {source.name: source.room for source in python("taskd")}
    straight = {source.name: files_imported(source, rooms, types_too) for source in python("taskd")}
    reached = {}
    for name in straight:
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            waiting += (new := straight[waiting.pop()] - seen)
            seen |= new
        reached[name] = seen
    return {
        frozenset({other for other in found if name in reached[other]})
        for name, found in reached.items()
        if name in found
    }


def test_no_files_of_a_room_import_each_other_in_a_circle() -> None:
    """Neither at load time nor later, inside functions."""
    clean(
        [
            f"{min(circle)}:1 imports itself by way of {', '.join(sorted(circle - {min(circle)}))}; move what they "
            "share to a file of its own, or let the one above hand down what the one below needs"
            for circle in circles(types_too=False)
        ]
    )


def test_no_more_files_name_each_others_types_in_a_circle() -> None:
    """Under TYPE_CHECKING a circle costs nothing at run time. But a reader of one file has to read all of them."""
    found = circles(types_too=True)
    clean(
        [
            f"{min(circle)}:1 names types of {', '.join(sorted(circle - {min(circle)}))}, which name its own; say in a "
            "Protocol what is needed, or move the types to a file below"
            for circle in found - KNOWN_CIRCLES_OF_TYPES
        ]
        + [
            f"tests/test_imports.py:1 the circle of {', '.join(sorted(circle))} is no more; take it out of "
            "KNOWN_CIRCLES_OF_TYPES"
            for circle in KNOWN_CIRCLES_OF_TYPES - found
        ]
    )


def test_nobody_imports_cli_and_sim_imports_no_shell() -> None:
    """Checks what must stay true of the table itself, however it grows."""
    assert [room for room, allowed in MAY_IMPORT.items() if "cli" in allowed] == ["__main__"], "nobody else imports cli"
    assert not MAY_IMPORT["sim"] & (SHELLS | {"comm", "state", "api"}), "sim is one shell among others"
    assert not MAY_IMPORT["core"], "core imports the standard library only"


def test_torch_stays_in_its_rooms() -> None:
    clean(
        [
            f"{source.at(line)} imports {module}; only {', '.join(sorted(TORCH_ROOMS))} may, so that manager, "
            f"agent and command line start quickly and run where torch is absent"
            for source in python("taskd")
            if source.room not in TORCH_ROOMS
            for module, line in source.imports()
            if module.split(".")[0] in {"torch", "torch_npu", "numpy"}
        ]
    )


def test_torch_free_rooms_load_without_torch(run_python: Callable[..., object]) -> None:
    """The same as above, at run time: every module of these rooms is imported where torch cannot be imported."""
    modules = [
        source.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for source in python("taskd")
        if source.room not in TORCH_ROOMS and "__main__" not in source.name
    ]
    run_python(
        "import importlib, sys\n"
        "sys.modules.update(dict.fromkeys(('torch', 'numpy', 'torch_npu')))  # None makes the import fail\n"
        "for module in sys.argv[1:]: importlib.import_module(module)\n",
        *modules,
    )


def test_core_is_pure_and_wire_nearly() -> None:
    breaches = []
    for source in python("taskd/core", "taskd/wire"):
        allowed = OTHER_PEOPLES.get(source.name, OTHER_PEOPLES[source.room])
        for module, line in source.imports():
            top = module.split(".")[0]
            if top not in sys.stdlib_module_names and top != "taskd" and top not in allowed:
                breaches.append(f"{source.at(line)} {source.room} may not import {module}; a shell does that")
            if source.room == "core" and top in IMPURE and source.lines[line - 1] not in PURE_AFTER_ALL:
                breaches.append(
                    f"{source.at(line)} core may not import {module}; let a shell pass the value in an event"
                )
        if source.room == "core":
            breaches += [
                f"{source.at(node)} core may not call {node.func.id}(); return an effect that asks a shell for it"
                for node in source.nodes(ast.Call)
                if isinstance(node.func, ast.Name) and node.func.id in {"print", "open", "input", "exec", "eval"}
            ]
    clean(breaches)


def test_native_and_rail_know_nothing_of_torch() -> None:
    clean(
        [
            f"{name}:{number} includes torch; that belongs in csrc/c10d"
            for name, lines in texts()
            if name.startswith(("csrc/native/", "csrc/rail/"))
            for number, line in enumerate(lines, 1)
            if re.match(r"\s*#\s*include\s*[<\"](torch|ATen|c10)/", line)
        ]
    )

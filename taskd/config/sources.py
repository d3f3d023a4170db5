"""Finding values: keyword arguments, then the environment, then a YAML file, then defaults; the first that speaks wins.

`load()` makes a Config and remembers for each setting where its value came from; `explain()` tells. Unknown keys of a
keyword or of the file are refused; a TASKD_ variable that names no setting costs one warning with the nearest name,
because an environment is shared with others and a wrong refusal would stop a job.
It does NOT judge values (values.py), hold defaults (tree.py) or import torch; yaml only when a file is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from taskd.config import values
from taskd.config.tree import GROUPS, Config, Leaf, leaves
from taskd.errors import UsageError

FILE_BYTES_MAX = 1024 * 1024
FILE_VARIABLE = "TASKD_CONFIG"
FOREIGN = frozenset({FILE_VARIABLE, *values.COMPOSITES})
# A Kubernetes Service named taskd-manager puts TASKD_MANAGER_PORT=tcp://10.0.0.7:9601 and its relatives in every pod.
SERVICE_LINK = re.compile(r"(?:tcp|udp|sctp)://")
SERVICE_NAME = re.compile(r"TASKD_.*(?:_SERVICE_(?:HOST|PORT)(?:_.*)?|_PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_.*)?)")

Found = dict[str, tuple[Any, str]]


def load(*, file: str | None = None, environ: Mapping[str, str] | None = None, **overrides: Any) -> Config:
    """The configuration of this process; raises UsageError with the setting's path, what was wrong and what is allowed.

    `overrides` are groups (`manager={"port": 9700}`) or single settings (`manager_port=9700`, or "manager.port" through
    `**`); None means not given. `file` stands in for TASKD_CONFIG, `environ` for os.environ.
    """
    environ = os.environ if environ is None else environ
    warnings: list[str] = []
    found = from_keywords(overrides)
    for path, item in from_environment(environ, warnings).items():
        found.setdefault(path, item)
    name = file if file is not None else environ.get(FILE_VARIABLE, "").strip()
    if name:
        for path, item in from_file(name, "file" if file is not None else FILE_VARIABLE).items():
            found.setdefault(path, item)
    for path, item in from_hints(environ).items():
        found.setdefault(path, item)
    if warnings:
        _warn(warnings)
    return build(found)


def explain(config: Config) -> list[tuple[str, Any, str]]:
    """(path, value, source) of every setting in the tree's order; secrets are shown as set or empty only."""
    rows = []
    defaults = Config()
    for path, leaf in leaves().items():
        value = value_at(config, path)
        changed = "default" if value == value_at(defaults, path) else "keyword"
        shown = ("(hidden)" if value else "") if leaf.meta["secret"] else value
        rows.append((path, shown, config.sources.get(path, changed)))
    return rows


def value_at(config: Config, path: str) -> Any:
    """The value of the setting with this path."""
    group, dot, name = path.rpartition(".")
    return getattr(getattr(config, group), name) if dot else getattr(config, name)


def build(found: Found) -> Config:
    """A Config from judged values."""
    top: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for path, (value, _) in found.items():
        group, _dot, name = path.rpartition(".")
        (groups.setdefault(group, {}) if group else top)[name] = value
    made = {name: cls(**groups.get(name, {})) for name, cls in GROUPS.items()}
    return Config(**top, **made, sources={path: source for path, (_, source) in found.items()})


def from_keywords(overrides: Mapping[str, Any]) -> Found:
    """Values given as keyword arguments."""
    by_flat_name = {path.replace(".", "_"): path for path in leaves()}
    found: Found = {}
    for name, value in overrides.items():
        if value is None:
            continue
        if name in GROUPS:
            found.update(_group(name, value, "keyword"))
            continue
        path = by_flat_name.get(name.replace(".", "_"))
        if path is None:
            raise UsageError(_unknown(name, "keyword", [*leaves(), *GROUPS]))
        found[path] = (_judge(leaves()[path], value, "keyword"), "keyword")
    return found


def from_environment(environ: Mapping[str, str], warnings: list[str]) -> Found:
    """Values from TASKD_ variables and from the names of the original; unknown TASKD_ names are added to `warnings`."""
    found: Found = {}
    known = set(FOREIGN)
    for path, leaf in leaves().items():
        known.update(leaf.variables)
        for variable in leaf.variables:
            text = environ.get(variable, "").strip()
            if not text or path in found:
                continue
            source = f"environment {variable}"
            if leaf.kind == "int" and SERVICE_LINK.match(text):
                warnings.append(
                    f"{variable}={_plain(text)} was put there by Kubernetes for a Service of that name and is ignored; "
                    "set enableServiceLinks: false in the pod, or rename the Service"
                )
                continue
            spelling = values.SPELLINGS.get(variable)
            found[path] = (spelling(text) if spelling else _judge(leaf, text, source), source)
    for variable, parse in values.COMPOSITES.items():
        text = environ.get(variable, "").strip()
        if not text:
            continue
        try:
            parts = parse(text)
        except values.Refused as refused:
            raise UsageError(_sentence(variable, refused, f"environment {variable}")) from None
        for path, value in parts.items():
            found.setdefault(path, (value, f"environment {variable}"))
    for variable in sorted(environ):
        if not variable.startswith("TASKD_") or variable in known:
            continue
        if not SERVICE_NAME.fullmatch(variable) and not SERVICE_LINK.match(environ[variable]):
            warnings.append(
                f"the variable {_plain(variable)} names no setting of taskd and is ignored{_nearest(variable, known)}"
            )
    return found


def from_hints(environ: Mapping[str, str]) -> Found:
    """Better defaults from variables that launchers and pods set for their own ends; what does not fit is no error."""
    found: Found = {}
    for path, leaf in leaves().items():
        for variable in leaf.meta["hints"]:
            text = environ.get(variable, "").strip()
            if not text or path in found:
                continue
            try:
                found[path] = (values.check(leaf, text), f"default from {variable}")
            except values.Refused:
                continue
    return found


def from_file(name: str, where: str) -> Found:
    """Values from a YAML file; `where` says who named it."""
    found: Found = {}
    document = _read_yaml(name, where)
    source = f"file {name}"
    for key, value in document.items():
        if value is None:
            continue
        if key in GROUPS:
            found.update(_group(key, value, source))
        elif key in leaves() and "." not in str(key):
            found[key] = (_judge(leaves()[key], value, source), source)
        else:
            raise UsageError(_unknown(str(key), source, [*GROUPS, "enabled"]))
    return found


def _read_yaml(name: str, where: str) -> dict[Any, Any]:
    try:
        with open(name, encoding="utf-8") as stream:
            text = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{where}: the file {name!r} cannot be read ({reason}); name a readable YAML file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{where}: the file {name!r} is not UTF-8 text; name a YAML file") from None
    if len(text) > FILE_BYTES_MAX:
        raise UsageError(f"{where}: the file {name!r} is larger than {FILE_BYTES_MAX} bytes; name a configuration file")
    import yaml  # only a process that reads a file pays for it

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "not readable as YAML"
        raise UsageError(f"{where}: the file {name!r} is not valid YAML{line} ({problem}); correct it") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise UsageError(
            f"{where}: the file {name!r} holds a {kind}, not a mapping; allowed: {', '.join(GROUPS)}, enabled"
        )
    return document


def _group(group: str, value: Any, source: str) -> Found:
    if group == "retry" and isinstance(value, (str, bool)):
        try:
            return {path: (part, source) for path, part in values.retry(value).items()}
        except values.Refused as refused:
            raise UsageError(_sentence(group, refused, source)) from None
    names = [path.partition(".")[2] for path in leaves() if path.startswith(group + ".")]
    if not isinstance(value, Mapping):
        raise UsageError(
            f"{group}: {_plain(repr(value))} (from {source}) is not a mapping; allowed: the keys {', '.join(names)}"
        )
    found: Found = {}
    for name, part in value.items():
        path = f"{group}.{name}"
        if path not in leaves():
            raise UsageError(_unknown(path, source, [f"{group}.{known}" for known in names]))
        if part is not None:
            found[path] = (_judge(leaves()[path], part, source), source)
    return found


def _judge(leaf: Leaf, value: Any, source: str) -> Any:
    try:
        return values.check(leaf, value)
    except values.Refused as refused:
        raise UsageError(_sentence(leaf.path, refused, source)) from None


def _sentence(path: str, refused: values.Refused, source: str) -> str:
    return f"{path}: {refused.wrong} (from {source}); allowed: {refused.allowed}"


def _unknown(path: str, source: str, known: Iterable[str]) -> str:
    names = list(known)
    return (
        f"{_plain(path)}: there is no such setting (from {source}){_nearest(path, names)}; allowed: {', '.join(names)}"
    )


def _plain(text: str) -> str:
    """A name that somebody else chose, fit to stand in one line."""
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 80 else text[:77] + "..."


def _nearest(name: str, known: Iterable[str]) -> str:
    import difflib  # only needed on the way to a refusal or a warning

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _warn(sentences: list[str]) -> None:
    import logging

    from taskd import log

    for sentence in sentences:
        log.once(log.get(__name__), logging.WARNING, sentence, sentence)

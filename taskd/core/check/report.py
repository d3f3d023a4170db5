"""The verdicts of a check, and their reasons as sentences: what people and the launcher read of it.

The worst that is proved of a node is its finding: down, wrong results, unlike the others, lies, straggler, in this
order. A node of which nothing is proved, and something is open, is undecided. A time that was slow once and is not
confirmed is not held against a node that has passed with enough others. Nothing is decided here about who is at fault
(opinions.py, own_words.py); this is its text.

Invariant: no finding but healthy and undecided stands without its witnesses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from taskd.core import limits
from taskd.core.check.findings import Finding, Harm, LinkVerdict, NodeVerdict, RailVerdict, Report
from taskd.core.check.guilt import Guilt
from taskd.core.check.pairs import Pair
from taskd.core.check.readings import denied
from taskd.core.check.suspects import Suspects
from taskd.core.check.views import COMPUTE, MEMORY, REACH, Aspect, Kind, Seen
from taskd.core.words import cut, join, span_words, spans, verb

_MOST = 8


def report(suspects: Suspects, rounds: int, turns: int) -> Report:
    """Return all verdicts."""
    nodes = tuple(_node(suspects, node) for node in suspects.nodes)
    return Report(nodes, tuple(_rails(suspects, nodes)), tuple(_links(suspects)), rounds, turns)


def node_words(nodes: Iterable[int]) -> str:
    """`node 2`, `nodes 0-3 and 7`."""
    ordered = sorted(set(nodes))
    if not ordered:
        return "no node"
    parts = list(map(span_words, spans(ordered)))
    if len(parts) > _MOST:
        parts = [*parts[:_MOST], "more"]
    return f"{verb(len(ordered), 'node', 'nodes')} {join(parts)}"


# ---- nodes ------------------------------------------------------------------------------------------------------


def _node(suspects: Suspects, node: int) -> NodeVerdict:
    opinions, words = suspects.opinions, suspects.words
    slow = list(_slow(suspects, node))
    components = tuple(part for part, _, _ in slow)
    finding, reason, witnesses = Finding.HEALTHY, "", tuple[str, ...]()
    reach = opinions.guilty.find(node, REACH)
    lie = _lie(suspects, node)
    if words.torn(node) >= 2:
        finding, witnesses = Finding.DOWN, ("itself",)
        reason = "its own ranks cannot exchange data with each other, by its own word, twice"
    elif reach is not None and lie is None:
        finding, reason, witnesses = _unreached(reach, node)
    elif words.computes_wrongly(node):
        finding, witnesses = Finding.WRONG, tuple(words.wrong(node))
        reason = f"a product of it was wrong, as {_named(witnesses)} {verb(len(witnesses), 'says', 'say')}"
    elif lie is not None and len(hidden := {one.partner for one in lie.seen if denied(one.test, node)}) >= 2:
        finding, witnesses = Finding.WRONG, _of(sorted(hidden))
        reason = f"its products are wrong, as {node_words(hidden)} say; it denies that"
    elif words.version(node):
        finding, reason = _version(suspects, node)
        witnesses = ("itself", "most other nodes") if finding is Finding.UNLIKE else ()
    elif lie is not None:
        odds = next(filter(None, (_at_odds(suspects, one) for one in lie.seen)), "")
        finding, witnesses = Finding.LIES, _of(lie.partners)
        reason = f"it contradicts {node_words(lie.partners)}, who contradict nobody else: {odds}"
    elif components:
        finding, reason = Finding.STRAGGLER, "; ".join(why for _, why, _ in slow)
        witnesses = tuple(dict.fromkeys(name for _, _, names in slow for name in names))
    else:
        finding, reason, witnesses = _unproved(suspects, node)
    hides = finding in (Finding.DOWN, Finding.WRONG, Finding.UNLIKE, Finding.UNDECIDED)
    return NodeVerdict(node, finding, () if hides else components, cut(reason), witnesses)


def _lie(suspects: Suspects, node: int) -> Guilt | None:
    """What the node is proved to have lied about."""
    found = [
        guilt
        for aspect, guilty in suspects.opinions.guilty.by.items()
        if aspect.kind is Kind.WORD and (guilt := guilty.get(node)) is not None
    ]
    reach = suspects.opinions.guilty.find(node, REACH)
    if reach is not None:
        odd = tuple(one for one in reach.seen if _at_odds(suspects, one))
        if 2 * len(odd) < len(reach.seen) or len({one.partner for one in odd}) < limits.CHECK_GOOD:
            return None
        found.append(replace(reach, seen=odd))
    return found[0] if found else None


def _unreached(guilt: Guilt, node: int) -> tuple[Finding, str, tuple[str, ...]]:
    """The finding about a node that nobody can exchange data with."""
    partners = node_words(guilt.partners)
    witnesses = (*_of(guilt.partners), *([guilt.own] if guilt.own else []))
    tests = [one.test for one in guilt.seen]
    if any(line.corrupt for test in tests for line in test.lines.values()):
        return Finding.WRONG, f"what it exchanges with {partners} arrives damaged, on all rails", witnesses
    said = {
        "its host": "its own host says that its probe has ended, and it answers",
        "the manager": "the manager hears nothing of it, and it answers",
        "its agent": "its agent is there and its probe hangs: it answers",
    }
    if guilt.own:
        return Finding.DOWN, f"{said[guilt.own]} {partners} no more", witnesses
    return Finding.DOWN, f"it can exchange nothing with {partners}, on any rail", witnesses


def _version(suspects: Suspects, node: int) -> tuple[Finding, str]:
    own, most = suspects.words.version(node), suspects.words.most
    if most:
        return Finding.UNLIKE, f"it has torch {own}, and most nodes have torch {most}"
    return Finding.UNDECIDED, f"it has torch {own}, others have another version, and no version has a majority"


def _slow(suspects: Suspects, node: int) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """In what the node is slow or lacks something: the component, why, and who says so."""
    opinions = suspects.opinions
    if opinions.guilty.find(node, REACH):
        return
    for aspect in (COMPUTE, MEMORY):
        guilt = opinions.guilty.find(node, aspect)
        if guilt is not None:
            yield aspect.kind.value, f"{aspect.kind.value} {_times(suspects, guilt, node, aspect)}", _all(guilt)
    for rail, harm, guilt in _sick_rails(suspects, node):
        aspect = Aspect(Kind.PACE, rail)
        how = _times(suspects, guilt, node, aspect) if harm is Harm.SLOW else f"{_does(harm)} {_with(guilt)}"
        yield f"rail {rail}", f"rail {rail} {how}", _all(guilt)
    for rail in suspects.words.missing(node):
        yield f"rail {rail}", f"it has no rail {rail}, and most nodes have it", ("itself", "most other nodes")


def _times(suspects: Suspects, guilt: Guilt, node: int, aspect: Aspect) -> str:
    """`takes 3.1 to 3.3 times as long as usual (41.2 ms for 13.1 ms) with nodes 1 and 4, in rounds 0 and 1`."""
    views = suspects.opinions.views
    usual = views.scales[aspect]
    took = sorted(views.time_ns(one, node, aspect) for one in guilt.seen)
    ratios = [f"{usual.ratio(time_ns):.1f}" for time_ns in (took[0], took[-1])]
    ratio = ratios[0] if ratios[0] == ratios[1] else " to ".join(ratios)
    rounds = sorted({one.test.round for one in guilt.seen})
    return (
        f"takes {ratio} times as long as usual ({took[0] / limits.MS:.1f} ms for {usual.usual_ns / limits.MS:.1f} ms) "
        f"{_with(guilt)}, in {verb(len(rounds), 'round', 'rounds')} {join([str(one) for one in rounds])}"
    )


def _unproved(suspects: Suspects, node: int) -> tuple[Finding, str, tuple[str, ...]]:
    """The finding about a node that is not proved to be at fault: healthy or undecided."""
    opinions, words = suspects.opinions, suspects.words
    good = sorted(opinions.witnesses.good(node, REACH))
    if wrong := words.wrong(node):
        return Finding.UNDECIDED, f"a product of it was wrong once, as {_named(wrong)} says, and nobody confirms it", ()
    if words.torn(node):
        return Finding.UNDECIDED, "its own ranks could not exchange data with each other, once", ()
    alone = [test for test in opinions.views.tests if node in test.nodes and test.whole]
    strangers = {test.partner(node) for test in alone}
    if len(strangers) >= limits.CHECK_GOOD and not any(test.lines for test in alone):
        reason = f"it has no rail in common with {node_words(strangers)}"
        if not words.usual_rails:
            return Finding.UNDECIDED, f"{reason}, and no rail is one that most nodes have", ()
        return Finding.UNLIKE, reason, ("itself", *_of(sorted(strangers)))
    for aspect in suspects.open_in(node):
        if not opinions.mostly_good(node, aspect):
            return Finding.UNDECIDED, _open_words(opinions.unexplained(node, aspect), aspect, good), ()
    if not words.told(node):
        return Finding.UNDECIDED, "it has said nothing of itself", ()
    if len(suspects.nodes) == 1:
        return Finding.HEALTHY, "it says so itself; there is no other node", ("itself",)
    witnesses = (*_of(good[:_MOST]), *(["itself"] if len(good) < 2 else []))
    return Finding.HEALTHY, f"it has passed with {node_words(good)}", witnesses


def _open_words(bad: Sequence[Seen], aspect: Aspect, good: Sequence[int]) -> str:
    """Why nothing is decided about a node."""
    what = {
        Kind.REACH: "it could exchange nothing",
        Kind.RAIL: f"rail {aspect.rail} did not work",
        Kind.PACE: f"rail {aspect.rail} was slow",
        Kind.COMPUTE: "its compute was slow",
        Kind.MEMORY: "its memory was slow",
        Kind.WORD: "the two contradicted each other",
    }[aspect.kind]
    if bad:
        partners = node_words(one.partner for one in bad)
        return f"{what} with {partners}, and who is at fault could not be found out"
    if good:
        return f"it has passed with {node_words(good)} only, and is not heard any more or not seen by others"
    return "nothing that it did was confirmed by another node"


# ---- rails and links ----------------------------------------------------------------------------------------------


def _sick_rails(suspects: Suspects, node: int) -> Iterator[tuple[str, Harm, Guilt]]:
    opinions = suspects.opinions
    liar = node in opinions.guilty.liars
    for aspect in suspects.guilty_in(node):
        guilt = opinions.guilty.by[aspect][node]
        if aspect.kind is Kind.RAIL and not liar:
            corrupt = any(one.test.lines[aspect.rail].corrupt for one in guilt.seen)
            yield aspect.rail, Harm.CORRUPT if corrupt else Harm.DEAD, guilt
        elif aspect.kind is Kind.PACE and not opinions.guilty.late(node):
            yield aspect.rail, Harm.SLOW, guilt


def _rails(suspects: Suspects, nodes: Sequence[NodeVerdict]) -> Iterator[RailVerdict]:
    opinions = suspects.opinions
    for aspect in sorted(opinions.views.by, key=lambda one: one.rail):
        if (
            aspect.kind is Kind.RAIL
            and opinions.witnesses.nowhere(aspect)
            and len(suspects.nodes) > limits.CHECK_NOWHERE
        ):
            seen = [one for by in opinions.views.by[aspect].values() for one in by]
            harm = Harm.CORRUPT if any(one.test.lines[aspect.rail].corrupt for one in seen) else Harm.DEAD
            reason = f"rail {aspect.rail} {_does(harm)} between any two nodes"
            yield RailVerdict(aspect.rail, None, harm, reason, _of(sorted(opinions.views.by[aspect])[:_MOST]))
    for one in nodes:
        if one.finding is Finding.DOWN or opinions.guilty.find(one.node, REACH):
            continue
        for rail, harm, guilt in _sick_rails(suspects, one.node):
            reason = f"rail {rail} of node {one.node} {_does(harm)} {_with(guilt)}"
            yield RailVerdict(rail, one.node, harm, reason, _all(guilt))
        for rail in suspects.words.missing(one.node):
            reason = f"node {one.node} has no rail {rail}, and most nodes have it"
            yield RailVerdict(rail, one.node, Harm.MISSING, reason, ("itself", "most other nodes"))


def _links(suspects: Suspects) -> Iterator[LinkVerdict]:
    opinions = suspects.opinions
    found: dict[tuple[Pair, Harm], list[str]] = {}
    for (nodes, aspect), seen in opinions.links.by.items():
        if opinions.links.settled(nodes, aspect):
            found.setdefault((nodes, _harm(suspects, nodes, aspect)), []).append(aspect.rail)
        elif not seen[-1].good and aspect.kind is Kind.RAIL:
            found.setdefault((nodes, Harm.UNDECIDED), []).append(aspect.rail)
    if len(suspects.nodes) <= limits.CHECK_ALL_PAIRS:
        for node in suspects.open:
            for aspect in suspects.open_in(node):
                for one in opinions.unexplained(node, aspect) if aspect.kind is Kind.RAIL else ():
                    key = (one.test.nodes, Harm.UNDECIDED)
                    if aspect.rail not in found.setdefault(key, []):
                        found[key].append(aspect.rail)
    for (nodes, harm), rails in sorted(found.items(), key=lambda one: (one[0][0], one[0][1].value)):
        known = {rail for test in opinions.views.tests if test.nodes == nodes for rail in test.lines}
        for rail in [""] if set(rails) == known and len(known) > 1 else sorted(rails):
            on = f"rail {rail}" if rail else "any rail"
            if harm is Harm.UNDECIDED:
                reason = f"between nodes {nodes[0]} and {nodes[1]} {on} does not work: one of them, or what is between"
            else:
                reason = f"{on} between nodes {nodes[0]} and {nodes[1]} {_does(harm)}, and both are well with others"
            yield LinkVerdict(nodes, rail, harm, reason, _of(nodes))


def _harm(suspects: Suspects, nodes: Pair, aspect: Aspect) -> Harm:
    if aspect.kind is Kind.PACE:
        return Harm.SLOW
    tests = [test for test in suspects.opinions.views.tests if test.nodes == nodes and aspect.rail in test.lines]
    return Harm.CORRUPT if any(test.lines[aspect.rail].corrupt for test in tests) else Harm.DEAD


# ---- words ------------------------------------------------------------------------------------------------------


def _at_odds(suspects: Suspects, one: Seen) -> str:
    views = suspects.opinions.views
    return next(iter(views.odds(one.test).values()), "") if one.test.whole else ""


def _does(harm: Harm) -> str:
    return {Harm.DEAD: "carries nothing", Harm.CORRUPT: "damages data", Harm.SLOW: "is slow"}[harm]


def _with(guilt: Guilt) -> str:
    return f"with {node_words(guilt.partners)}"


def _all(guilt: Guilt) -> tuple[str, ...]:
    return (*_of(guilt.partners), *([guilt.own] if guilt.own else []))


def _of(nodes: Iterable[int]) -> tuple[str, ...]:
    return tuple(f"node {node}" for node in nodes)


def _named(who: Sequence[str]) -> str:
    return "it" if tuple(who) == ("itself",) else join(list(who))

"""The wait graph as an SVG: processes on a circle or in columns, an arrow from each waiter to what it waits for.

Names are text from outside and are escaped here. The drawing carries no style of its own, only classes of the page's
style sheet, so that one drawing serves light, dark and paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from reports.model import Node, Triage, Wait
from reports.text import clean

MOST = 24  # most nodes of a drawing; beyond that, victims with equal targets are drawn as one
ROW, TALL, GAP = 46, 32, 60  # pixels: of a row, of a box, between columns
PHONE = 366  # pixels of a drawing that a phone shows whole
LETTER, LETTERS = 7.2, 34  # pixels of a letter of 13 px; most letters of a label


def svg(triage: Triage) -> str:
    """Return an `<svg>` element, or "" without any wait."""
    nodes, edges = _nodes_and_edges(triage)
    if not edges:
        return ""
    box = 20 + LETTER * max(6, *(min(LETTERS, len(clean(label))) for label, _ in nodes.values()))
    at = _circle(nodes, box) if triage.cycle else _columns(nodes, edges, box)
    width, height = max(x for x, _ in at.values()) + box / 2 + 2, max(y for _, y in at.values()) + TALL
    head = (f'<svg class="waits" width="{width:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
            'xmlns="http://www.w3.org/2000/svg">'
            "<title>who waits for whom</title><defs>"
            '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path class="tip" d="M0,0 L8,4 L0,8 z"/></marker></defs>')  # fmt: skip
    arrows = [_arrow(at[waiter], at[target], layer, box) for waiter, target, layer in edges]
    boxes = [_box(at[key], label, party, box) for key, (label, party) in nodes.items()]
    return "".join([head, *arrows, *boxes, "</svg>"])


def _arrow(waiter: tuple[float, float], target: tuple[float, float], layer: str, box: float) -> str:
    """Draw an arrow between two boxes, or a loop above the box of a process that waits for itself."""
    if waiter == target:
        x, y = waiter
        return (f'<path class="edge" marker-end="url(#tip)" d="M{x + box / 2 - 24:.0f},{y - TALL / 2:.0f} '
                'c10,-30 40,-10 24,14"/>')  # fmt: skip
    (x1, y1), (x2, y2) = _border(waiter, target, box), _border(target, waiter, box)
    return (f'<line class="edge" marker-end="url(#tip)" x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" '
            f'y2="{y2:.0f}"><title>{_text(layer)}</title></line>')  # fmt: skip


def _box(center: tuple[float, float], label: str, party: str, box: float) -> str:
    x, y = center
    return (f'<g class="node {party}"><rect x="{x - box / 2:.0f}" y="{y - TALL / 2:.0f}" width="{box:.0f}" '
            f'height="{TALL}" rx="4"/><text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">{_text(label)}'
            "</text></g>")  # fmt: skip


def _nodes_and_edges(triage: Triage) -> tuple[dict[str, tuple[str, str]], list[tuple[str, str, str]]]:
    """Return nodes (key -> label, party) and edges (waiter, target, layer). Where there are many, victims alike are
    one node.
    """
    nodes_by_key = {node.key: node for node in triage.nodes}
    waits = [wait for wait in triage.waits if {wait.waiter, wait.target} <= nodes_by_key.keys()]
    touched = dict.fromkeys(key for wait in waits for key in (wait.waiter, wait.target))
    # Each process is drawn under a name: its own, or that of its group of victims.
    groups, labels = _merged(nodes_by_key, waits) if len(touched) > MOST else ({}, {})
    names = {key: groups.get(key, key) for key in touched}
    nodes: dict[str, tuple[str, str]] = {}
    for key, name in names.items():
        nodes.setdefault(name, (labels.get(name, nodes_by_key[key].label), _party(nodes_by_key[key])))
    drawn = set(list(nodes)[:MOST])
    drawn_edges = dict.fromkeys((names[wait.waiter], names[wait.target], wait.layer) for wait in waits)
    edges = [edge for edge in drawn_edges if drawn.issuperset(edge[:2]) and not _is_within_group(edge, nodes_by_key)]
    used = {key for edge in edges for key in edge[:2]}
    return {key: value for key, value in nodes.items() if key in used}, edges


def _is_within_group(edge: tuple[str, str, str], nodes_by_key: Mapping[str, Node]) -> bool:
    """Whether victims of one group wait for each other, which is no edge. A process may wait for itself."""
    waiter, target, _ = edge
    return waiter == target and waiter not in nodes_by_key


def _merged(nodes: Mapping[str, Node], waits: Sequence[Wait]) -> tuple[dict[str, str], dict[str, str]]:
    """Return (key -> the group that it is drawn as, group -> its label) of victims that wait for the same."""
    targets: dict[str, set[str]] = {key: set() for wait in waits for key in (wait.waiter, wait.target)}
    for wait in waits:
        targets[wait.waiter].add(wait.target)
    by_goals: dict[frozenset[str], list[str]] = {}
    for key, goals in targets.items():
        if nodes[key].party in ("victim", "bystander"):
            by_goals.setdefault(frozenset(goals), []).append(key)
    groups = {f"group {number}": keys for number, keys in enumerate(by_goals.values()) if len(keys) > 1}
    labels = {name: f"{len(keys)} like {nodes[keys[0]].label}" for name, keys in groups.items()}
    return {key: name for name, keys in groups.items() for key in keys}, labels


def _party(node: Node) -> str:
    return node.party if node.party in ("culprit", "suspect", "victim") else "bystander"


def _columns(
    nodes: dict[str, tuple[str, str]], edges: list[tuple[str, str, str]], box: float
) -> dict[str, tuple[float, float]]:
    """Place waiters on the left, processes that are only waited for on the right, and those that are both in
    between.
    """
    waiters, targets = {edge[0] for edge in edges}, {edge[1] for edge in edges}
    left: list[str] = []
    middle: list[str] = []
    right: list[str] = []
    for key in nodes:
        if key not in waiters:
            right.append(key)
        elif key in targets:
            middle.append(key)
        else:
            left.append(key)
    columns = [column for column in (left, middle, right) if column]
    rows = max(map(len, columns))
    if rows == 1 and len(columns) * (box + GAP) > PHONE:
        return _stacked([key for (key,) in columns], box)
    at = {}
    for number, keys in enumerate(columns):
        gap = rows * ROW / len(keys)
        # Boxes of a middle column would be crossed by arrows where rows coincide, so it is set lower.
        shift = ROW / 2 if keys is middle else 0
        for row, key in enumerate(keys):
            at[key] = (2 + box / 2 + number * (box + GAP), TALL / 2 + 4 + gap * (row + 0.5) - ROW / 4 + shift)
    return at


def _circle(nodes: dict[str, tuple[str, str]], box: float) -> dict[str, tuple[float, float]]:
    if len(nodes) == 2:
        return _stacked(list(nodes), box)
    radius_y = 40 + 14 * len(nodes)
    at = {}
    for index, key in enumerate(nodes):
        angle = math.tau * index / len(nodes)
        at[key] = (2 + box * (1.5 - math.cos(angle)), radius_y + TALL - radius_y * math.sin(angle))
    return at


def _stacked(keys: list[str], box: float) -> dict[str, tuple[float, float]]:
    """Place one below the other."""
    return {key: (2 + box / 2, TALL / 2 + 4 + number * (TALL + GAP)) for number, key in enumerate(keys)}


def _border(center: tuple[float, float], toward: tuple[float, float], box: float) -> tuple[float, float]:
    """Return where the line from a box's middle toward another point leaves the box."""
    dx, dy = toward[0] - center[0], toward[1] - center[1]
    scale = min(box / 2 / abs(dx) if dx else math.inf, TALL / 2 / abs(dy) if dy else math.inf)
    scale = 0.0 if math.isinf(scale) else scale
    return center[0] + dx * scale, center[1] + dy * scale


def _text(value: str) -> str:
    cleaned = clean(value)
    return escape(cleaned if len(cleaned) <= LETTERS else cleaned[: LETTERS - 1] + "…")

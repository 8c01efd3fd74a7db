"""The charts of a report: per step and for both runs, drawn from the series of a verdict.

A series may be short (a torn run), contain NaN, null or infinity, or have an unknown name; it is drawn anyway. Text
from a verdict never enters a drawing. It goes into titles and legends, which the page escapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probes.format import SIDES, number
from reports.model import Parity
from reports.sections.svg import RC, ROLES, StyleSheet
from reports.text import clean, first_of, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHASES = {"rollout": "p1", "experience": "p2", "train": "p3", "sync": "p4"}
MOST_MARKS = 60  # steps; further ones would touch each other: they are drawn without marks, and bars as areas
_LIMIT = 1e30  # beyond it an axis has no readable ticks
_ZERO = 1e-30  # up to it a value is drawn as 0 on a logarithmic axis
_TITLES = {
    "reward": "Reward",
    "kl": "KL to the reference, nats",
    "policy_loss": "Policy loss",
    "value_loss": "Value loss",
}
_BOUNDS = {"floor": "combined", "tolerance": "tolerance", "cap": "cap"}  # role -> key of the floor
_DASHES = {"floor": ":", "tolerance": "--", "cap": "-"}


@dataclass(frozen=True)
class Chart:
    """A drawing (empty where there was nothing to draw), its title, a note, and its legend of (style class, label)."""

    title: str
    svg: str
    note: str = ""
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Line:
    """One series, ready to draw.

    `values`: NaN where the value is not finite. `nonfinite`: the steps of such values. `absent`: those of them whose
    value was NaN or null from the start.
    """

    steps: list[float]
    values: list[float]
    nonfinite: list[str]
    absent: frozenset[str] = frozenset()

    @property
    def drawable(self) -> bool:
        return any(not math.isnan(value) for value in self.values)


def line(series: dict[str, Any], name: str) -> Line:
    """Return the series `name` with its step numbers: the series "step" where its length fits, else counted from 0."""
    values = [number(value) for value in series.get(name) or []]
    steps = [number(value) for value in series.get("step") or []]
    if len(steps) != len(values) or not all(abs(step) < 1e9 for step in steps):
        steps = [float(index) for index in range(len(values))]
    plotted: list[float] = []
    off_scale: list[str] = []
    absent: set[str] = set()
    for step, value in zip(steps, values, strict=True):
        if abs(value) < _LIMIT:
            plotted.append(value)
            continue
        plotted.append(math.nan)
        off_scale.append(show(int(step)))
        if math.isnan(value):
            absent.add(off_scale[-1])
    return Line(steps, plotted, off_scale, frozenset(absent))


def charts(parity: Parity, sheet: StyleSheet) -> list[Chart]:
    """Return every chart for which the verdict has a series, the known ones first."""
    import matplotlib.style

    with matplotlib.style.context(RC, after_reset=True):  # independent of the user's own matplotlibrc
        return [chart for chart in _VerdictCharts(parity, sheet).all() if chart is not None]


class _VerdictCharts:
    """Draws one chart after the other for one verdict."""

    def __init__(self, parity: Parity, sheet: StyleSheet) -> None:
        self.runs, self.comparison, self.floor = parity.runs[:2], parity.series, parity.floor
        self.divergence_step = parity.first_divergence.step if parity.first_divergence else None
        self.sheet, self.count = sheet, 0
        self.last_lines_figure: Figure | None = None  # of the last chart of lines alone, for the next one
        tables = [*(run.series for run in self.runs), self.comparison]
        steps = [step for table in tables for name in table for step in line(table, name).steps]
        self.step_range = min(steps, default=0.0) - 0.5, max(steps, default=0.0) + 0.5  # shared: a torn run ends early
        names = [clean(f"{run.side} {run.backend}").strip() or "run" for run in self.runs]
        self.run_legend = tuple((f"line {side}", name) for side, name in zip(SIDES, names, strict=False))

    def all(self) -> list[Chart | None]:
        placed_names = [
            "step",
            "reward",
            "kl",
            "length_mean",
            "length_max",
            "padded_tokens",
            "real_tokens",
            "seconds",
            *(f"{phase}_seconds" for phase in PHASES),
        ]
        remaining_names = dict.fromkeys(name for run in self.runs for name in run.series if name not in placed_names)
        comparison_names = ("step", "max_delta_logprob", "mean_delta_logprob", "flips", "flips_beyond_margin")
        return [
            self.by_run("reward"),
            self.by_run("kl"),
            self.delta(),
            self.flips(),
            self.lengths(),
            self.phases(),
            self.sizes(),
            *(self.by_run(name) for name in remaining_names),
            *(self.alone(name) for name in self.comparison if name not in comparison_names),
        ]

    def by_run(self, name: str) -> Chart | None:
        """Draw one line per run."""
        lines = [line(run.series, name) for run in self.runs]

        def draw(ax: Axes) -> None:
            for side, item in zip(SIDES, lines, strict=False):
                _plot(ax, item, side)

        return self._chart(_TITLES.get(name) or _title(name), lines, lambda: self._of_lines(draw), self.run_legend)

    def alone(self, name: str) -> Chart | None:
        item = line(self.comparison, name)
        return self._chart(_title(name), [item], lambda: self._of_lines(lambda ax: _plot(ax, item, "p1")))

    def delta(self) -> Chart | None:
        """Draw max and mean |Δ log-probability| on a logarithmic axis, with floor, tolerance and cap."""
        lines = {"p1": line(self.comparison, "max_delta_logprob"), "p2": line(self.comparison, "mean_delta_logprob")}
        bounds = {role: number(self.floor.get(key)) for role, key in _BOUNDS.items()}
        bounds = {role: value for role, value in bounds.items() if _ZERO < value < _LIMIT}
        legend = (
            ("line p1", "max"),
            ("line p2", "mean"),
            *((f"line {role}", f"{role} {show(value)}") for role, value in bounds.items()),
        )
        zeros = any(value == 0 for item in lines.values() for value in item.values)

        def draw(ax: Axes) -> None:
            magnitudes = [abs(value) for item in lines.values() for value in item.values if abs(value) > _ZERO]
            magnitudes = [*magnitudes, *bounds.values()] or [1e-9, 1.0]
            ax.set_yscale("log")
            ax.set_ylim(min(magnitudes) / 3, max(magnitudes) * 3)
            ax.minorticks_off()
            ax.yaxis.set_major_formatter(lambda value, _: f"1e{math.log10(value):.0f}")
            for role, value in bounds.items():
                ax.axhline(value, color=ROLES[role], linewidth=1.2, linestyle=_DASHES[role])
            for role, item in lines.items():
                _plot_logarithmic(ax, item, role)

        return self._chart(
            "|Δ log-probability| of equal tokens, nats",
            list(lines.values()),
            lambda: self._figure([draw]),
            legend,
            "hollow: exactly 0" if zeros else "",
            nan="not compared",
        )

    def flips(self) -> Chart | None:
        lines = [line(self.comparison, "flips"), line(self.comparison, "flips_beyond_margin")]

        def draw(ax: Axes) -> None:
            for item, role in zip(lines, ("floor", "mark"), strict=True):
                _bars(ax, item.steps, [0.0 if math.isnan(value) else value for value in item.values], None, role)
            ax.set_ylim(bottom=0, top=None if any(any(item.values) for item in lines) else 1)

        return self._chart(
            "Flips: tokens chosen differently",
            lines,
            lambda: self._figure([draw]),
            (("box floor", "inside the margin"), ("box mark", "beyond it")),
        )

    def lengths(self) -> Chart | None:
        lines = [
            (side, line(run.series, "length_mean"), line(run.series, "length_max"))
            for side, run in zip(SIDES, self.runs, strict=False)
        ]

        def draw(ax: Axes) -> None:
            for side, mean, longest in lines:
                _plot(ax, mean, side)
                _plot(ax, longest, side, thin=True)
            ax.set_ylim(bottom=0)

        return self._chart(
            "Response length, tokens",
            [item for _, *pair in lines for item in pair],
            lambda: self._figure([draw]),
            self.run_legend,
            "thin: the longest sample",
        )

    def phases(self) -> Chart | None:
        """Draw the seconds of each phase, stacked, one panel per run; the rest of the step is on top."""
        stacks = [{phase: line(run.series, f"{phase}_seconds") for phase in PHASES} for run in self.runs]
        totals = [line(run.series, "seconds") for run in self.runs]

        def panel(index: int) -> Callable[[Axes], None]:
            def draw(ax: Axes) -> None:
                height: list[float] = []
                for phase, role in PHASES.items():
                    height = _stack(ax, stacks[index][phase], height, role)
                total = totals[index]
                phase_heights = height + [0.0] * (len(total.values) - len(height))
                remainders = [
                    0.0 if math.isnan(value) else value - phase_heights[i] for i, value in enumerate(total.values)
                ]
                _stack(ax, Line(total.steps, remainders, []), height, "grid")

            return draw

        legend = (*((f"box {role}", phase) for phase, role in PHASES.items()), ("box grid", "rest"))
        all_lines = [item for stack in stacks for item in stack.values()] + totals
        panels = [panel(index) for index in range(len(self.runs))]
        return self._chart("Seconds per phase", all_lines, lambda: self._figure(panels), legend)

    def sizes(self) -> Chart | None:
        """Draw the padded tensor size and the real tokens in it, one panel per run."""
        pairs = [(line(run.series, "padded_tokens"), line(run.series, "real_tokens")) for run in self.runs]

        def panel(index: int) -> Callable[[Axes], None]:
            def draw(ax: Axes) -> None:
                for item, role in zip(pairs[index], ("grid", SIDES[index]), strict=True):
                    _stack(ax, item, [], role)

            return draw

        real = [(f"box {side}", f"real, {name}") for side, (_, name) in zip(SIDES, self.run_legend, strict=False)]
        return self._chart(
            "Experience tensors, tokens",
            [item for pair in pairs for item in pair],
            lambda: self._figure([panel(index) for index in range(len(self.runs))]),
            (("box grid", "padded"), *real),
        )

    def _chart(
        self,
        title: str,
        lines: Sequence[Line],
        draw: Callable[[], Figure],
        legend: tuple[tuple[str, str], ...] = (),
        note: str = "",
        nan: str = "not finite",
    ) -> Chart | None:
        """Return the chart; None without such a series; a note without a drawing where no value is finite.

        `nan`: what it means where the series has no number.
        """
        off_scale_steps = list(dict.fromkeys(step for item in lines for step in item.nonfinite))
        steps_by_reason: dict[str, list[str]] = {}
        for step in off_scale_steps:
            empty = all(step in item.absent for item in lines if step in item.nonfinite)
            steps_by_reason.setdefault(nan if empty else "not finite", []).append(step)
        notes = "; ".join(
            [*filter(None, [note]), *(f"{word} at step {first_of(at, 8)}" for word, at in steps_by_reason.items())]
        )
        if not any(item.drawable for item in lines):
            return Chart(title, "", notes) if off_scale_steps else None
        self.count += 1
        return Chart(title, self.sheet.fragment(draw(), f"c{self.count}"), notes, legend)

    def _of_lines(self, draw: Callable[[Axes], None]) -> Figure:
        """Return a figure of lines on linear axes. It is the one of the last such chart, emptied: its ticks, which take
        most of the time of a chart, are drawn again.
        """
        if self.last_lines_figure is None:
            self.last_lines_figure = self._figure([draw])
            return self.last_lines_figure
        [ax] = self.last_lines_figure.axes
        for drawn in [*ax.lines]:
            drawn.remove()
        ax.relim()
        ax.autoscale()
        self._draw(ax, draw)
        return self.last_lines_figure

    def _figure(self, panels: Sequence[Callable[[Axes], None]]) -> Figure:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(5.4, 2.5))
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        figure.subplots_adjust(left=0.125, right=0.985, top=0.9 if len(panels) > 1 else 0.96, bottom=0.19, wspace=0.06)
        for index, (ax, draw) in enumerate(zip(axes, panels, strict=True)):
            self._draw(ax, draw)
            ax.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
            if ax.get_yscale() == "linear":
                ax.yaxis.set_major_locator(MaxNLocator(nbins=5))
            ax.set_xlabel("step", labelpad=2)
            if len(panels) > 1:
                ax.set_title(SIDES[index], pad=4)
        return figure

    def _draw(self, ax: Axes, draw: Callable[[Axes], None]) -> None:
        draw(ax)
        ax.set_xlim(*self.step_range)
        if self.divergence_step is not None and self.divergence_step >= 0:
            ax.axvline(self.divergence_step, color=ROLES["mark"], linewidth=1.0, linestyle=(0, (1, 2)))


def _title(name: str) -> str:
    return clean(name).replace("_", " ").strip() or "unnamed series"


def _plot(ax: Axes, item: Line, role: str, thin: bool = False) -> None:
    """Draw a line. The candidate is dashed and thinner, so that both lines show where they coincide, even on paper."""
    style: dict[str, Any] = {"linewidth": 2.4, "linestyle": "-", "zorder": 2, "markersize": 4.5}
    if role in ("candidate", "p2"):
        style = {"linewidth": 1.4, "linestyle": (0, (4, 2)), "zorder": 3, "markersize": 3}
    if thin:
        style["linewidth"] = 0.9
    marker = "" if thin or len(item.values) > MOST_MARKS else "o"
    ax.plot(item.steps, item.values, color=ROLES[role], marker=marker, **style)


def _plot_logarithmic(ax: Axes, item: Line, role: str) -> None:
    """Draw the values of a line that have a logarithm, and a hollow mark at the foot of the axis for each zero."""
    magnitudes = [abs(value) if abs(value) > _ZERO else math.nan for value in item.values]
    _plot(ax, Line(item.steps, magnitudes, []), role)
    zeros = [step for step, value in zip(item.steps, item.values, strict=True) if abs(value) <= _ZERO]
    ax.plot(
        zeros,
        [0.04] * len(zeros),
        transform=ax.get_xaxis_transform(),
        linestyle="",
        marker="o",
        markersize=4,
        markerfacecolor="none",
        markeredgecolor=ROLES[role],
    )


def _stack(ax: Axes, item: Line, below: list[float], role: str) -> list[float]:
    """Draw bars (areas beyond MOST_MARKS steps) on top of `below`, and return the new height at each step."""
    values = [0.0 if math.isnan(value) else max(0.0, value) for value in item.values]
    base = [below[i] if i < len(below) else 0.0 for i in range(len(values))]
    _bars(ax, item.steps, values, base, role)
    return [base[i] + value for i, value in enumerate(values)] + below[len(values) :]


def _bars(ax: Axes, steps: list[float], values: list[float], base: list[float] | None, role: str) -> None:
    base = base or [0.0] * len(values)
    top = [low + value for low, value in zip(base, values, strict=True)]
    if len(values) <= MOST_MARKS:
        ax.bar(steps, values, bottom=base, width=0.78, color=ROLES[role], linewidth=0)
        return
    stride = math.ceil(len(values) / 500)  # an area of 10,000 steps would fill most of the file
    ax.fill_between(steps[::stride], base[::stride], top[::stride], color=ROLES[role], linewidth=0)

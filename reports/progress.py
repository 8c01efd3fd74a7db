"""Live progress of the runs: a small view that follows them on a terminal, one line per step anywhere else.

Progress is optional, and a run may have taken hours: an error while drawing ends the drawing, never the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from reports.layout import to_ascii
from reports.pipe import outlive_reader
from reports.text import clean, figure

_SPARKS = "▁▂▃▄▅▆▇█"
_LABELS = {"reward_mean": "reward", "kl_mean": "KL", "kl": "KL"}
_FIRST = ("reward", "reward_mean", "kl", "kl_mean", "length_mean", "seconds", "policy_loss", "value_loss")
_WITHIN_A_STEP = ("", "step", "rollout", "experience", "train", "sync")


@dataclass(frozen=True)
class ProgressEvent:
    """Something happened in a run. `metrics` close a step: send them once per step, with what is known by then."""

    side: str  # baseline, candidate, or any name; empty for a message about the whole
    backend: str
    step: int = 0  # counted from 0: the running step, or the one that `metrics` belong to
    steps: int = 0  # of the whole run; 0: unknown
    phase: str = ""  # rollout, experience, train, sync; outside of steps such as "waiting for the engine"
    metrics: Mapping[str, float] = field(default_factory=dict)  # reward, kl (or reward_mean, kl_mean), others
    message: str = ""  # one sentence, kept on the screen


@dataclass
class _Side:
    backend: str
    step: int = 0
    steps: int = 0
    phase: str = ""
    closed: int = 0  # steps whose metrics have come
    metrics: Mapping[str, float] = field(default_factory=dict)
    rewards: list[float] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return 0 < self.steps <= self.closed


class Progress:
    """Receives events and shows them; made by `progress`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._sides: dict[str, _Side] = {}
        self._message = ""
        self._spinner = Spinner("dots" if _unicode(console) else "line")
        self._live: Live | None = None
        self._printed: dict[str, str] = {}  # side -> the phase named in its last line
        self._broken = False

    def update(self, event: ProgressEvent) -> None:
        """Show the event. Raises nothing but KeyboardInterrupt and SystemExit."""
        if self._broken:
            return
        try:
            self._take(event)
            if self._live is not None:
                self._live.update(self._view())
            else:
                self._print(event)
        except Exception:  # a closed pipe, an odd terminal, an unprintable value: the run continues without progress
            self._broken = True
            self._stop()

    def _take(self, event: ProgressEvent) -> None:
        self._message = event.message or self._message
        if not event.side:  # a message about the whole
            return
        side = self._sides.setdefault(event.side, _Side(event.backend))
        side.backend, side.step, side.phase = event.backend, event.step, event.phase
        side.steps = event.steps or side.steps
        if event.metrics:
            side.metrics, side.closed = dict(event.metrics), event.step + 1
            reward = next((event.metrics[name] for name in ("reward", "reward_mean") if name in event.metrics), None)
            side.rewards = [*side.rewards, reward][-16:] if reward is not None else side.rewards
            side.phase = "" if side.done else side.phase

    def _start(self) -> None:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(self._view(), console=self._console, refresh_per_second=8, transient=True)
            self._live.start()

    def _stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(Exception):  # the terminal may be gone; then there is nothing to clean up
                live.stop()
            with contextlib.suppress(Exception):
                self._console.show_cursor(True)

    def _print(self, event: ProgressEvent) -> None:
        """Print one line for a step that ended, a message, or a phase outside of steps; only a terminal shows the
        others.
        """
        where = f"{clean(event.side)} {clean(event.backend)}".strip()
        parts = [where] if where else []
        if event.metrics:
            parts.append(f"step {event.step}" + (f" ({event.step + 1}/{event.steps})" if event.steps else ""))
            parts += [f"{label} {value}" for label, value in _figures(event.metrics, 6)]
        elif event.phase not in _WITHIN_A_STEP and event.phase != self._printed.get(event.side):
            parts.append(clean(event.phase))
            self._printed[event.side] = event.phase
        if event.message:
            parts.append(clean(event.message))
        if len(parts) > bool(where):
            self._line("  ".join(parts))

    def _line(self, text: str) -> None:
        if not _unicode(self._console):
            text = "".join(map(to_ascii, text))
        self._console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def _view(self) -> RenderableType:
        table = Table.grid(padding=(0, 2), expand=False)
        table.add_column(no_wrap=True, max_width=24, overflow="ellipsis")
        for _ in range(4):
            table.add_column(no_wrap=True)
        for name, side in self._sides.items():
            who = Text.assemble((clean(name), "bold"), " ", clean(side.backend))
            count = Text(f"{side.closed}/{side.steps}" if side.steps else f"step {side.closed}")
            bar = ProgressBar(total=max(1, side.steps), completed=min(side.closed, side.steps), width=12)
            done = side.done and not side.phase
            phase = Text("done", "green") if done else Text(clean(side.phase), "cyan")
            figures = Text("  ".join(f"{label} {value}" for label, value in _figures(side.metrics, 2)))
            if self._console.width >= 100:
                figures = Text.assemble(figures, "  ", (self._spark(side.rewards), "dim"))
            table.add_row(who, bar, count, phase, figures)
        lines: list[RenderableType] = [table]
        if self._message or not self._sides:
            message = Text(clean(self._message) or "starting", "dim", no_wrap=True, overflow="ellipsis")
            self._spinner.update(text=message)
            lines.append(self._spinner)
        return Group(*lines)

    def _spark(self, values: list[float]) -> str:
        finite = [value for value in values if abs(value) < float("inf")]
        if len(finite) < 2 or not _unicode(self._console):
            return ""
        low, span = min(finite), (max(finite) - min(finite)) or 1.0
        return "".join(_SPARKS[round((value - low) / span * 7)] for value in finite)


def _figures(metrics: Mapping[str, float], most: int) -> list[tuple[str, str]]:
    """Return at most `most` metrics as (label, value), reward and KL first."""
    first = [name for name in _FIRST if name in metrics]
    names = [*first, *(name for name in metrics if name not in first)][:most]
    return [(_LABELS.get(name, clean(name)), figure(metrics[name])) for name in names]


def _unicode(console: Console) -> bool:
    return (console.encoding or "").lower().startswith("utf")


@contextlib.contextmanager
def progress(console: Console) -> Iterator[Progress]:
    """Show progress on `console` within this context. The terminal is left clean however the context ends."""
    view = Progress(console)
    with outlive_reader(console):
        try:
            with contextlib.suppress(Exception):  # as in `update`
                view._start()
            yield view
        finally:
            view._stop()

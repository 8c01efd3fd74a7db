"""Parameters that no recording speaks of, tried on the reference: the last family of trials."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.parity.attribution.situation import Situation
from harness.parity.attribution.trial import STOPS, Trial, same, shown
from harness.tables import mapping

NEAR = 8  # of the seed that was asked


def guesses(s: Situation) -> Iterator[Trial]:
    """Parameters that no recording speaks of: seeds and switches by common values, numbers by a fit."""
    chosen = s.symptoms.of("tokens", "lengths")
    # After a choice that is another a log-probability may be too: a shifted one is the choice's own, and the engine may
    # have gone on from another prompt.
    if s.symptoms.of("scores", "prompts") or s.symptoms.of("logprobs") > 2 * chosen or not s.symptoms.total:
        return
    asked = s.asked
    scenario = s.evidence.baseline.recording.scenario
    seed = int(scenario.get("seed") or 0)
    seeds = (seed + way * far for far in range(1, NEAR + 1) for way in (1, -1))  # a rank or a worker added to it
    for other in dict.fromkeys((int(mapping(scenario.get("engine")).get("seed") or 0), 0, 1, 42, 1234, *seeds)):
        if other != seed:
            yield Trial(
                "RNG(seed ignored)",
                f"seed {other} in the reference",
                f"the {s.side} draws with seed {other}, not with the {seed} that was asked",
                {"seed": other},
                details={"asked": seed, "as if": other},
            )
    yield from _fits(s)
    values: dict[str, list[Any]] = {
        "min_tokens": [0],
        "ignore_eos": [not asked.get("ignore_eos", False)],
        "stop_token_ids": [[]],
    }
    for name, tries in values.items():
        for value in tries:
            if same(value, asked.get(name)):
                continue
            yield _guess(s, name, value)


def _guess(s: Situation, name: str, value: Any, bounds: tuple[float, float] | None = None) -> Trial:
    """`bounds`: what explains the engine's choices as well."""
    more = f" ({shown(bounds[0])} to {shown(bounds[1])} does as well)" if bounds else ""
    return Trial(
        STOPS.get(name, f"SAMPLING_PARAM({name})"),
        f"{name} {shown(value)} in the reference",
        f"the {s.side} samples as if {name} were {shown(value)}{more}",
        {"sampling": ((name, value),)},
        details={"asked": s.asked.get(name), "as if": value, "side": s.side, **({"bounds": bounds} if bounds else {})},
    )


def _fits(s: Situation) -> Iterator[Trial]:
    """Numbers that explain what the engine chose: alone, or else several at once."""
    known = {one.name for one in s.named if one.side == s.side}
    names = [name for name in ("temperature", "top_p", "top_k", "min_p") if f"SAMPLING_PARAM({name})" not in known]
    for fitted in s.bench.fitted(s.side, names, s.alteration) if s.symptoms.of("tokens", "lengths") else ():
        values = fitted.values
        parts = [_guess(s, name, value, fitted.bounds.get(name)) for name, value in values.items()]
        if len(parts) == 1:
            yield parts[0]
            continue
        yield Trial(
            f"SAMPLING_PARAM({', '.join(sorted(values))})",
            f"{' and '.join(f'{name} {shown(value)}' for name, value in values.items())} in the reference",
            f"the {s.side} samples with other parameters than were asked",
            {"sampling": tuple(values.items())},
            parts=tuple(parts),
        )

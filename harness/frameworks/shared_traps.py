"""Settings of any framework with which a job runs and learns nothing, in the terms of `shared_meanings`.

Sources: vLLM 0.32.0 and SGLang 0.5.23 (sampling_params.py: a temperature of 0 is greedy); GRPO (arXiv 2402.03300,
section 4.1: an advantage is a reward less the mean of its group); Adam (arXiv 1412.6980: an update is proportional to
the learning rate).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from harness.doctor.outcome import Fine, Outcome, Problem, Unseen
from harness.frameworks.settings import Settings
from harness.frameworks.spec import Framework, Trap
from reports.doctor_model import Severity

_GREEDY = "temperature 0 is greedy: every sample of a prompt is the same"


def shared_traps(framework: Framework) -> tuple[Trap, ...]:
    """The traps that hold for every framework that says what its settings mean."""
    return (
        Trap("rollout-temperature", partial(temperature, framework), ""),
        Trap("learning-rate", partial(learning_rate, framework), ""),
    )


def temperature(framework: Framework, settings: Settings) -> Iterator[Outcome]:
    """A temperature of 0 in the rollout: nothing is explored, and the samples of a group have one reward."""
    name, value, why = _value(framework, settings, "temperature")
    if why:
        yield Unseen(why)
    elif value is None or value > 0:
        yield Fine("samples are drawn" if value is None else f"samples are drawn at temperature {value:g}")
    else:
        _, size, unknown = _value(framework, settings, "samples a prompt")
        group = not unknown and size is not None and size > 1 and not _has_critic(framework, settings)
        effect = "its advantages are zero, and nothing learns" if group else "nothing is explored"
        measured = f"{name}={value:g}" + (f", {size:g} samples a prompt" if group else "")
        yield Problem(
            "error" if group else "warning", "the rollout draws greedily", measured, f"{_GREEDY}; {effect}",
            f"set {name} above 0, as 1.0",
        )  # fmt: skip


def learning_rate(framework: Framework, settings: Settings) -> Iterator[Outcome]:
    """A learning rate of 0: every update leaves the weights as they are."""
    severities: dict[str, Severity] = {"actor": "error", "critic": "warning"}
    for role, severity in severities.items():
        name, value, why = _value(framework, settings, f"learning rate of the {role}")
        if why:
            yield Unseen(why)
        elif value is not None and value <= 0:
            effect = f"no update changes the {role}'s weights, whatever the rewards are"
            yield Problem(
                severity, f"the {role} does not learn", f"{name}={value:g}", effect, f"set {name} above 0, as 1e-6"
            )
        elif name:
            yield Fine(f"{name} is above 0")


def _has_critic(framework: Framework, settings: Settings) -> bool:
    """Whether advantages come from a critic, or may: an estimator by groups has the group's mean in its place."""
    for name, meaning in framework.meanings.items():
        if meaning.concept == "estimator" and (name in settings.values or meaning.default is not None):
            return bool(settings.why_unknown(name)) or settings.get(name, meaning.default) == "gae"
    return False


def _value(framework: Framework, settings: Settings, concept: str) -> tuple[str, float | None, str]:
    """(Setting of a concept, its number, why it is not known). The number is None if the framework's default holds, or
    if it has no such setting."""
    names = [name for name, meaning in framework.meanings.items() if meaning.concept == concept]
    why = next((settings.unknown[name] for name in names if name in settings.unknown), "")
    given: list[tuple[str, Any]] = [(name, settings.values[name]) for name in names if settings.get(name) is not None]
    if given:
        name, value = given[0]
        try:
            return name, float(value), ""
        except (TypeError, ValueError):
            return name, None, f"{name} is {value}, which is no number"
    default = next(
        (framework.meanings[name].default for name in names if framework.meanings[name].default is not None), None
    )
    return (names[0] if names else ""), default, why or (settings.unread if names else "")

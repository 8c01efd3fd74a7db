"""Settings of any framework with which a job runs and learns nothing, in the terms of `shared_meanings`.

Sources: vLLM 0.32.0 and SGLang 0.5.23 (sampling_params.py: a temperature of 0 is greedy); GRPO (arXiv 2402.03300,
section 4.1: an advantage is a reward less the mean of its group); Adam (arXiv 1412.6980: an update is proportional to
the learning rate).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

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
    setting = _Number.of(framework, settings, "temperature")
    if setting.why_unknown:
        yield Unseen(setting.why_unknown)
    elif setting.value is None:
        yield Fine("samples are drawn")
    elif setting.value > 0:
        yield Fine(f"samples are drawn at temperature {setting.value:g}")
    else:
        yield _greedy(framework, settings, setting)


def _greedy(framework: Framework, settings: Settings, temperature: _Number) -> Problem:
    """The problem of greedy rollouts: an error where a group has several samples, and its mean is their baseline."""
    size = _Number.of(framework, settings, "samples a prompt")
    measured = f"{temperature.name}={temperature.value:g}"
    severity: Severity = "warning"
    effect = "nothing is explored"
    if not size.why_unknown and size.value is not None and size.value > 1 and not _has_critic(framework, settings):
        measured += f", {size.value:g} samples a prompt"
        severity, effect = "error", "its advantages are zero, and nothing learns"
    fix = f"set {temperature.name} above 0, as 1.0"
    return Problem(severity, "the rollout draws greedily", measured, f"{_GREEDY}; {effect}", fix)


def learning_rate(framework: Framework, settings: Settings) -> Iterator[Outcome]:
    """A learning rate of 0: every update leaves the weights as they are."""
    severities: dict[str, Severity] = {"actor": "error", "critic": "warning"}
    for role, severity in severities.items():
        setting = _Number.of(framework, settings, f"learning rate of the {role}")
        name, value = setting.name, setting.value
        if setting.why_unknown:
            yield Unseen(setting.why_unknown)
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


@dataclass(frozen=True)
class _Number:
    """The number that a job has for a concept.

    `name`: of the setting; empty if the framework has none for it. `value`: None if the framework does not say its
    default. `why_unknown`: empty if the value is known.
    """

    name: str = ""
    value: float | None = None
    why_unknown: str = ""

    @staticmethod
    def of(framework: Framework, settings: Settings, concept: str) -> _Number:
        meanings = {name: meaning for name, meaning in framework.meanings.items() if meaning.concept == concept}
        for name in meanings:
            value = settings.get(name)
            if value is None:
                continue
            try:
                return _Number(name, float(value))
            except (TypeError, ValueError):
                return _Number(name, None, f"{name} is {value}, which is no number")
        if not meanings:
            return _Number()
        why = next((settings.unknown[name] for name in meanings if name in settings.unknown), settings.unread)
        default = next((meaning.default for meaning in meanings.values() if meaning.default is not None), None)
        return _Number(next(iter(meanings)), default, why)

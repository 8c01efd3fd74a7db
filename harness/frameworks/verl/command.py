"""verl's command: Hydra's overrides, composed by the Hydra of the job's interpreter. verl itself is not imported."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.doctor.outcome import Fine, Outcome, Problem, Unseen
from harness.frameworks.argv import Start
from harness.frameworks.installed import Installation
from harness.frameworks.options import called, nearest
from harness.frameworks.settings import SHELL, Settings, leaves, parsed
from harness.frameworks.spec import Examined

_NAME = r"[A-Za-z_][\w@/]*(?:\.[\w@]+)*"
_OVERRIDE = re.compile(rf"([+~]{{0,2}})({_NAME})=(.*)", re.DOTALL)
_CONFIG = ("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd", "--experimental-rerun")
_MOST_REFUSED = 5  # refused overrides that are named; finding each takes some seconds of Hydra
# Composes as `hydra.main` does. `pkg://verl…` in a file would import verl, and torch with it, so only the folders of
# those packages are registered. The word that Hydra refuses is the last word of the shortest beginning that it refuses.
_COMPOSE = """
import contextlib, importlib.machinery, io, os, types
main, most, *words = sys.argv[1:]
trainer = os.path.dirname(os.path.abspath(main))
here = os.path.join(trainer, "config")
loader = getattr(importlib.machinery, "NamespaceLoader", None) or importlib._bootstrap_external._NamespaceLoader
for name, place in (("verl", os.path.dirname(trainer)), ("verl.trainer", trainer), ("verl.trainer.config", here)):
    spec = importlib.machinery.ModuleSpec(name, loader(name, [place], None), is_package=True)
    spec.submodule_search_locations = [place]
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__, module.__spec__, module.__loader__ = [place], spec, spec.loader
try:
    from hydra import compose, initialize_config_dir
    from hydra._internal.utils import get_args_parser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
except ImportError as error:
    answer(unknown=f"Hydra is not there: {error}")
    sys.exit()
text = io.StringIO()
try:
    with contextlib.redirect_stderr(text):
        given = get_args_parser().parse_args(words)
except SystemExit:
    answer(refused=[["", text.getvalue().strip().splitlines()[-1].partition("error: ")[2]]])
    sys.exit()
if given.multirun or given.experimental_rerun or given.package:
    answer(unknown="Hydra is asked for more than one configuration, or for an earlier one")
    sys.exit()
name = (given.config_name or "ppo_trainer").removesuffix(".yaml")
folder = os.path.join(trainer, given.config_path) if given.config_path else here
more = os.path.abspath(given.config_dir) if given.config_dir else folder
if os.path.isfile(os.path.join(more, f"{name}.yaml")):  # --config-dir may hold the primary file as well
    folder, more = more, folder
search = sorted({folder, more, here} - {folder})
searched = [f"hydra.searchpath=[{','.join(f'file://{one}' for one in search)}]"] if search else []

def composed(overrides):
    try:
        made = compose(name, overrides=[*searched, *overrides])
    except (HydraException, OmegaConfBaseException) as error:
        return None, str(error) or type(error).__name__
    try:
        return OmegaConf.to_container(made, resolve=True), ""
    except OmegaConfBaseException:
        return OmegaConf.to_container(made, resolve=False), ""

refused, overrides = [], list(given.overrides)
with initialize_config_dir(folder, version_base=None):
    values, why = composed(overrides)
    if why and (reason := composed([])[1]):
        answer(unknown=reason)
        sys.exit()
    while why and len(refused) < int(most):
        low, high = 0, len(overrides)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if composed(overrides[:middle])[1] else (middle, high)
        refused.append([overrides[low], composed(overrides[: low + 1])[1]])
        del overrides[low]
        values, why = composed(overrides)
    answer(refused=refused, values=values)
"""


def examine(start: Start, installed: Installation | None) -> Examined:
    """The settings of a command: from Hydra if it is installed, else from the overrides alone."""
    plain, unknown = _overrides(start.arguments)
    unread = _unread(start.arguments)
    values: Mapping[str, Any] = plain
    main = installed.source("verl.trainer.main_ppo") if installed else None
    options: list[Outcome] = []
    if installed is None or main is None:
        options.append(Unseen("verl's configuration is not found beside the command: its options cannot be looked up"))
    else:
        plain_words = [word for word in start.arguments if not SHELL.search(word)]
        answer = installed.query(_COMPOSE, str(main), str(_MOST_REFUSED), *plain_words)
        composed = answer.get("values") or {}
        composed_values = {name: value for name, value in leaves(composed) if value != "???"}
        options += _judged(answer, start.arguments, composed_values, called("verl", installed))
        if composed_values:
            values, unread = composed_values, unread if "only the shell" in unread else ""
            unknown = {name: why for name, why in unknown.items()
                       if "taken out" not in why or name not in composed_values}  # fmt: skip
            unknown |= {name: f"{name} is {value}, which only Hydra knows" for name, value in composed_values.items()
                        if isinstance(value, str) and "${" in value}  # fmt: skip
    return Examined(Settings(values, unknown, unread, start.variables), tuple(options))


def _unread(words: Sequence[str]) -> str:
    """Return why settings of a command are not read; empty if all are."""
    names = {word: word.partition("=")[0] for word in words}
    for word in (word for word, name in names.items() if SHELL.search(name)):
        return f"{word} may hold settings, which only the shell knows"
    for word in (word for word, name in names.items() if name in _CONFIG):
        return f"settings come from {word}, which only Hydra reads"
    for word in (word for word, name in names.items() if "@" in name or "/" in name):
        return f"settings come from {word}, which only Hydra reads"
    return ""


def _judged(
    answer: Mapping[str, Any], given_words: Sequence[str], composed_values: Mapping[str, Any], version: str
) -> Iterator[Outcome]:
    """What Hydra says about the overrides."""
    if why := answer.get("unknown"):
        yield Unseen(f"verl's options cannot be looked up: {' '.join(str(why).split())[:300]}")
        return
    for word, why in answer.get("refused", ()):
        override = _OVERRIDE.fullmatch(word)
        name = f"{override[1]}{override[2]}=…" if override else word
        near = nearest(override[2], composed_values) if override and override[2] not in composed_values else ""
        first = " ".join(str(why).split())[:300]
        yield Problem(
            "error", f"{version} does not take {name or 'a word of the command'}", f"{first}{near}",
            "Hydra refuses it and the job ends before its first step", "take it out, or write it as this version does",
        )  # fmt: skip
    if not answer.get("refused"):
        yield Fine(f"Hydra composes {version}'s configuration with the {len(given_words)} words of the command")


def _overrides(words: Sequence[str]) -> tuple[dict[str, object], dict[str, str]]:
    """The overrides without Hydra: (name -> value, name -> why its value is not known). The last override of a name
    counts."""
    values: dict[str, object] = {}
    unknown: dict[str, str] = {}
    for word in words:
        deleted = re.fullmatch(rf"~({_NAME})(=.*)?", word)
        override = _OVERRIDE.fullmatch(word)
        if deleted:
            values = {
                name: value
                for name, value in values.items()
                if name != deleted[1] and not name.startswith(f"{deleted[1]}.")
            }
            short = deleted[1].removeprefix("actor_rollout_ref.")
            unknown[deleted[1]] = f"{short} is taken out (~{short}), and what the job does without it is not known here"
        elif override:
            name, text = override[2], override[3]
            short = name.removeprefix("actor_rollout_ref.")
            unknown.pop(name, None)
            values.pop(name, None)
            if SHELL.search(text):
                unknown[name] = f"{short} is {text}, which only the shell knows"
                continue
            value = parsed(text)
            values |= {key: leaf for key, leaf in leaves({name: value}) if leaf != {}}
    return values, unknown

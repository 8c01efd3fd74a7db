"""Loads models from a path: policy, value model on the policy's trunk, reward model. Errors say what a user can do.

Every model is put in evaluation mode and stays there: with dropout, the ratio of PPO would differ from one before any
update.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from probes.errors import AddressedError
from scenarios.models import builtin
from scenarios.models.attention import attention_of
from scenarios.models.quiet import quiet
from scenarios.models.wide import multiply_in_float32
from scenarios.settings import BUILTIN
from scenarios.tiny import ANY_MODEL, BUILTIN_POLICIES, OPTIONS, PREFIX, no_such_model

# Transformers changes the process's default dtype while it loads; of two threads at once, one would restore the
# other's.
_LOADING = threading.Lock()


class ModelError(AddressedError, ValueError):
    """A model that cannot be used. The message says which path, why, and what is possible.

    `fix`: an option of the command line, or the command that fetches the model.
    """


MODEL = OPTIONS["model.path"] + ANY_MODEL
REWARD = f"{OPTIONS['model.reward']}{ANY_MODEL} with one label"


def _option(key: str) -> str:
    return REWARD if key == "model.reward" else MODEL


def policy_path(path: str, *, seed: int, home: Path) -> Path:
    """Return the directory of `model.path`. A built-in policy is made where it is missing. Raises ModelError."""
    if path in BUILTIN_POLICIES:
        return builtin.build(seed, home, "" if path == BUILTIN else path.removeprefix(PREFIX))
    return _directory(path, "model.path")


def reward_path(path: str, *, seed: int, home: Path) -> Path:
    """Return the directory of `model.reward`. The built-in reward model is made where it is missing. Raises
    ModelError.
    """
    return builtin.build_reward(seed, home) if path == BUILTIN else _directory(path, "model.reward")


def load_policy(path: Path | str, *, dtype: str = "float32", device: str = "cpu") -> PreTrainedModel:
    """Return a causal language model in `dtype` on `device`. Raises ModelError."""
    return _pretrained(AutoModelForCausalLM, path, dtype, device, "a causal language model")


def load_reward(path: Path | str, *, dtype: str = "float32", device: str = "cpu") -> PreTrainedModel:
    """Return a sequence-classification model with one label in `dtype` on `device`. Raises ModelError."""
    model = _pretrained(AutoModelForSequenceClassification, path, dtype, device, "a sequence-classification model")
    if model.config.num_labels != 1:
        raise ModelError(f"{path}: a reward model has one label, this one has {model.config.num_labels}", fix=REWARD)
    return model


class ValueModel(nn.Module):
    """The policy's trunk and a scalar head: one value for the state after each token.

    The head starts near zero, with a standard deviation of 1 / (width + 1) drawn from `seed`. With the usual 1 /
    sqrt(width + 1) it would predict values as large as the rewards, which would dominate the first advantages.
    """

    def __init__(self, trunk: PreTrainedModel, seed: int) -> None:
        super().__init__()
        width = trunk.config.get_text_config().hidden_size
        self.trunk = trunk
        self.head = nn.Linear(width, 1)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(1, width, generator=generator) / (width + 1))
            self.head.bias.zero_()

    def forward(self, **inputs: Any) -> Tensor:
        """Return values [rows, length] in float32. `inputs`: as the trunk takes them."""
        hidden = self.trunk(use_cache=False, **inputs).last_hidden_state
        return self.head(hidden)[..., 0].float()


def load_value(path: Path | str, *, seed: int, dtype: str = "float32", device: str = "cpu") -> ValueModel:
    """Return a value model on the trunk of the policy at `path`, its head drawn from `seed`. Raises ModelError."""
    trunk = _pretrained(AutoModel, path, dtype, device, "a language model")
    model = ValueModel(trunk, seed).to(device=device, dtype=getattr(torch, dtype)).eval()
    multiply_in_float32(model, getattr(torch, dtype))
    return model


def load_tokenizer(path: Path | str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model directory. Raises ModelError."""
    try:
        with quiet():
            return AutoTokenizer.from_pretrained(_directory(str(path), "model"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: no tokenizer can be read from it: {_first_line(error)}", fix=MODEL) from error


def _directory(path: str, key: str) -> Path:
    directory = Path(path).expanduser()
    if directory.is_dir():
        if not (directory / "config.json").is_file():
            raise ModelError(
                f"{key} = {path!r}: this directory holds no config.json, so it is no Hugging Face model",
                fix=_option(key),
            )
        return directory
    if directory.exists():
        raise ModelError(f"{key} = {path!r}: this is a file; a Hugging Face model is a directory", fix=_option(key))
    if path.startswith("builtin:"):
        raise ModelError(f"{key} = {path!r}: {no_such_model(key)}", fix=_option(key))
    cached = _downloaded(path)
    if cached is None:
        hint = f", nor a downloaded model (`hf download {path}` fetches it)" if _is_hub_name(path) else ""
        raise ModelError(
            f"{key} = {path!r}: no such directory{hint}",
            fix=f"hf download {path}" if _is_hub_name(path) else _option(key),
        )
    return cached


def _is_hub_name(path: str) -> bool:
    return path.count("/") == 1 and not path.startswith((".", "/", "~"))


def _downloaded(path: str) -> Path | None:
    """Return a hub model that is in the local cache. Never uses the network: a mistyped path must fail at once."""
    if not _is_hub_name(path):
        return None
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(huggingface_hub.snapshot_download(path, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def _pretrained(kind: Any, path: Path | str, dtype: str, device: str, what: str) -> PreTrainedModel:
    directory = _directory(str(path), "model")
    try:
        with _LOADING, quiet():
            model, info = kind.from_pretrained(
                directory, dtype=getattr(torch, dtype), output_loading_info=True, **attention_of(directory)
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"{path}: cannot be loaded as {what}: {_first_line(error)}", fix=MODEL) from error
    missing = sorted(info["missing_keys"])
    if missing:  # Transformers would initialise them at random and only warn
        raise ModelError(f"{path}: is not {what}: its files hold no {', '.join(missing[:3])}", fix=MODEL)
    multiply_in_float32(model, getattr(torch, dtype))
    return model.to(device).eval()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

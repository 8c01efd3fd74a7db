"""The rollout engine as the rest of the stack sees it: token ids in, token ids out, and every status reported.

An `Engine` is a live Transformers, vLLM or SGLang engine inside one process. `scenarios.session` wraps it in a Ray
actor. Text never crosses this interface. Log-probabilities are raw: log-softmax of the model's own logits at T = 1,
before penalties, top-k and temperature, whatever the sampling was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from probes.errors import AddressedError

if TYPE_CHECKING:
    from scenarios.engines.coupling import Draw
    from scenarios.engines.load import Load


class EngineError(AddressedError, RuntimeError):
    """The engine refused a call, returned a failing status, or died.

    `what`: the engine and the call. `reason`: what the engine itself says about it, where it raised. If that text
    only points elsewhere ("See root cause above"), a session replaces it with the root cause from the engine's
    output.
    """

    def __init__(self, what: str, reason: str = "") -> None:
        super().__init__(f"{what}: {reason}" if reason else what)
        self.what, self.reason = what, reason


class ParameterRefused(AddressedError, ValueError):
    """A canonical parameter cannot be expressed faithfully in this engine. The message names both and says what is
    possible.

    `fix`: an option of the command line where there is one, else a short instruction.
    """


@dataclass(frozen=True)
class Request:
    """One sample to draw. The last `offset` tokens of `prompt_ids` were generated before (guided continuation)."""

    sample: int  # global number of the sample in the run: the key of its randomness and of its alignment
    prompt_ids: tuple[int, ...]
    offset: int = 0
    max_tokens: int = 0  # tokens still to draw
    salt: str = ""  # key of the prefix cache: only what was cached under the same key is reused

    @property
    def text(self) -> str | None:
        """Return the text that is sent instead of the ids; None without one. Only a planted fault has one."""
        return None

    def drawn_by(self, draw: Draw) -> Draw:
        """Return the draw of this request: `draw`, which was asked for. A planted fault returns another one."""
        return draw


@dataclass(frozen=True)
class Completion:
    """What the engine answered for one request."""

    sample: int
    prompt_seen: tuple[int, ...]  # prompt ids that the engine says it saw
    output_ids: tuple[int, ...]  # with the stop token, when one ended the sample
    logprobs: tuple[float, ...]  # raw, T = 1, one per output id
    finish_reason: str
    cached_tokens: int = 0
    seed: int | None = None  # the seed with which the engine's own sampler drew it; None where requests have none


@dataclass(frozen=True)
class WeightMeta:
    """One tensor of a weight sync, in the order of the broadcasts. dtype is torch's name without the prefix."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    digest: str = ""  # probes.weights.digest of the tensor that the learner sent


@dataclass(frozen=True)
class SyncGroup:
    """The process group of one weight sync: rank 0 is the learner, engine workers follow."""

    address: str
    port: int
    world_size: int
    rank_offset: int  # rank of this engine's first worker
    name: str
    backend: str  # gloo on a CPU, nccl on GPUs


@dataclass(frozen=True)
class Misloaded:
    """A tensor of which a worker does not hold the part that arrived for it.

    `kept`: it still holds the earlier value. `rank`: of several tensor-parallel workers. `engine`: of several
    engines.
    """

    name: str
    kept: bool
    rank: int | None = None
    engine: int | None = None


@dataclass(frozen=True)
class SyncReport:
    """What one engine reports about one sync: its status, digests of the received tensors, and what its workers hold.

    `loaded`: how many tensors could be read back from each worker; None where the engine does not show them.
    `misloaded`: those whose values are not what arrived.
    """

    ok: bool
    message: str
    seconds: float
    received: dict[str, str] = field(default_factory=dict)  # name -> digest, where the engine can give it
    loaded: int | None = None
    misloaded: tuple[Misloaded, ...] = ()


class Part(StrEnum):
    """What an engine releases while it sleeps. The parts are taken back separately."""

    WEIGHTS = "weights"
    CACHE = "cache"


@dataclass(frozen=True)
class EngineInfo:
    """What the engine resolved and what it was asked, for the check of the mapping of engine parameters.

    Its fields are those of the event `engine_info`. They differ from the terms of docs/reference/parameters.md: what
    that page calls asked is `canonical` here, and what it calls native is `asked`.
    """

    engine: str
    version: str
    asked: dict[str, Any]  # native arguments with which the engine was started
    resolved: dict[str, Any]  # canonical name -> value that the live engine reports
    replaced: tuple[str, ...]  # parts of the engine that the harness itself replaced (sampler, shims, weight loader)
    pids: tuple[int, ...]  # this process and the engine's own children: when one dies, the engine is dead
    canonical: dict[str, Any] = field(default_factory=dict)  # canonical name -> value that the run asked for
    given: dict[str, Any] = field(default_factory=dict)  # `asked` in canonical terms; None where the engine decides
    mapping: str = "ours"  # "ours", "edited", or the file of a user's mapping
    moves: dict[str, list[str]] = field(default_factory=dict)  # canonical name -> native arguments that change with it


def check_scored(engine: str, sent: tuple[int, ...], scored: list[int]) -> None:
    """Raise EngineError when an engine scored other ids than it was given."""
    if tuple(scored) != tuple(sent):
        at = next((i for i, pair in enumerate(zip(sent, scored, strict=False)) if pair[0] != pair[1]), len(scored))
        raise EngineError(
            f"{engine} scored other ids than it was given: {len(scored)} for {len(sent)}, from position {at} on "
            f"{list(scored[at : at + 4])} for {list(sent[at : at + 4])}"
        )


class Engine(Protocol):
    @property
    def load(self) -> Load: ...  # how busy it is; for statistics and the heartbeat
    def mapped(self, sampling: Any) -> Any: ...  # `mapping.Mapped`: the native form of sampling parameters
    def generate(self, requests: list[Request], sampling: Any, *, seed: int) -> list[Completion]: ...
    def rescore(self, sequences: list[tuple[int, ...]]) -> list[list[float]]: ...
    def flush(self) -> None: ...
    def join(self, group: SyncGroup) -> None: ...
    def receive(self, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport: ...
    def sleep(self, level: int) -> None: ...  # 1: keep the weights aside; 2: release them. The cache is released
    def wake(self, part: Part) -> None: ...
    def info(self) -> EngineInfo: ...
    def stats(self) -> dict[str, float]: ...  # since the last call; unknown figures are left out
    def close(self) -> None: ...


class Bare(Engine, Protocol):
    """An engine without planted faults around it, in which canonical parameters become native ones."""

    def remap(self, mapping: Any) -> None: ...  # use another `mapping.ParameterMap` for sampling from now on

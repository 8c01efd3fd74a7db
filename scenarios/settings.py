"""The settings of one recorded run (a scenario): frozen plain data, standard library only.

`harness.config` reads them from TOML and validates them. Every process of a run receives the same resolved object,
and `run.json` contains it. Leaves are plain JSON values, so `dataclasses.asdict` is the wire format.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from scenarios.engines.parameter import Axis, sampling

Mode = Literal["coupled", "native", "greedy"]
MOST_PARTS = 16  # of a draw; each look at smaller ones may spend next to no error
BUILTIN = "builtin:tiny"  # the model and the prompts, both made from the seed


@dataclass(frozen=True)
class Model:
    """The policy. `path`: a Hugging Face directory, or one of `scenarios.tiny.BUILTIN_POLICIES`, made from the seed."""

    path: str = BUILTIN
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    reward: str = BUILTIN  # a Hugging Face sequence-classification directory, or the built-in reward model
    held: Literal["", "bfloat16", "float16"] = ""  # lifted stage: weights have this type, computation uses `dtype`


@dataclass(frozen=True)
class Prompts:
    """Where prompts come from: `builtin:tiny`, or a JSONL or Parquet file with a text or chat-messages column."""

    path: str = BUILTIN
    column: str = "prompt"
    chat: bool = False  # the column holds chat messages; the tokenizer's chat template is applied
    max_tokens: int = 64  # longer prompts are refused, never silently cut


@dataclass(frozen=True)
class Rollout:
    """How many samples one step draws, and in which mode."""

    prompts_per_step: int = 8
    samples_per_prompt: int = 4
    mode: Mode = "coupled"


@dataclass(frozen=True, kw_only=True)
class CoupledSampling:
    """The canonical sampling parameters that a coupled draw applies itself, in any engine."""

    temperature: float = sampling(
        1.0,
        "temperature",
        "1e-7: one samples, the other is greedy",
        low=0,
        variant=lambda value: value / 2 if value else 0.5,
        draws=True,
        coupled=True,
        axis=Axis((0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.5), 0.05, 0.01, 100.0, turn=1),
    )
    top_k: int = sampling(
        -1,
        "top-k",
        "joint against sequential: another support",
        off=-1,
        variant=lambda value: 7 if value != 7 else 8,
        draws=True,
        place=1,
        coupled=True,
        axis=Axis((-1, 5, 10, 20, 30, 40, 50, 100), 8, 1, 1 << 20, turn=3),
    )
    top_p: float = sampling(
        1.0,
        "top-p",
        "as for top-k",
        low=1e-6,
        high=1,
        off=1.0,
        variant=lambda value: value / 2,
        draws=True,
        place=2,
        coupled=True,
        axis=Axis((1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5), 0.05, 0.01, 1.0, turn=2),
    )
    min_p: float = sampling(
        0.0, "min-p", "together with top-p, another support",
        low=0, high=1, off=0.0, variant=lambda value: 0.1 if value != 0.1 else 0.2, draws=True, place=3, coupled=True,
        axis=Axis((0.0, 0.02, 0.05, 0.1, 0.2), 0.02, 0.0, 0.99, turn=4),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sampling(CoupledSampling):
    """Canonical sampling parameters: the sampling part of the table in `scenarios.engines.canonical`.

    The fields of an entry are described in `scenarios.engines.parameter.Parameter`. Each engine's folder says how the
    engine names a parameter and what it means there.
    """

    repetition_penalty: float = sampling(
        1.0,
        "repetition penalty",
        "the prompt is not penalised in SGLang",
        positive=True,
        off=1.0,
        variant=lambda value: value + 0.25,
        draws=True,
        axis=Axis((0.7, 0.85, 0.95, 1.05, 1.1, 1.2, 1.35, 1.6, 2.0), 0.05, 0.1, 10.0, turn=5),
    )
    max_tokens: int = sampling(32, "most tokens", "other lengths when left out", low=1)
    min_tokens: int = sampling(0, "fewest tokens", "easily dropped: it has another name", low=0)
    stop_token_ids: tuple[int, ...] = sampling(
        (),
        "tokens that stop",
        "the engines read the model's own ends from different files: compare what they resolved",
        variant=lambda value: (*value, 1 + max(value, default=0)),
    )
    ignore_eos: bool = sampling(False, "ignore the end", "stops that were asked for are gone")  # fmt: skip


@dataclass(frozen=True)
class Engine:
    """Canonical engine parameters. `scenarios.engines.canonical_request` refuses what an engine cannot express;
    `scenarios.engines.mapping` makes its arguments of the rest.
    """

    max_model_len: int = 128
    seed: int = 0
    prefix_caching: bool = True
    enforce_eager: bool = True
    max_num_seqs: int = 64
    chunked_prefill: bool = True
    memory_fraction: float = 0.3  # share of the accelerator, so that two engines and a learner fit; unused on a CPU
    kv_cache_tokens: int = 16384  # CPU: size of the KV pool in tokens
    tensor_parallel: int = 1
    engines: int = 1
    router: Literal["", "round_robin", "random", "cache_aware"] = ""  # policy of a router before `engines`; empty: none
    sleep_level: int = (
        0  # while the learner trains: 0 awake; 1 weights are kept aside; 2 weights and cache are given up
    )


@dataclass(frozen=True)
class Placement:
    """The nodes of a Ray cluster on which the processes of a run are placed.

    A value is a label, KEY=VALUE of `ray start --labels`, or a resource, one of `ray start --resources` or Ray's own
    `node:ADDRESS`. Empty: any node.
    """

    engine: str = ""
    learner: str = ""  # the trainer and its roles

    def of(self, role: str) -> str:
        """Return the placement of a role, by its role in the recording."""
        return self.engine if role == "rollout" else self.learner

    @staticmethod
    def label(place: str) -> dict[str, str]:
        """Return the requested label; {} where the place is a resource."""
        key, sign, value = place.partition("=")
        return {key: value} if sign else {}


@dataclass(frozen=True)
class PPO:
    """The learner. Batches are counted in samples; world sizes in processes of the data-parallel group."""

    world_size: int = 1
    epochs: int = 1
    train_batch_size: int = 16
    micro_batch_size: int = 8
    packing: bool = False
    actor_lr: float = 1e-3
    critic_lr: float = 1e-3
    max_grad_norm: float = 1.0
    kl_coef: float = 0.02
    gamma: float = 1.0
    gae_lambda: float = 0.95
    clip: float = 0.2
    value_clip: float = 0.2
    entropy_coef: float = 0.0
    value_coef: float = 0.5
    normalize_advantages: bool = True
    checkpoint_every: int = 0  # steps; 0: only the last


def later_draw(samples: int, further: int) -> int:
    """Return the samples of a later draw of a native stage, at most those of the first."""
    return min(samples, max(further, -(-samples // MOST_PARTS)))


@dataclass(frozen=True)
class Native:
    """The short native stage after a coupled run: each engine's own sampler with the baseline's recorded weights."""

    samples: int = 1024  # per side in the first draw
    further: int = 256  # per side in each later draw; draws stop when every quantity is equal or different
    draws: int = 4  # the most samples, in multiples of the first draw
    alpha: float = 0.001  # of all tests at all looks together: how often sound samplers are called different
    margin: float = 0.2  # difference of two means, in standard deviations within prompts, that still counts as equal

    @property
    def sizes(self) -> tuple[int, ...]:
        """The samples per side of each draw, if nothing ends the drawing before."""
        most, later = self.samples * self.draws, later_draw(self.samples, self.further)
        starts = range(self.samples, most, later) if later else ()
        return self.samples, *(min(later, most - start) for start in starts)


@dataclass(frozen=True)
class Lifted:
    """The short lifted stage after a half-precision run: the same weights, computed with in float32."""

    samples: int = 64  # most samples per weight version; 0: no stage
    max_tokens: int = 64  # most tokens of a sample


@dataclass(frozen=True)
class Scenario:
    name: str = "ppo-tiny"
    steps: int = 8
    seed: int = 0
    train: bool = True  # False: rollout-only at fixed weights
    guided: bool = True  # False (--free): the candidate goes on from its own tokens
    model: Model = field(default_factory=Model)
    prompts: Prompts = field(default_factory=Prompts)
    rollout: Rollout = field(default_factory=Rollout)
    sampling: Sampling = field(default_factory=Sampling)
    engine: Engine = field(default_factory=Engine)
    placement: Placement = field(default_factory=Placement)
    ppo: PPO = field(default_factory=PPO)
    native: Native = field(default_factory=Native)
    lifted: Lifted = field(default_factory=Lifted)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Scenario:
        """Rebuild from `to_json` (or from JSON, where tuples became lists). Unknown keys raise TypeError."""
        kinds = {
            "model": Model,
            "prompts": Prompts,
            "rollout": Rollout,
            "sampling": Sampling,
            "engine": Engine,
            "placement": Placement,
            "ppo": PPO,
            "native": Native,
            "lifted": Lifted,
        }
        values = {key: kinds[key](**value) if key in kinds else value for key, value in data.items()}
        scenario = Scenario(**values)
        stops = tuple(scenario.sampling.stop_token_ids)
        return dataclasses.replace(scenario, sampling=dataclasses.replace(scenario.sampling, stop_token_ids=stops))

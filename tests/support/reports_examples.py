"""Verdicts as `harness parity` makes them, for the tests of the renderers. Figures are invented, of the right size."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from reports.model import SUSPICIONS, Cause, CauseKey, Check, Finding, Parity, PhaseMemory, Place, RunSummary, Verdict

STEPS = 8
MIB = 2**20
HOSTILE = (
    "<script>alert(1)</script> \"quoted\" 'single' & `tick` | pipe [link](javascript:alert(1)) ]]> --> "
    "\x1b[31m\x00\ud800 \u202e\u2028 $x^2$ onload=alert(1) {{ 7 * 7 }}"
)


def wave(low: float, high: float, phase: float = 0.0, steps: int = STEPS) -> list[float]:
    """A smooth, bounded, reproducible curve."""
    return [low + (high - low) * (0.5 - 0.5 * math.cos(0.45 * i + phase)) for i in range(steps)]


def run(side: str, backend: str, speed: float = 1.0, shift: float = 0.0, steps: int = STEPS) -> RunSummary:
    real = [520 + 14.0 * i + shift for i in range(steps)]
    return RunSummary(
        side=side,
        backend=backend,
        path=f"runs/2031-03-05-ppo-tiny/{side}",
        rows={
            "scenario": "ppo-tiny",
            "model": "builtin:tiny",
            "mode": "coupled, guided",
            "engine version": "0.32.0",
            "steps": steps,
            "seed": 0,
            "dtype": "float32",
            "attention backend": "TORCH_SDPA",
            "prefix caching": True,
            "KV pool, tokens": 16384,
            "reward, last step": 0.6125 + shift,
            "KL, last step": 0.01874,
            "samples": 256,
            "tokens": 4711,
            "ended by themselves": 0.43,
            "cache hit rate": 0.338,
        },
        series={
            "reward": [value + shift for value in wave(0.11, 0.61, steps=steps)],
            "kl": wave(0.0, 0.019, 0.2, steps),
            "length_mean": wave(15, 21, steps=steps),
            "length_max": [32.0] * steps,
            "padded_tokens": [32.0 * 32] * steps,
            "real_tokens": real,
            "seconds": [speed * 2.1] * steps,
            "rollout_seconds": [speed * 0.9] * steps,
            "experience_seconds": wave(0.3, 0.4, steps=steps),
            "train_seconds": wave(0.5, 0.6, steps=steps),
            "sync_seconds": [0.06 * speed] * steps,
            "policy_loss": wave(-0.02, 0.01, steps=steps),
            "value_loss": wave(0.4, 0.1, steps=steps),
        },
        measured={
            "seconds per step": 2.1 * speed,
            "rollout tokens per second": 311.4 / speed,
            "start of the engine, s": 27.4 * speed,
        },
        memory=[
            PhaseMemory("rollout", "generate", 900 * MIB, 4.5 * MIB, 2e9, 3e9, 0.0, 25 * MIB, 0.0489),
            PhaseMemory("rollout", "sleep", 900 * MIB, 0.0, 0.0, 1e9, -2048 * MIB, 25 * MIB),
            PhaseMemory("actor", "actor_train", 1200 * MIB, 26 * MIB),
        ],
    )


def sglang(run_: RunSummary) -> RunSummary:
    return dataclasses.replace(
        run_,
        rows={**run_.rows, "engine version": "0.5.23", "attention backend": "torch_native", "cache hit rate": 0.3361},
    )


EVIDENCE = {
    1: "prompt ids went in as ids; 256 of 256 samples equal on both sides",
    2: "first and last 8 ids equal in 256 of 256 samples; specials equal",
    3: "shapes of 8 experience batches equal; padding 1.9x, longest sample 32 on both sides",
    4: "vllm against vllm: 0 flips, max |Δ| 0; 4 variants",
    5: "gloo in both runs, 3 groups, equal members",
    6: "14 parameters mapped, 0 differ from what was asked",
    7: "native stage: 5 tests over 256 samples, smallest corrected p 0.31",
    8: "|Δ| on cached tokens 1.1e-6, on others 9.8e-7",
    9: "packages differ by design; 2 findings, none with an effect",
    10: "prompt_seen equals prompt in 256 of 256 samples on both sides",
    11: "sizes equal in every step; rollout of the candidate is 1.6 times as slow",
}


def checks(**confirmed: str) -> list[Check]:
    states = [Check(name, "ruled out", EVIDENCE[number], number) for number, name in SUSPICIONS.items()]
    others = [
        Check("weight-sync", "ruled out", "51 of 51 tensors equal after each of 9 syncs", 0),
        Check("learner", "ruled out", "actor and critic digests equal after 8 of 8 updates", 0),
        Check(
            "engine-against-learner",
            "ruled out",
            "the control trips: weights one step old move 1,284 times the floor",
            0,
        ),
        Check("native", "ruled out", "lengths, finish reasons, rewards, surprisal: no test below 0.01 (Holm)", 0),
    ]
    return [
        dataclasses.replace(check, state="confirmed", evidence=confirmed[check.name.replace("-", "_")])
        if check.name.replace("-", "_") in confirmed
        else check
        for check in states + others
    ]


def metrics(scale: float = 1.0) -> dict[str, Any]:
    delta = {
        "mean_delta_logprob": 2.4e-7 * scale,
        "p50": 1.2e-7 * scale,
        "p95": 7.2e-7 * scale,
        "p99": 9.5e-7 * scale,
        "max_delta_logprob": 1.31e-6 * scale,
    }
    return {
        "candidate against baseline": {
            **delta,
            "k1": 3.1e-9 * scale,
            "k3": 4.4e-13 * scale,
            "token_mult_prob_error": 1 + 2.4e-7 * scale,
            "rollout_probs_diff_mean": 8.1e-8 * scale,
            "rollout_actor_probs_pearson_corr": 0.9999999,
            "ess": 1.0 - 1e-7 * scale,
            "importance_weight_mean": 1.0000002,
            "chi2": 2.2e-12 * scale,
            "log_perplexity_difference": -4.0e-8 * scale,
        },
        "buckets": {
            "cached": {label: {"tokens": 2355, "mean": 2.4e-7 * scale, "max": 1.1e-6} for label in ("yes", "no")},
            "weight version": {str(i): {"tokens": 588, "mean": 2.4e-7, "max": 1.2e-6} for i in range(8)},
        },
        "baseline against learner": {"mean_delta_logprob": 2.9e-7, "k3": 5.2e-13},
        "candidate against learner": {"mean_delta_logprob": 2.7e-7 * scale, "k3": 5.0e-13 * scale},
    }


FLOOR = {"baseline": 0.0, "candidate": 1.19e-5, "combined": 1.19e-5, "cap": 1e-4, "tolerance": 2.38e-5, "unit": "nats"}
COVERAGE = {
    "steps": 8,
    "samples": 256,
    "tokens": 9422,
    "compared_tokens": 4711,
    "benign_flips": 0,
    "flips_beyond_margin": 0,
    "modes": ["coupled, guided", "native"],
    "replaced": [
        "vllm: sampler (coupled logits processor, runner V1)",
        "sglang: sampler (coupled custom processor)",
        "sglang: torchvision and sgl_kernel shims of the CPU environment",
    ],
}
FIGURES = {
    "seconds": {
        "total": 138.2,
        "engines start": 41.0,
        "baseline": 22.9,
        "candidate": 30.7,
        "floor": 9.1,
        "native": 11.8,
        "judge": 1.4,
    },
    "probes_share_of_step": 0.0038,
    "machine": "2 cores, 24 GiB, no accelerator",
}
PATHS = {
    "runs": "runs/2031-03-05-ppo-tiny",
    "verdict": "runs/2031-03-05-ppo-tiny/verdict.json",
    "report": "runs/2031-03-05-ppo-tiny/report.html",
}
REPRODUCE = "harness parity vllm sglang --scenario ppo-tiny --seed 0"
ENVIRONMENT = Finding(
    "environment",
    "torch is 2.13.0+cpu on both sides; transformers 5.19.0 against 5.17.1",
    "none measured",
    where="both",
)
SHIMS = Finding(
    "cpu-shims",
    "the SGLang environment runs with the torchvision and sgl_kernel shims",
    "none measured",
    where="candidate",
)


def parity(**changes: Any) -> Parity:
    body = Parity(
        first_divergence=None,
        floor=FLOOR,
        checks=checks(),
        runs=[run("baseline", "vllm"), sglang(run("candidate", "sglang", speed=1.6))],
        metrics=metrics(),
        series={
            "max_delta_logprob": [1.1e-6, 0.0, 1.31e-6, 9.5e-7, 1.2e-6, 1.0e-6, 1.1e-6, 1.3e-6],
            "mean_delta_logprob": wave(2.1e-7, 2.6e-7),
            "flips": [0.0] * 8,
            "flips_beyond_margin": [0.0] * 8,
        },
    )
    return dataclasses.replace(body, **changes)


def equivalent() -> Verdict:
    return Verdict(
        "parity",
        "EQUIVALENT",
        0,
        "every check within the floor over 8 steps, 256 samples and 4,711 compared tokens",
        findings=[ENVIRONMENT, SHIMS],
        coverage=COVERAGE,
        figures=FIGURES,
        parity=parity(),
        reproduce=REPRODUCE,
        paths=PATHS,
    )


def stale_tensor() -> Verdict:
    """One tensor was left out of the third sync; the eager flag was inverted besides, without effect."""
    tensor = "model.layers.2.mlp.down_proj.weight"
    place = Place(
        3,
        "rollout",
        0,
        17,
        5,
        "logprob",
        -1.2345671,
        -1.8345672,
        0.4213,
        context="… The cat sat on the <|sep|> mat. ⟶ the model wrote « and slept »; 31 of 32 samples differ",
    )
    body = parity(
        first_divergence=place,
        metrics=metrics(4e5),
        checks=checks(
            weight_sync=f"{tensor}: the digest received at sync 3 is that of sync 2",
            experience_matrix_shapes="from step 4 on lengths differ: longest 32 against 29",
            learner="actor digests differ from step 3 on",
        ),
        runs=[run("baseline", "vllm"), sglang(run("candidate", "sglang@/opt/conda/envs/sgl-0.5.23", 1.6, shift=-0.07))],
        series={
            "max_delta_logprob": [1.1e-6, 1.2e-6, 1.31e-6, 0.6, 0.72, 0.93, 1.4, math.inf],
            "mean_delta_logprob": [2.4e-7, 2.5e-7, 2.6e-7, 0.021, 0.034, 0.05, 0.071, math.nan],
            "flips": [0.0, 1, 0, 212, 240, 251, 230, 244],
            "flips_beyond_margin": [0.0, 0, 0, 96, 120, 131, 140, 139],
        },
    )
    return Verdict(
        "parity",
        "DIVERGENT",
        1,
        f"from step 3 on the candidate generates with a stale {tensor}",
        findings=[
            ENVIRONMENT,
            Finding(
                "enforce_eager",
                "asked true, resolved false: the candidate inverts the flag",
                "none measured: a CPU compiles nothing",
                "warning",
                "candidate",
                {"asked": True, "resolved": False},
                about="setting",
            ),
        ],
        causes=[
            Cause(
                f"STALE_WEIGHTS({tensor})",
                "mapping",
                "the tensor was not part of the third sync, and the engine kept its old value",
                "pushing it again brings max |Δ| from 0.6 to 1.2e-6 nats; a restart does the same",
                {"tensor": tensor, "sync": 3, "before": 0.6, "after": 1.2e-6},
                key=CauseKey("STALE_WEIGHTS", (tensor,)),
                fix="send the named tensors in every weight sync",
            )
        ],
        coverage={**COVERAGE, "benign_flips": 1, "flips_beyond_margin": 626, "compared_tokens": 4500},
        figures=FIGURES,
        parity=body,
        reproduce=REPRODUCE + " --fault candidate:skip-tensor=model.layers.2.mlp.down_proj.weight@3",
        paths={
            **PATHS,
            "deep": "/mnt/shared/experiments/rlhf/2031/03/05/a-rather-long-name-of-an-experiment-that-nobody-shortened/"
            "attempt-0007/report.html",
        },
    )


def torn() -> Verdict:
    body = Parity(
        None,
        {},
        [Check(SUSPICIONS[1], "not tested", "the candidate's recording ends in step 4", 1)],
        [run("baseline", "vllm"), run("candidate", "sglang", steps=4)],
    )
    return Verdict(
        "parity",
        "INCONCLUSIVE",
        3,
        "the candidate's recording is torn: tokens/rollout-0-7112.bin ends within a frame of step 4",
        missing=[
            "steps 4 to 7 of the candidate",
            "tokens/rollout-0-7112.bin: 18,204 bytes after the last whole frame",
            "the native stage did not run",
        ],
        coverage={"steps": 4, "samples": 128, "tokens": 2210, "compared_tokens": 2210},
        parity=body,
        reproduce=REPRODUCE,
        paths={"runs": PATHS["runs"]},
    )


def confounded() -> Verdict:
    candidate = run("candidate", "sglang")
    candidate = dataclasses.replace(candidate, rows={**candidate.rows, "train batch, samples": 32})
    baseline = run("baseline", "vllm")
    baseline = dataclasses.replace(baseline, rows={**baseline.rows, "train batch, samples": 64})
    return Verdict(
        "parity",
        "CONFOUNDED",
        3,
        "the train batch is 64 samples in the baseline and 32 in the candidate",
        confounders=[
            Finding(
                "ppo.train_batch_size",
                "64 in the baseline, 32 in the candidate",
                "two updates a step instead of one",
                "warning",
                "both",
            )
        ],
        coverage=COVERAGE,
        parity=parity(runs=[baseline, candidate]),
        reproduce=REPRODUCE,
        paths=PATHS,
    )


def nothing() -> Verdict:
    """A verdict with nothing in it."""
    return Verdict("parity", "", 2, "")


def hollow() -> Verdict:
    """Every field there, with nothing of use in any of them."""
    nan = math.nan
    return Verdict(
        "parity",
        "ERROR",
        2,
        "",
        findings=[Finding("", "")],
        causes=[Cause("", "", "")],
        confounders=[Finding("", "", "", "warning")],
        missing=[""],
        coverage={"steps": None, "replaced": [], "modes": None, "": {}},
        figures={"seconds": nan},
        parity=Parity(
            Place(-1, "", -1, -1, -1, "", None, nan, nan),
            {"baseline": nan, "cap": None, "unit": None},
            [Check("", "not tested", "")],
            [
                RunSummary("", "", "", {"": None, "nan": nan}, {"reward": [], "kl": [nan, nan]}),
                RunSummary("", "", "", {}, {"reward": [nan], "": [math.inf]}),
            ],
            {"kl": nan, "k3": None, "empty": {}},
            {"max_delta_logprob": [0.0, 0.0], "flips": []},
        ),
        paths={"": ""},
    )


def hostile() -> Verdict:
    """Text that attacks the renderer, in every field that holds text."""
    text = HOSTILE
    return Verdict(
        "parity",
        text,
        1,
        text,
        findings=[Finding(text, text, text, "info", text), Finding(text, text, text, "warning", text)],
        causes=[Cause(text, text, text, text, {text: text})],
        confounders=[Finding(text, text)],
        missing=[text],
        coverage={text: [text]},
        figures={text: {text: text}},
        reproduce=text,
        paths={text: text, "report": "javascript:alert(1)"},
        parity=Parity(
            Place(0, text, 0, 0, 0, text, text, text + "!", 0.5, text),
            {"unit": text, text: 1.0},
            [Check(text, "confirmed", text, 1), Check(text, "ruled out", text)],
            [
                RunSummary(
                    text, text, text, {text: text}, {text: [1.0, 2.0], f"{text}_seconds": [1.0, 2.0]}, {text: 1.0}
                ),
                RunSummary(
                    "candidate",
                    text,
                    text,
                    {text: "other"},
                    {text: [2.0, 1.0], f"{text}_seconds": [1.0, 2.0]},
                    {text: 2.0},
                ),
            ],
            {text: 1.0, "group" + text: {text: text}},
            {text: [0.1, 0.2]},
        ),
    )


def triage() -> Verdict:
    return Verdict(
        "triage",
        "STUCK",
        1,
        "rank 3 never entered collective 1,204 of the actor's group",
        causes=[Cause("MISSING_RANK", "trainer", "rank 3 waits in a lock of the data loader", "stack of pid 7113")],
        figures={"processes": 12},
        missing=["the recorder dump of rank 5"],
    )


ALL = [equivalent, stale_tensor, torn, confounded, nothing, hollow, hostile, triage]

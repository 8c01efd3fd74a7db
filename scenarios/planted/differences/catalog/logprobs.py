"""Faults of reported log-probabilities (position, meaning, noise), and of what the trainer does with them."""

from __future__ import annotations

from scenarios.planted.differences.catalog.prompts import STEP_2
from scenarios.planted.differences.fault import Fault

COOL = ("sampling.temperature=0.7",)
NUCLEUS = ("sampling.top_p=0.8",)
TWO_RANKS = ("ppo.world_size=2", "ppo.micro_batch_size=4")

FAULTS = (
    Fault(
        "shifted-logprobs",
        "log-probabilities are reported one position late",
        engine={"shift": 1},
        causes=("ALIGNMENT",),
        party="candidate",
    ),
    Fault(
        "shifted-logprobs-early",
        "log-probabilities are reported one position early",
        engine={"shift": -1},
        causes=("ALIGNMENT",),
        party="candidate",
    ),
    Fault(
        "shifted-logprobs-from-step-2",
        "from step 2 on log-probabilities are reported one position late",
        engine={"shift": 1, "first_sample": STEP_2},
        causes=("ALIGNMENT",),
        party="candidate",
    ),
    Fault(
        "shifted-logprobs-baseline",
        "the baseline reports log-probabilities one position early",
        side="baseline",
        engine={"shift": -1},
        causes=("ALIGNMENT",),
        party="baseline",
    ),
    Fault(
        "trainer-mask-shifted",
        "the trainer's mask is off by one, so that it takes each log-probability for the next token's",
        trainer={"shift": 1},
        causes=("ALIGNMENT",),
        party="trainer",
    ),
    Fault(
        "trainer-reads-pads",
        "the trainer's forward pass reads the pads in front of every prompt but the longest ones",
        pair=("vllm", "sglang"),  # the embedded engine pads, too: the party is unknown there
        trainer={"pads": -0.05},
        causes=("PADDING",),
        party="trainer",
        half={"trainer": {"pads": -0.5}},  # a tenth of it moves few tokens beyond the rounding
    ),
    Fault(
        "trainer-loses-rewards",
        "the trainer makes the returns of samples that stopped without their reward",
        trainer={"unrewarded": "stop"},
        causes=("TRAINER(rewards left out of the returns)",),
        party="trainer",
    ),
    Fault(
        "trainer-cuts-prompts",
        "the trainer's actor scores and trains on the last 40 ids of each prompt, of which the engine sees all",
        trainer={"cut_prompts": 40},
        causes=("TRAINER(tokens that were scored)",),
        party="trainer",
    ),
    Fault(
        "reference-follows-policy",
        "the actor's log-probabilities serve as the reference's, so that the KL penalty is nothing",
        trainer={"reference": "follows"},
        causes=("TRAINER(reference that follows the policy)",),
        party="trainer",
    ),
    Fault(
        "present-logprobs-as-old",
        "the loss takes the present log-probabilities for the old ones, so that nothing is clipped",
        trainer={"old_logprobs": "present"},
        causes=("TRAINER(old log-probabilities of the loss)",),
        party="trainer",
    ),
    Fault(
        "trainer-exchanges-rewards",
        "the trainer joins the reward model's answers with the samples in reverse order",
        trainer={"exchanged": "reward"},
        causes=("TRAINER(answers of other samples)",),
        party="trainer",
    ),
    Fault(
        "tempered-logprobs",
        "at temperature 0.7 the engine reports tempered log-probabilities",
        scenario=COOL,
        engine={"draw": {"reported": "tempered"}},
        causes=("LOGPROB_SEMANTICS(tempered)",),
        party="candidate",
    ),
    Fault(
        "tempered-otherwise",
        "the engine draws at temperature 1 and reports log-probabilities at 0.8",
        engine={"draw": {"reported": "tempered:0.8"}},
        causes=("LOGPROB_SEMANTICS(tempered)",),
        party="candidate",
    ),
    Fault(
        "tempered-logprobs-baseline",
        "at temperature 0.7 the baseline reports tempered log-probabilities",
        side="baseline",
        pair=("sglang", "vllm"),
        scenario=COOL,
        engine={"draw": {"reported": "tempered"}},
        causes=("LOGPROB_SEMANTICS(tempered)",),
        party="baseline",
    ),
    Fault(
        "renormalised-logprobs",
        "at top-p 0.8 the engine reports log-probabilities over what top-p leaves",
        scenario=NUCLEUS,
        engine={"draw": {"reported": "filtered"}},
        causes=("LOGPROB_SEMANTICS(renormalised)",),
        party="candidate",
    ),
    Fault(
        "top-logprobs",
        "the engine reports the log-probability of the most probable token, whichever it drew",
        engine={"draw": {"reported": "top"}},
        causes=("LOGPROB_SEMANTICS(top token)",),
        party="candidate",
    ),
    Fault(
        "trainer-scaled",
        "at temperature 0.7 the trainer divides log-probabilities by it",
        scenario=COOL,
        trainer={"scale": 1 / 0.7},
        causes=("TRAINER(log-probabilities scaled)",),
        party="trainer",
    ),
    Fault(
        "trainer-scaled-from-step-2",
        "from step 2 on the trainer divides log-probabilities by the temperature",
        scenario=COOL,
        trainer={"scale": 1 / 0.7, "first_step": 2},
        causes=("TRAINER(log-probabilities scaled)",),
        party="trainer",
    ),
    Fault(
        "unequal-shapes",
        "the trainer gives the first of two ranks three quarters of the samples",
        scenario=TWO_RANKS,
        trainer={"first_share": 0.75},
        causes=("SHAPE",),
        party="trainer",
    ),
    Fault(
        "noisy-candidate",
        "1e-2 nats of noise on every log-probability",
        engine={"noise": 1e-2},
        causes=("candidate-itself",),
        party="candidate",
        half={"summary": "0.2 nats of noise on every log-probability", "engine": {"noise": 0.2}},
    ),
    Fault(
        "slightly-noisy-candidate",
        "1e-3 nats of noise on every log-probability",
        engine={"noise": 1e-3},
        causes=("candidate-itself",),
        party="candidate",
        half=None,  # a fifth of the learner's rounding
    ),
    Fault(
        "noisy-baseline",
        "1e-2 nats of noise on every log-probability of the baseline",
        side="baseline",
        engine={"noise": 1e-2},
        causes=("baseline-itself",),
        party="baseline",
        half={"summary": "0.2 nats of noise on every log-probability of the baseline", "engine": {"noise": 0.2}},
    ),
)

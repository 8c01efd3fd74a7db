"""The words of the field and of this project, as code, output and documentation use them; no synonyms for them."""

from __future__ import annotations

# title of a section -> term -> meaning
TERMS: dict[str, dict[str, str]] = {
    "A run": {
        "run": "One RLHF job from its start to its end: rollouts, learner updates and weight syncs, step by step.",
        "step": "One turn of the loop: rollout, experience, update, weight sync.",
        "prompt": "The token ids that an engine is sent.",
        "response": "The token ids that an engine draws for a prompt.",
        "sample": "One prompt with one response, and the numbers that belong to it.",
        "group": "The samples of one prompt (GRPO). Not a process group.",
        "rollout": "All samples of one step, as the engine gave them.",
        "experience": "What the learner makes of a rollout before its update: log-probabilities, values, "
        "rewards, advantages.",
        "update": "One optimiser step of the learner.",
        "weight sync": "The transfer of the learner's tensors to the engine after an update. Its version is the number "
        "of updates in it.",
        "stop condition": "What ends a response: the end token, a stop string, the token limit, an abort.",
        "log-probability": "The natural logarithm of a token's probability, in nats.",
        "margin": "The distance in nats between the learner's most likely token and the next one.",
        "flip": "A position at which two runs with equal tokens so far drew different tokens.",
        "benign flip": "A flip that rounding explains: the margin there is within the tolerance, and the candidate "
        "drew the learner's second choice.",
        "prefix cache": "Keys and values that an engine keeps of earlier prompts.",
        "sleep": "The state in which an engine has given its memory to the learner.",
    },
    "Who takes part": {
        "engine": "The program that draws responses: vLLM, SGLang, or the hf reference engine.",
        "learner": "The model that is trained, and the processes that train it. Frameworks also say actor or trainer.",
        "reference": "On the bench: the hf engine, which makes one mistake at a time, so that an engine can be "
        "held against it.",
        "reference model": "In the loss: the frozen model of the KL term.",
        "framework": "The program that drives the loop: OpenRLHF, verl, TRL.",
        "role": "What a process is in the run: learner, rollout, reward and so on.",
        "rank": "A process's number in a process group.",
        "process group": "The ranks that a collective is called by.",
        "launcher": "What starts the ranks: torchrun, Slurm, Ray, a Kubernetes job.",
        "environment": "The Python installation that an engine or a framework runs in.",
    },
    "Comparing two runs": {
        "side": "One of the two runs: baseline (what worked) or candidate (what is to be judged).",
        "recording": "What a run wrote down: run.json, journals of events, frames of arrays, and an index of "
        "these files.",
        "event": "A line of a journal.",
        "frame": "A block of arrays in a token log.",
        "span": "An event that tells a named stretch of time.",
        "coupled draws": "Sampling in which both engines use the same random numbers for the same sample and position.",
        "native stage": "Samples that each engine drew with its own sampler.",
        "lifted stage": "The same comparison in float32, for runs in half precision.",
        "floor": "How far an engine is from itself, measured.",
        "tolerance": "How far two numbers may be apart: a multiple of the floor, up to a cap.",
        "divergence": "A difference beyond the tolerance, with its first place.",
        "check": "A question to the evidence that is ruled out, confirmed or not tested.",
        "cause": "The named reason of a divergence.",
        "rival": "Another cause that would look the same in a recording.",
        "intervention": "A change on a live engine, or of the reference, with a prediction of what it removes.",
        "proof": "An intervention, or a re-reading of the recorded numbers, that removed what it was to remove.",
        "confounder": "What has to be equal in both runs and is not, so that nothing can be said about the engines.",
        "verdict": "The answer of a comparison, an audit or a triage, with an exit code.",
        "reservation": "What a passing verdict leaves open ('EQUIVALENT, but ...').",
    },
    "Hangs": {
        "evidence": "What was collected of a job: stacks, /proc, sockets, Ray's state, flight recorder dumps.",
        "look": "One round of collecting. Two looks show what moved in between.",
        "stall": "A time without progress that is longer than --stall.",
        "collective": "An operation that every rank of a process group has to call.",
        "wait graph": "Processes and tasks, with an edge from each waiter to whom it waits for.",
        "waiter": "A process or task that waits for another one.",
        "culprit": "The process that the others wait for, and that does not go on.",
        "victim": "A waiter that would go on if the culprit did.",
        "suspect": "One of the processes that wait for each other in a ring, where none is to blame more than another.",
        "bystander": "A process of the job that is no culprit, no suspect, and, as far as is known, no victim.",
        "poll": "Sleeping and looking again for something that another process makes.",
        "flight recorder": "torch's record of collectives, dumped when a watchdog fires.",
        "watchdog": "What notices that a job stands still: harness watch, or torch's own.",
    },
}

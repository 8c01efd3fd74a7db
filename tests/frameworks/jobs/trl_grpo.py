"""Three steps of GRPO with TRL on a CPU, as a user's own script would have them; nothing in it knows the harness.

python trl_grpo.py MATERIAL OUT [--vllm] [--seed N] [--steps N] [--save] [--save-steps N] [--resume DIR] [--rate R]
    [--dtype bfloat16] [--temperature T]
torchrun --nproc-per-node 2 trl_grpo.py …
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def variety(completions: list[Any], **given: Any) -> list[float]:
    """How many different characters a completion has: a reward that any model can climb."""
    return [len(set(completion[0]["content"])) / 10 for completion in completions]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("material", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--save-steps", type=int, default=0)
    parser.add_argument("--resume", default=None)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--temperature", type=float, default=1.0)
    asked = parser.parse_args()
    lines = (asked.material / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    engine: dict[str, Any] = {}
    if asked.vllm:
        engine = {"vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.1, "vllm_max_model_length": 128}
    settings = GRPOConfig(
        output_dir=str(asked.out), seed=asked.seed, max_steps=asked.steps, per_device_train_batch_size=8,
        num_generations=4, gradient_accumulation_steps=2, max_completion_length=24, use_cpu=True, bf16=False,
        report_to=[], logging_steps=1, save_strategy="steps" if asked.save else "no",
        save_steps=asked.save_steps or asked.steps,
        beta=0.04, learning_rate=asked.rate, temperature=asked.temperature, use_vllm=asked.vllm,
        model_init_kwargs={"dtype": asked.dtype}, **engine,
    )  # fmt: skip
    prompts = Dataset.from_dict({"prompt": [json.loads(line)["input"] for line in lines]})
    model = str(asked.material / "model")
    trainer = GRPOTrainer(model=model, reward_funcs=variety, args=settings, train_dataset=prompts)
    trainer.train(resume_from_checkpoint=asked.resume)


if __name__ == "__main__":
    main()

"""A user's own RLOO script with TRL on a CPU."""

import json
import sys
from pathlib import Path

from datasets import Dataset
from trl import RLOOConfig, RLOOTrainer

m = Path(sys.argv[1])
rows = [json.loads(x)["input"] for x in (m / "prompts.jsonl").read_text().splitlines()]


def variety(completions, **kw):
    return [len(set(c[0]["content"])) / 10 for c in completions]


cfg = RLOOConfig(
    output_dir=sys.argv[2],
    seed=0,
    max_steps=2,
    per_device_train_batch_size=8,
    num_generations=4,
    gradient_accumulation_steps=2,
    max_completion_length=16,
    use_cpu=True,
    bf16=False,
    report_to=[],
    logging_steps=1,
    save_strategy="no",
)
RLOOTrainer(
    model=str(m / "model"), reward_funcs=variety, args=cfg, train_dataset=Dataset.from_dict({"prompt": rows})
).train()

"""A user's own GRPO script with TRL on a CPU. `--variant` picks what this user's code does.

Nothing here knows the harness.
"""

import argparse
import json
from pathlib import Path

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

parser = argparse.ArgumentParser()
parser.add_argument("material", type=Path)
parser.add_argument("out")
parser.add_argument("--variant", default="")
parser.add_argument("--vllm", action="store_true")
parser.add_argument("--model", default="")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--top-p", type=float, default=1.0)
arguments = parser.parse_args()
variant = arguments.variant
rows = [json.loads(line)["input"] for line in (arguments.material / "prompts.jsonl").read_text().splitlines()]


def variety(completions, **_):
    return [len(set(answer[0]["content"])) / 10 for answer in completions]


def constant(completions, **_):
    return [1.0 for _ in completions]


if arguments.vllm:
    import trl.generation.vllm_generation as generation

    LLM = generation.LLM
    generation.LLM = lambda **options: LLM(
        **{**options, "dtype": "float32"}
    )  # this user's model is float32 on both sides


class Trainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(self, model, *args, **options):
        scoring = not torch.is_grad_enabled() and model is self.model and self.ref_model is not None
        if variant != "ref_scored" or not scoring:
            return super()._get_per_token_logps_and_entropies(model, *args, **options)
        own = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
        reference = dict(self.ref_model.named_parameters())
        with (
            torch.no_grad()
        ):  # the reference's weights are still swapped in while the old log-probabilities are computed
            for name, tensor in model.named_parameters():
                tensor.copy_(reference[name])
            made = super()._get_per_token_logps_and_entropies(model, *args, **options)
            for name, tensor in model.named_parameters():
                tensor.copy_(own[name])
        return made

    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        if (
            variant == "groups"
        ):  # a sample of the first group was lost upstream; groups are still cut every num_generations rows
            rewards = torch.tensor(self._last_rewards, dtype=torch.float32).roll(-1)
            grouped = rewards.view(-1, self.num_generations)
            advantages = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
            out["advantages"] = advantages.flatten().roll(1).to(out["advantages"])
        if variant == "eos_masked":  # the end token counts as padding in the loss
            out["completion_mask"] = out["completion_mask"] * (out["completion_ids"] != self._tokenizer.eos_token_id)
        return out

    def _calculate_rewards(self, *args, **options):
        made = super()._calculate_rewards(*args, **options)
        self._last_rewards = made[:, 0].tolist()
        return made


def encoded(tokenizer, chat):
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)


def retokenised(prompts, trainer):
    """Draw with the trainer's vLLM, keep the text, and tokenize the text again for the loss."""
    tokenizer = trainer._tokenizer
    ids = [encoded(tokenizer, chat) for chat in prompts]
    _, drawn, numbers, _ = trainer.vllm_generation.generate(
        prompts=ids, images=None, num_generations=trainer.num_generations
    )
    again = [
        tokenizer.encode(tokenizer.decode(answer, skip_special_tokens=False), add_special_tokens=False)
        for answer in drawn
    ]
    kept = [
        ([first[0] for first in row] + [0.0] * len(new))[: len(new)] for row, new in zip(numbers, again, strict=True)
    ]
    return {"prompt_ids": ids, "completion_ids": again, "logprobs": kept}


def two_turns(prompts, trainer):
    """Two turns with an environment between them; the mask of the model's tokens is the wrong way round."""
    tokenizer = trainer._tokenizer
    environment = tokenizer.encode(" and what is it like?", add_special_tokens=False)

    def draw(prefix):
        with torch.no_grad():
            made = trainer.model.generate(
                input_ids=torch.tensor([prefix]),
                attention_mask=torch.ones(1, len(prefix), dtype=torch.long),
                max_new_tokens=8,
                do_sample=True,
                top_k=0,
                pad_token_id=tokenizer.pad_token_id,
            )
        return made[0, len(prefix) :].tolist()

    prompt_ids, completion_ids, masks = [], [], []
    for chat in prompts:
        ids = encoded(tokenizer, chat)
        first = draw(ids)
        second = draw(ids + first + environment)
        prompt_ids.append(ids)
        completion_ids.append(first + environment + second)
        masks.append([0] * len(first) + [1] * len(environment) + [0] * len(second))
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None, "env_mask": masks}


settings, options = {}, {}
if arguments.vllm:
    settings = {"vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.1, "vllm_max_model_length": 128}
if variant == "retok":
    options["rollout_func"] = retokenised
if variant == "env_mask":
    options["rollout_func"] = two_turns
if variant in ("lora", "lora_twice"):
    from peft import LoraConfig

    targets = ["q_proj", "v_proj", "down_proj"]
    options["peft_config"] = LoraConfig(r=8, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM")
config = GRPOConfig(
    output_dir=arguments.out,
    seed=0,
    max_steps=arguments.steps,
    per_device_train_batch_size=8,
    num_generations=4,
    gradient_accumulation_steps=2,
    max_completion_length=24,
    use_cpu=True,
    bf16=False,
    report_to=[],
    logging_steps=1,
    save_strategy="no",
    beta=0.04,
    learning_rate=1e-3,
    use_vllm=arguments.vllm,
    top_p=arguments.top_p,
    temperature=1.0,
    lr_scheduler_type="constant",
    **settings,
)
trainer = Trainer(
    model=arguments.model or str(arguments.material / "model"),
    reward_funcs=constant if variant == "constant" else variety,
    args=config,
    train_dataset=Dataset.from_dict({"prompt": rows}),
    **options,
)
if variant == "sleep_disk":  # the engine wakes with the checkpoint's weights, and is not synced again before it draws
    saved = {name: tensor.detach().clone() for name, tensor in trainer.model.named_parameters()}
    drawn = trainer.vllm_generation.generate

    def generate(*args, **kwargs):
        runner = trainer.vllm_generation.llm.llm_engine.model_executor.driver_worker.model_runner
        runner.model.load_weights(list(saved.items()))
        return drawn(*args, **kwargs)

    trainer.vllm_generation.generate = generate
if variant == "lora_twice":  # the base is sent with the adapter merged in, and the engine adds the adapter again
    base = {name: tensor.detach().clone() for name, tensor in trainer.model.named_parameters() if "base_layer" in name}
    base = {name.removeprefix("base_model.model.").replace(".base_layer", ""): tensor for name, tensor in base.items()}
    sent = trainer.vllm_generation._iter_named_params
    trainer.vllm_generation._iter_named_params = lambda: (
        (name, 2 * tensor - base[name] if name in base else tensor) for name, tensor in sent()
    )
trainer.train()

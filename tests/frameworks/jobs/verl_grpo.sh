#!/bin/sh
# GRPO with verl on one CPU: verl_grpo.sh PYTHON MATERIAL OUT [OVERRIDE…]; two steps, 4 prompts, groups of 4.
# `PYTHON -m verl.trainer.main_ppo …` is the user's own command; the variables are for a CPU alone.
set -eu
python=$1 material=$2 out=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out" && cd "$out"
export VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=verl_cpu VLLM_CPU_KVCACHE_SPACE=1 SGLANG_USE_CPU_ENGINE=1
export RAY_USAGE_STATS_ENABLED=0 HYDRA_FULL_ERROR=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=2
export RAY_worker_niceness=0  # Ray adds 15 otherwise, and a job beside others starves
export RAY_agent_register_timeout_ms=900000  # its agents are slow to start on a busy machine
export RAY_worker_register_timeout_seconds=900  # and its workers: a driver waits for ever for the first that is given up
exec "$python" -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  data.train_files="$material/prompts.parquet" data.val_files="$material/prompts.parquet" \
  data.train_batch_size=4 data.max_prompt_length=96 data.max_response_length=32 \
  data.dataloader_num_workers=0 data.seed=1 \
  actor_rollout_ref.model.path="$material/model" \
  actor_rollout_ref.model.use_remove_padding=False \
  actor_rollout_ref.model.enable_gradient_checkpointing=False \
  +actor_rollout_ref.model.override_config.attn_implementation=eager \
  actor_rollout_ref.actor.strategy=fsdp2 \
  actor_rollout_ref.actor.fsdp_config.use_torch_compile=False actor_rollout_ref.actor.use_torch_compile=False \
  actor_rollout_ref.actor.optim.lr=1e-4 \
  actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.dtype=float32 \
  actor_rollout_ref.rollout.n=4 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.3 \
  actor_rollout_ref.rollout.enforce_eager=True \
  actor_rollout_ref.rollout.free_cache_engine=False \
  +actor_rollout_ref.rollout.enable_sleep_mode=False \
  +actor_rollout_ref.rollout.engine_kwargs.sglang.device=cpu \
  +actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=torch_native \
  +actor_rollout_ref.rollout.engine_kwargs.sglang.sampling_backend=pytorch \
  +actor_rollout_ref.rollout.engine_kwargs.sglang.enable_memory_saver=False \
  +actor_rollout_ref.rollout.engine_kwargs.sglang.max_total_tokens=4096 \
  +actor_rollout_ref.rollout.engine_kwargs.sglang.context_length=160 \
  actor_rollout_ref.rollout.max_model_len=160 actor_rollout_ref.rollout.max_num_seqs=16 \
  actor_rollout_ref.rollout.max_num_batched_tokens=512 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \
  actor_rollout_ref.rollout.agent.num_workers=1 \
  actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=64 \
  reward.num_workers=1 \
  reward.custom_reward_function.path="$here/grammar_reward.py" \
  trainer.device=cpu trainer.nnodes=1 trainer.n_gpus_per_node=1 \
  trainer.logger='["console"]' trainer.val_before_train=False trainer.save_freq=-1 trainer.test_freq=-1 \
  trainer.total_training_steps=2 trainer.default_local_dir="$out/checkpoints" trainer.resume_mode=disable \
  transfer_queue.backend.SimpleStorage.num_data_storage_units=1 \
  ray_kwargs.ray_init.num_cpus=16 +ray_kwargs.ray_init.num_gpus=1 +ray_kwargs.ray_init.include_dashboard=False \
  "$@"

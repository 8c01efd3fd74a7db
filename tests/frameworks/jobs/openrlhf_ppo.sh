#!/bin/sh
# PPO with OpenRLHF on one CPU: openrlhf_ppo.sh PYTHON MATERIAL OUT [OPTION…]; actor, critic, reference, reward and vLLM.
# `PYTHON -m openrlhf.cli.train_ppo_ray …` is the user's own command; the variables are for a CPU alone.
set -eu
python=$1 material=$2 out=$3
shift 3
mkdir -p "$out" && cd "$out"
export FRAMEWORKS_CPU=openrlhf DS_ACCELERATOR=cpu VLLM_CPU_KVCACHE_SPACE=1 VLLM_LOGGING_LEVEL=WARNING
export RAY_USAGE_STATS_ENABLED=0 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=2
export RAY_worker_niceness=0  # Ray adds 15 otherwise, and a job beside others starves
export RAY_worker_register_timeout_seconds=900  # and so are its workers
# DeepSpeed's kernels: one folder for all environments would be compiled anew whenever another one's job has run.
export TORCH_EXTENSIONS_DIR="$(dirname "$(dirname "$python")")/torch_extensions"
export RAY_agent_register_timeout_ms=900000  # its agents are slow to start on a busy machine
exec "$python" -m openrlhf.cli.train_ppo_ray \
  --actor.model_name_or_path "$material/model" --reward.model_name_or_path "$material/reward" \
  --critic.model_name_or_path "$material/reward" \
  --data.prompt_dataset "$material/prompts.jsonl" --data.input_key input --data.apply_chat_template \
  --data.max_len 160 --rollout.max_new_tokens 32 --data.max_samples 16 \
  --rollout.batch_size 8 --rollout.n_samples_per_prompt 1 --rollout.micro_batch_size 4 \
  --train.batch_size 8 --train.micro_batch_size 4 --train.max_epochs 1 --train.num_episodes 1 \
  --actor.num_gpus_per_node 1 --critic.num_gpus_per_node 1 --ref.num_gpus_per_node 1 --reward.num_gpus_per_node 1 \
  --vllm.num_engines 1 --vllm.tensor_parallel_size 1 --vllm.enforce_eager --vllm.gpu_memory_utilization 0.3 \
  --ds.zero_stage 2 --ds.attn_implementation eager --ds.param_dtype bf16 \
  --algo.advantage.estimator gae --algo.kl.init_coef 0.01 \
  --ckpt.output_dir "$out/model" --ckpt.path "$out/checkpoints" \
  "$@"

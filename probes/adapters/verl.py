"""verl's PPO and GRPO with its v1 trainer: a Ray actor that drives, training workers, agent loops, rollout servers.

Our step is verl's `global_steps` minus one. Ids enter and leave an engine in `LLMServerClient.generate`, for vLLM and
SGLang alike. Prompts, outputs and log-probabilities are taken there, in the agent loop's process. The prompt that an
engine saw is taken from its own scheduler (`verl_engine`) and joined by the request's id. A sample's number is
`position of its prompt in the step's batch * group size + position in the group`.
"""

from __future__ import annotations

from probes.adapters import verl_driver as driver
from probes.adapters import verl_engine as engine
from probes.adapters import verl_rollout as rollout
from probes.adapters import verl_training as training
from probes.adapters.table import Adapter, Hook

TRAINER = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
WORKER = "verl.workers.engine_workers:TrainingWorker"
HYBRID = "verl.workers.engine_workers:ActorRolloutRefWorker"
LOOP = "verl.experimental.agent_loop.agent_loop:AgentLoopWorker"
LOOPS = "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ"
CLIENT = "verl.workers.rollout.llm_server:LLMServerClient"
VLLM = "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer"
SGLANG = "verl.workers.rollout.sglang_rollout.async_sglang_server:SGLangHttpServer"
VLLM_ARGUMENTS = "verl.workers.rollout.vllm_rollout.utils:build_cli_args_from_config"
# Symbols inside the engines: where SGLang is started, where the scheduler receives a request, where weights arrive.
SGLANG_ENGINE = "sglang.srt.entrypoints.engine:Engine._launch_subprocesses"
VLLM_CORE = "vllm.v1.engine.core:EngineCore"
SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"
UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater:WeightUpdater"
FLUSH = "sglang.srt.managers.scheduler_components.flush_wrapper:SchedulerFlushWrapper"
EXTENSION = "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension"

ADAPTER = Adapter(
    framework="verl",
    distribution="verl",
    versions=("0.9.1", "0.9.2"),
    roles={
        "TaskRunnerV1": "trainer",
        "WorkerDict": "actor",
        "AgentLoopWorkerTQ": "agent",
        "vLLMHttpServer": "rollout",
        "SGLangHttpServer": "rollout",
        "RewardLoopWorker": "reward",
        "agent_loop_worker_": "agent",  # prefixes of named actors: Ray shows their names instead of their classes
        "reward_loop_worker_": "reward",
        "vllm_server_": "rollout",
        "sglang_server_": "rollout",
    },
    missing={
        "cached": "verl records cached prompt tokens of vLLM only, per request and not per run",
        "floor": "a job's own engine cannot be asked to draw again",
        "margin": "verl keeps no margins: a flip cannot be judged",
        "kl": "verl keeps no KL per token; it follows from the log-probabilities",
    },
    hooks=(
        Hook(f"{TRAINER}.__init__", span="start", record=driver.configured),
        Hook(f"{TRAINER}._init_tokenizer", record=driver.tokenized),
        Hook(f"{TRAINER}._step_once", span="step", before=driver.driving),
        Hook(f"{TRAINER}._submit_batch_to_rollout", span="submit", before=driver.submitted),
        Hook(f"{TRAINER}._compute_old_log_prob", span="actor_forward"),
        Hook(f"{TRAINER}._compute_ref_log_prob", span="reference_forward", when="with a reference policy"),
        Hook(f"{TRAINER}._compute_values", span="critic_forward", when="with a critic"),
        Hook(f"{TRAINER}._compute_advantage", span="advantages"),
        Hook(
            "verl.trainer.ppo.v1.utils:compute_advantage_for_multi_trajectories",
            span="estimate",
            record=driver.advantaged,
        ),
        Hook(f"{TRAINER}._update_critic", span="critic_train", when="with a critic"),
        Hook(f"{TRAINER}._update_actor", span="actor_train"),
        Hook(
            "verl.trainer.ppo.metric_utils:get_metric_data_with_optional_routed_experts",
            span="collect",
            record=driver.collected,
        ),
        Hook(f"{TRAINER}._compute_metrics", span="metrics", record=driver.measured),
        Hook(f"{TRAINER}._save_checkpoint", span="checkpoint", when="with checkpoints"),
        Hook(f"{TRAINER}._load_checkpoint", span="resume", record=driver.resuming),
        Hook(
            "verl.checkpoint_engine.base:CheckpointEngineManager.update_weights",
            span="sync",
            before=driver.syncing,
            record=driver.synced,
            failed=driver.not_synced,
        ),
        Hook(f"{LOOPS}.generate_sequences", span="submit", before=rollout.looping),
        Hook(f"{LOOPS}._run_prompt", span="rollout", record=rollout.grouped),
        Hook(f"{LOOP}._run_agent_loop", span="sample", before=rollout.entered, record=rollout.finished),
        Hook(f"{CLIENT}.generate", span="generate", before=rollout.generating, record=rollout.generated),
        Hook(f"{CLIENT}._vllm_request_id", span="name", record=rollout.named),
        Hook(f"{HYBRID}.init_model", span="start"),
        Hook(
            f"{HYBRID}.update_weights",
            span="sync_send",
            before=training.receiving,
            record=training.sent,
        ),
        Hook(f"{WORKER}.infer_batch", span="actor_forward", before=training.inferring),
        Hook(f"{WORKER}.train_mini_batch", span="actor_train"),
        Hook(f"{WORKER}.train_batch", span="actor_minibatch", before=training.training),
        Hook(f"{VLLM}.launch_server", span="start_engine", record=rollout.vllm_started, when="with vLLM"),
        Hook(VLLM_ARGUMENTS, span="engine_arguments", before=rollout.vllm_starting, when="with vLLM"),
        Hook(f"{VLLM}.sleep", span="sleep", when="with vLLM and sleep mode"),
        Hook(f"{VLLM}.wake_up", span="wake_up", when="with vLLM and sleep mode"),
        Hook(f"{EXTENSION}.update_weights_from_ipc", span="sync_receive", before=engine.syncing, when="with vLLM"),
        Hook(f"{EXTENSION}._update_weights", span="load_weights", before=engine.arrived, when="with vLLM"),
        Hook(f"{VLLM_CORE}.add_request", span="request", record=engine.vllm_saw, when="with vLLM"),
        Hook(f"{SGLANG}.launch_server", span="start_engine", record=rollout.sglang_started, when="with SGLang"),
        Hook(SGLANG_ENGINE, span="start_processes", before=rollout.sglang_starting, when="with SGLang"),
        Hook(f"{SGLANG}.sleep", span="sleep", when="with SGLang and sleep mode"),
        Hook(f"{SGLANG}.wake_up", span="wake_up", when="with SGLang and sleep mode"),
        Hook(f"{SCHEDULER}._add_request_to_queue", span="request", before=engine.sglang_saw, when="with SGLang"),
        Hook(
            f"{UPDATER}.update_weights_from_tensor",
            span="load_weights",
            before=engine.loading,
            record=engine.loaded,
            when="with SGLang and weights that go through CUDA IPC",
        ),
        Hook(
            f"{UPDATER}.update_weights_from_disk",
            span="load_weights",
            before=engine.loading,
            record=engine.loaded,
            when="with SGLang and weights that go through a disk",
        ),
        Hook(f"{FLUSH}.handle", span="flush_cache", record=engine.flushed, when="with SGLang"),
        Hook("verl.utils.distributed:initialize_global_process_group_ray", span="init_process_group"),
    ),
)

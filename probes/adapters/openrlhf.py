"""OpenRLHF's PPO: one Ray actor that drives, one Ray actor per rank of each model, and vLLM engines in Ray actors.

The driver sees every sample twice. As a response, in the order of completion: token ids and their ranges are taken
there. And as a row of the experience. A sample's number is `position of its prompt in the order of submission * group
size + position in the group`, so that two runs number alike however fast their engines answered.
"""

from __future__ import annotations

from probes.adapters import openrlhf_driver as driver
from probes.adapters import openrlhf_workers as workers
from probes.adapters.table import Adapter, Hook

TRAINER = "openrlhf.trainer.ppo_trainer:PPOTrainer"
SAMPLES = "openrlhf.trainer.ppo_utils.samples_generator:SamplesGenerator"
MAKER = "openrlhf.trainer.ppo_utils.experience_maker:RemoteExperienceMaker"
ENGINE = "openrlhf.trainer.ray.vllm_engine:RolloutRayActor"
ACTOR = "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer"
POLICY = "openrlhf.trainer.ray.ppo_actor:PolicyModelActor"
CRITIC = "openrlhf.trainer.ray.ppo_critic:CriticPPOTrainer"
STRATEGY = "openrlhf.utils.deepspeed.deepspeed:DeepspeedStrategy"
WORKER = "openrlhf.trainer.ray.vllm_worker_wrap:WorkerWrap"

ADAPTER = Adapter(
    framework="openrlhf",
    distribution="openrlhf",
    versions=("0.11.2", "0.11.3"),
    roles={
        "PPOTrainer": "trainer",
        "PolicyModelActor": "actor",
        "CriticModelActor": "critic",
        "ReferenceModelActor": "reference",
        "RewardModelActor": "reward",
        "RolloutRayActor": "rollout",
    },
    missing={
        "cached": "OpenRLHF does not keep which prompt tokens came from a cache",
        "reference_logprob": "OpenRLHF drops the reference's log-probabilities unless the KL is a loss",
        "floor": "a job's own engine cannot be asked to draw again",
        "margin": "OpenRLHF keeps no margins: a flip cannot be judged",
    },
    hooks=(
        Hook(f"{TRAINER}.__init__", span="start", record=driver.configured),
        Hook(f"{TRAINER}.init_checkpoint_states", span="restore", record=driver.resuming),
        Hook(f"{TRAINER}.train_step", span="train", before=driver.training, record=driver.trained),
        Hook(f"{TRAINER}.ppo_train", span="actor_train"),
        Hook(f"{TRAINER}.broadcast_to_vllm", span="sync", record=driver.synced, failed=driver.not_synced),
        Hook(
            f"{SAMPLES}.generate_eval_samples",
            span="evaluate",
            before=driver.evaluating,
            record=driver.evaluated,
            when="with an evaluation",
        ),
        Hook(f"{SAMPLES}.generate_samples", span="rollout", before=driver.drawing),
        Hook(f"{SAMPLES}._generate_vllm", span="generate", record=driver.generated),
        Hook(f"{SAMPLES}._dispatch_prompts_to_vllm", span="submit", record=driver.submitted),
        Hook(f"{SAMPLES}._process_response_into_experience", span="sample", record=driver.answered),
        Hook(
            f"{MAKER}.make_experience_batch", span="experience", before=driver.experiencing, record=driver.experienced
        ),
        Hook(f"{MAKER}.make_experience", span="score"),
        Hook(f"{MAKER}.compute_advantages_and_returns", span="advantages"),
        Hook(f"{ENGINE}.__init__", span="start_engine", record=workers.engine_started),
        Hook(f"{ENGINE}.generate", span="generate", before=workers.generating),
        Hook(f"{ENGINE}.sleep", span="sleep", when="with sleep mode"),
        Hook(f"{ENGINE}.wake_up", span="wake_up", when="with sleep mode"),
        Hook(f"{POLICY}.init_model_from_pretrained", span="start", record=workers.started),
        Hook(f"{POLICY}.forward", span="actor_forward", before=workers.forwarding),
        Hook(
            "openrlhf.trainer.ray.ppo_critic:CriticModelActor.forward",
            span="critic_forward",
            before=workers.forwarding,
            when="with a critic",
        ),
        Hook(
            "openrlhf.trainer.ray.launcher:ReferenceModelActor.forward",
            span="reference_forward",
            before=workers.forwarding,
            when="with a reference model",
        ),
        Hook(
            "openrlhf.trainer.ray.launcher:RewardModelActor.forward",
            span="reward_forward",
            before=workers.forwarding,
            when="with a reward model",
        ),
        Hook(f"{ACTOR}.training_step", span="actor_minibatch", before=workers.training),
        Hook(f"{CRITIC}.training_step", span="critic_minibatch", before=workers.training, when="with a critic"),
        Hook(f"{CRITIC}.ppo_train", span="critic_train", record=workers.stepped, when="with a critic"),
        Hook(f"{ACTOR}.broadcast_to_vllm", span="sync_send", record=workers.sent),
        Hook(f"{ACTOR}._init_vllm_sync_group", span="init_process_group", when="unless weights go through CUDA IPC"),
        Hook(
            f"{WORKER}.update_weight",
            span="sync_receive",
            before=workers.receiving,
            record=workers.received,
            when="unless weights go through CUDA IPC",
        ),
        Hook(
            f"{WORKER}.update_weight_cuda_ipc",
            span="sync_receive",
            before=workers.receiving,
            record=workers.received,
            when="with weights that go through CUDA IPC",
        ),
        Hook(f"{STRATEGY}.setup_distributed", span="init_process_group"),
        Hook(f"{STRATEGY}.backward", span="backward"),
        Hook(f"{STRATEGY}.optimizer_step", span="optimizer"),
        Hook(f"{STRATEGY}.save_ckpt", span="checkpoint", when="with checkpoints"),
        Hook(f"{STRATEGY}.load_ckpt", span="resume", when="with --ckpt.load_enable"),
        Hook(
            "openrlhf.utils.distributed_util:stateless_init_process_group",
            span="rendezvous",
            when="unless weights go through CUDA IPC",
        ),
    ),
)

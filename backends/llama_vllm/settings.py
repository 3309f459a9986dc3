"""What a model's entry says about its engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm.config import ModelConfig, ParallelConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform

from backends.checkpoints import local_folder
from backends.llama_vllm.activations import CONFIG_KEY, ActivationLimits, capturable, refusal
from backends.llama_vllm.executor import InProcessExecutor, PatientExecutor
from backends.llama_vllm.sampling import Limits

#: A folder with an empty generation_config.json: what a checkpoint's own says, its list of end-of-text ids included,
#: decides nothing.
NO_DEFAULTS = Path(__file__).parent / "no_defaults"


@dataclass(frozen=True)
class EngineSettings:
    """The `engine` parameter of a model's entry."""

    checkpoint: str
    max_logprobs: int
    full_vocab_max_prompt_tokens: int
    full_vocab_max_completion_tokens: int
    revision: str | None = None
    activation_layers: str | list[int | str] = "all"
    activation_max_mb: int = 256
    activation_pool_mb: int = 1024
    engine_args: dict[str, Any] = field(default_factory=dict)

    def vllm_args(self) -> AsyncEngineArgs:
        """The engine's arguments."""
        folder = local_folder(self.checkpoint)
        arguments: dict[str, Any] = {
            "model": str(folder or self.checkpoint),
            "generation_config": str(NO_DEFAULTS),
            "max_logprobs": -1,
            "disable_log_stats": False,
            "additional_config": {CONFIG_KEY: self.activation_layers},
            **self.engine_args,
        }
        if folder is None and self.revision:
            arguments["revision"] = arguments["tokenizer_revision"] = self.revision
        if current_platform.is_cpu():
            arguments.setdefault("worker_cls", "backends.llama_vllm.worker.LlamaCPUWorker")
            workers = arguments.get("tensor_parallel_size", 1) * arguments.get("pipeline_parallel_size", 1)
            executor = InProcessExecutor if workers == 1 else PatientExecutor
            arguments.setdefault("distributed_executor_backend", executor)
        else:
            arguments.setdefault("worker_cls", "backends.llama_vllm.gpu_worker.LlamaGPUWorker")
        return AsyncEngineArgs(**arguments)

    def limits(self, model: ModelConfig) -> Limits:
        """What may be asked of this model."""
        return Limits(
            vocab_size=model.get_vocab_size(),
            max_model_len=model.max_model_len,
            max_logprobs=self.max_logprobs,
            full_vocab_max_prompt_tokens=self.full_vocab_max_prompt_tokens,
            full_vocab_max_completion_tokens=self.full_vocab_max_completion_tokens,
        )

    def activation_limits(self, model: ModelConfig, parallel: ParallelConfig, pool_bytes: int) -> ActivationLimits:
        """What may be captured on this model. Raises ValueError if activation_layers names what it lacks."""
        n_layers = model.hf_text_config.num_hidden_layers
        return ActivationLimits(
            n_layers=n_layers,
            hidden_size=model.get_hidden_size(),
            dtype=str(model.dtype).removeprefix("torch."),
            layers=capturable(self.activation_layers, n_layers),
            max_bytes=self.activation_max_mb * 2**20,
            pool_bytes=pool_bytes,
            refusal=refusal(parallel),
        )

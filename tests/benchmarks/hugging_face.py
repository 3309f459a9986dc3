"""Hugging Face Transformers on the same prompts: what a researcher without a server would run."""
from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from model_repository.catalog import Model
from tests.benchmarks.activations import AT_ONCE, Work, prompts


def rates(model: Model, checkpoint: Path, work: Work, rounds: int) -> dict[bool, list[float]]:
    """Completion tokens a second of one batch of AT_ONCE prompts: without hidden states, and with all of them."""
    network = LlamaForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, model.dtype)).eval()
    found: dict[bool, list[float]] = {False: [], True: []}
    for number in range(-1, rounds):  # the first round is not measured
        for hidden_states in (False, True):
            batch = torch.tensor(list(islice(prompts(model, work, f"{number} {hidden_states}"), AT_ONCE)))
            started = time.perf_counter()
            with torch.inference_mode():
                network.generate(
                    batch, attention_mask=torch.ones_like(batch), do_sample=False, max_new_tokens=work.max_tokens,
                    min_new_tokens=work.max_tokens, output_hidden_states=hidden_states, return_dict_in_generate=True,
                    pad_token_id=0)
            elapsed = time.perf_counter() - started
            if number >= 0:
                found[hidden_states].append(AT_ONCE * work.max_tokens / elapsed)
    return found

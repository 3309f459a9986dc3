"""lm-eval's `local-completions` runs against the API, and its log likelihoods are Hugging Face Transformers'."""
from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lm_eval
import pytest
import torch
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.stack import Stack

TASKS = Path(__file__).parent / "lm_eval_tasks"


@pytest.fixture(scope="module")
def results(stack: Stack, checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("lm_eval")
    for task in TASKS.glob("*.yaml"):
        (folder / task.name).write_text(task.read_text().replace("DATA_FOLDER", str(TASKS)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", stack.key)
        patch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
        found = lm_eval.simple_evaluate(
            model="local-completions",
            model_args={"model": "smollm2-135m", "base_url": f"{stack.url}/v1/completions", "num_concurrent": 2,
                        "tokenizer": str(checkpoints / "smollm2-135m"), "max_retries": 1},
            tasks=["capitals_loglikelihood", "capitals_generate"], log_samples=True, bootstrap_iters=0,
            task_manager=TaskManager(include_path=str(folder), include_defaults=False))
    assert found is not None
    return dict(found)


def test_loglikelihoods_equal_transformers(results: dict[str, Any], checkpoints: Path) -> None:
    folder = checkpoints / "smollm2-135m"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    samples = results["samples"]["capitals_loglikelihood"]
    assert len(samples) == 5
    for sample in samples:
        for arguments, response in zip(sample["arguments"], sample["filtered_resps"], strict=True):
            context, continuation = arguments
            start, ids = len(tokenizer(context).input_ids), tokenizer(context + continuation).input_ids
            with torch.no_grad():
                predicted = model(torch.tensor([ids])).logits[0].log_softmax(-1)
            want = sum(float(predicted[place - 1, ids[place]]) for place in range(start, len(ids)))
            assert math.isclose(response[0], want, abs_tol=1e-2), (context, continuation)
    assert results["results"]["capitals_loglikelihood"]["acc,none"] >= 0.6


def test_generate_until_stops_where_the_task_says(results: dict[str, Any]) -> None:
    texts = [sample["resps"][0][0] for sample in results["samples"]["capitals_generate"]]
    assert any("Paris" in text for text in texts)
    assert all("\n" not in text and "." not in text for text in texts)

"""Activations: every row equals the reference model's, whatever else runs and however the completion ends."""
from __future__ import annotations

import concurrent.futures
import random
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from tests.activations import Json, complete, numbers, ran, tensor
from tests.integration.test_ensemble import infer, sampling, text
from tests.reference import Reference
from tests.stack import Stack

MODELS = ("tiny-llama", "smollm2-135m")
#: The end-of-text token of tiny-llama.
END = 128001


@pytest.fixture(scope="module")
def references(stack: Stack, checkpoints: Path) -> dict[str, Reference]:
    """The reference of each model; the stack has made the checkpoints."""
    return {model: Reference.of(checkpoints / model) for model in MODELS}


def check_against(reference: Reference, choice: Json) -> None:
    """All positions of a choice, Layer by Layer."""
    ids, got = ran(choice), numbers(choice)
    assert choice["activations"]["positions"] == [0, len(ids)]
    right = reference.run(ids)
    for number, layer in enumerate(choice["activations"]["layers"]):
        right[layer].check(got[number])


@pytest.mark.parametrize("model", MODELS)
def test_every_layer_of_a_text_prompt(http: httpx.Client, references: dict[str, Reference], model: str) -> None:
    reference = references[model]
    (choice,) = complete(http, model=model, prompt="The capital of France is", max_tokens=12, temperature=0,
                         activations={"layers": reference.layers})
    assert choice["activations"]["layers"] == reference.layers
    check_against(reference, choice)
    (all_,) = complete(http, model=model, prompt="The capital of France is", max_tokens=12, temperature=0,
                       activations={"layers": "all"})
    assert all_["activations"]["layers"] == list(range(reference.n_layers))
    check_against(reference, all_)


def test_a_prompt_of_ids_in_several_prefill_chunks(http: httpx.Client, references: dict[str, Reference]) -> None:
    reference = references["tiny-llama"]  # whose chunks have 256 tokens
    ids = [random.Random(1).randrange(1000, 40_000) for _ in range(700)]
    (choice,) = complete(http, model="tiny-llama", prompt=ids, max_tokens=3, temperature=0,
                         activations={"layers": reference.layers})
    assert choice["prompt_token_ids"] == ids
    check_against(reference, choice)


def test_a_batch_with_several_choices_each(http: httpx.Client, references: dict[str, Reference]) -> None:
    prompts = ["x", "The sky is blue and", "A B C D E F G H"]
    choices = complete(http, prompt=prompts, n=4, max_tokens=6, seed=1, ignore_eos=True,
                       activations={"layers": references["tiny-llama"].layers})
    assert len(choices) == 12
    assert len({tuple(choice["token_ids"]) for choice in choices[:4]}) == 4
    for choice in choices:
        check_against(references["tiny-llama"], choice)


def test_a_prompt_that_was_just_cached(http: httpx.Client, references: dict[str, Reference]) -> None:
    """Rows of a cached prefix would be missing, since the model does not run it again."""
    body = {"prompt": [random.Random(2).randrange(1000, 40_000) for _ in range(300)], "max_tokens": 4, "temperature": 0}
    plain = complete(http, **body)
    (choice,) = complete(http, **body, activations={"layers": references["tiny-llama"].layers})
    assert choice["token_ids"] == plain[0]["token_ids"]
    check_against(references["tiny-llama"], choice)


def test_many_at_once_and_plain_ones_among_them(http: httpx.Client, references: dict[str, Reference]) -> None:
    """Different Layers, positions and lengths in one batch, and requests that want none."""
    reference = references["tiny-llama"]

    def one(number: int) -> tuple[Json, Json]:
        random_ = random.Random(number)
        body = {"prompt": [random_.randrange(1000, 40_000) for _ in range(random_.choice([2, 40, 400]))],
                "max_tokens": random_.choice([1, 8, 30]), "seed": number, "ignore_eos": True}
        if number % 3:
            layers = random_.sample(reference.layers, random_.randint(1, 4))
            body["activations"] = {"layers": layers, "positions": random_.choice(["all", "prompt", "last", [0, -1]])}
        return body, complete(http, **body)[0]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        done = list(pool.map(one, range(32)))
    for body, choice in done:
        if "activations" not in body:
            assert "activations" not in choice
            continue
        right, got = reference.run(ran(choice)), numbers(choice)
        positions = {"all": range(len(ran(choice))), "prompt": range(len(body["prompt"])),
                     "last": [len(ran(choice)) - 1], "[0, -1]": [0, len(body["prompt"]) - 1]}
        for number, layer in enumerate(choice["activations"]["layers"]):
            right[layer].check(got[number], positions[str(body["activations"]["positions"])])


@pytest.mark.parametrize("fields", [
    {"max_tokens": 20, "stop": ["e", "a", " "], "seed": 3}, {"max_tokens": 1},
    {"max_tokens": 6, "min_tokens": 3, "stop": ["a"], "seed": 4}, {"max_tokens": 5, "allowed_token_ids": [END]},
    {"max_tokens": 9, "stop_token_ids": [65], "allowed_token_ids": [65]},
    {"max_tokens": 8, "allowed_token_ids": [64, 65], "stop": ["aba", "bb"], "seed": 5},
], ids=str)
def test_a_completion_that_ends_early_has_the_rows_of_what_it_has(
    http: httpx.Client, references: dict[str, Reference], fields: Json
) -> None:
    (choice,) = complete(http, prompt="The sky is", **fields, activations={"layers": references["tiny-llama"].layers})
    check_against(references["tiny-llama"], choice)


def test_capturing_changes_no_token_and_no_log_probability(http: httpx.Client) -> None:
    body = {"prompt": "The sky is", "max_tokens": 24, "seed": 7, "logprobs": 2, "prompt_logprobs": 1, "echo": True,
            "ignore_eos": True}
    (plain,), (captured,) = complete(http, **body), complete(http, **body, activations={"layers": "all"})
    assert captured.pop("activations")["shape"] == [4, 27, 64]
    for name in ("token_logprobs", "top_logprobs"):
        assert len(captured["logprobs"][name]) == 28
        flat = [[value for entry in choice["logprobs"].pop(name) if entry is not None
                 for value in (entry.values() if isinstance(entry, dict) else [entry])] for choice in (plain, captured)]
        assert flat[1] == pytest.approx(flat[0], abs=1e-4)
    assert len(captured.pop("prompt_logprobs")) == len(plain.pop("prompt_logprobs")) == 4
    assert captured == plain


# What can be chosen

@pytest.mark.parametrize("positions", [
    "prompt", "generated", "last", [0], [-1], [2, 0, 1], [-1, -4], [5, 3], [6, -2, 0], list(range(7))], ids=str)
def test_every_selector_is_a_slice_of_all(http: httpx.Client, positions: str | list[int]) -> None:
    body = {"prompt": "The sky is", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    (whole,) = complete(http, **body, activations={"layers": [3, "embedding", 0]})
    (part,) = complete(http, **body, activations={"layers": [0, 3], "positions": positions})
    places = {"prompt": range(4), "generated": range(4, 7), "last": range(6, 7)}
    if isinstance(positions, str):
        chosen = list(places[positions])
        assert part["activations"]["positions"] == [chosen[0], chosen[-1] + 1]
    else:
        chosen = [place if place >= 0 else 4 + place for place in positions]
        assert part["activations"]["positions"] == chosen
    assert np.allclose(numbers(part), numbers(whole)[[2, 0]][:, chosen], atol=1e-5)


def test_one_token_leaves_no_generated_position(http: httpx.Client) -> None:
    (choice,) = complete(http, prompt="The sky is", max_tokens=1, activations={"layers": [0, 1],
                                                                              "positions": "generated"})
    assert choice["activations"]["positions"] == [4, 4]
    assert tuple(tensor(choice).shape) == (2, 0, 64)


def test_negative_positions_count_from_the_end_of_each_prompt(http: httpx.Client) -> None:
    body = {"prompt": ["x", "The sky is"], "max_tokens": 2, "temperature": 0}
    last = complete(http, **body, activations={"layers": [1], "positions": [-1]})
    whole = complete(http, **body, activations={"layers": [1], "positions": "prompt"})
    assert [choice["activations"]["positions"] for choice in last] == [[1], [3]]
    for one, all_ in zip(last, whole, strict=True):
        assert np.allclose(numbers(one)[:, 0], numbers(all_)[:, -1], atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", None])
def test_data_types(http: httpx.Client, dtype: str | None) -> None:
    body = {"prompt": "The sky is", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    (exact,) = complete(http, **body, activations={"layers": "all"})
    (choice,) = complete(http, **body, activations={"layers": "all"} | ({"dtype": dtype} if dtype else {}))
    got, right = tensor(choice), tensor(exact)
    assert got.dtype == getattr(torch, dtype or "float32")
    assert torch.allclose(got.float(), right.to(got.dtype).float(), rtol=2**-7, atol=1e-5)


# Triton's own clients

@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", None])
@pytest.mark.parametrize("stream", [False, True])
def test_through_the_ensemble(
    stack: Stack, references: dict[str, Reference], stream: bool, dtype: str | None
) -> None:
    more = {"activation_dtype": text(dtype)} if dtype else {}
    *_, last = infer(stack, stream, text_input=text("The sky is"), sampling=sampling(max_tokens=3, temperature=0),
                     activation_layers=np.array([b"embedding", b"2"], dtype=object),
                     activation_positions=np.array([b"prompt"], dtype=object), **more)
    assert last.as_numpy("activation_rows").tolist() == [0, 1, 2, 3]
    got = last.as_numpy("activations").astype(np.float32)
    right = references["tiny-llama"].run([128000, 791, 13180, 374])
    bound = {"bfloat16": 2**-8, "float16": 2**-11}.get(dtype or "", 1e-5)
    assert np.allclose(got, np.stack([right["embedding"].rows, right[2].rows]), rtol=bound, atol=1e-5)


@pytest.mark.parametrize(("inputs", "said"), [
    ({"activation_positions": [b"all"]}, "activation_layers"), ({"activation_layers": [b"4"]}, "4"),
    ({"activation_layers": [b"0", b"0"]}, "twice"), ({"activation_layers": [b"x"]}, "x"),
    ({"activation_layers": [b"0"], "activation_positions": [b"99"]}, "99"),
    ({"activation_layers": [b"0"], "activation_dtype": [b"int8"]}, "float32"),
], ids=str)
def test_the_engine_is_as_strict_as_the_api(stack: Stack, inputs: dict[str, list[bytes]], said: str) -> None:
    tensors = {name: np.array(values, dtype=object) for name, values in inputs.items()}
    with pytest.raises(Exception, match=said) as caught:
        list(infer(stack, False, text_input=text("x"), sampling=sampling(max_tokens=2), **tensors))
    assert "INVALID_ARG" in str(caught.value)

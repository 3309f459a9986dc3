"""What a model and a prompt decide about Activations: Layers, positions, the cap, and whether an answer is whole."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.completions import activations
from frontend.completions.choices import Choice
from frontend.completions.plan import Plan, check_ids, make_plan
from frontend.completions.request import ActivationRequest, CompletionRequest, Sampling
from frontend.errors import ActivationsTooLarge, InferenceError, InvalidRequest
from frontend.inference import ActivationPart, EngineEvent, TokenizedPrompt
from tests.unit.completions.test_plan import CARD

#: 4 Layers of 1,024 numbers: a row has 4 KiB in float32, and the cap of 1 MiB takes 256 of them.
MODEL = replace(CARD, n_layers=4, hidden_size=1024, max_model_len=4096)


def request(asked: ActivationRequest, max_tokens: int | None = 4, n: int = 1, prompts: int = 1) -> CompletionRequest:
    return CompletionRequest("m", ("x",) * prompts, max_tokens, Sampling(n=n), activations=asked)


def plan(asked: ActivationRequest, *lengths: int, max_tokens: int | None = 4, n: int = 1) -> Plan:
    prompts = [TokenizedPrompt(tuple(range(length)), ()) for length in lengths]
    return make_plan(request(asked, max_tokens, n, len(lengths)), MODEL, prompts, 32_000)


def part(*positions: int, layers: int = 1, dtype: str = "float32", hidden: int = 1024) -> ActivationPart:
    size = {"float32": 4, "float16": 2, "bfloat16": 2}[dtype]
    return ActivationPart(dtype, (layers, len(positions), hidden), positions,
                          memoryview(bytes(layers * len(positions) * hidden * size)))


@pytest.mark.parametrize(("layers", "said"), [
    ((4,), "holds 4"), ((0, 1, 10**30), "huge"), (("embedding", 7), "0 to 3")], ids=str)
def test_layers_that_the_model_lacks(layers: tuple[int | str, ...], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_ids(request(ActivationRequest(layers)), MODEL)
    assert caught.value.param == "activations.layers"
    assert said in caught.value.message


def test_layers_that_the_model_does_not_give() -> None:
    some = replace(MODEL, activation_layers=[1, 3, "final_norm"])
    check_ids(request(ActivationRequest((3, "final_norm"))), some)
    for layers in ((0,), ("embedding",), "all"):
        with pytest.raises(InvalidRequest, match="1, 3, final_norm"):
            check_ids(request(ActivationRequest(layers)), some)
    with pytest.raises(InvalidRequest, match="gives no Activations"):
        check_ids(request(ActivationRequest((0,))), replace(MODEL, activation_layers=[]))


def test_all_layers_are_the_blocks() -> None:
    capture = plan(ActivationRequest("all"), 3).capture(0)
    assert capture is not None
    assert capture.layers == (0, 1, 2, 3)


def test_the_engine_hears_everything_explicitly_for_each_prompt() -> None:
    planned = plan(ActivationRequest((2, "embedding"), (-1, 0)), 3, 6)
    first, second = planned.capture(0), planned.capture(1)
    assert first is not None
    assert second is not None
    assert (first.positions, second.positions) == ((2, 0), (5, 0))
    assert (first.layers, first.dtype) == ((2, "embedding"), "float32")
    assert plan(ActivationRequest((2,), "last", "float16"), 3).capture(0) == activations.Capture(
        (2,), "last", "float16")


@pytest.mark.parametrize(("word", "ran"), [
    ("all", (0, 1, 2, 3, 4, 5)), ("prompt", (0, 1, 2, 3)), ("generated", (4, 5)), ("last", (5,))])
def test_what_the_words_mean(word: str, ran: tuple[int, ...]) -> None:
    """A prompt of 4 tokens and 3 generated ones, the last of which was never fed to the model."""
    capture = activations.Capture((0,), word, "float32")
    assert tuple(activations.positions_that_ran(capture, 4, 3)) == ran


@pytest.mark.parametrize(("word", "ran"), [("all", (0, 1)), ("prompt", (0, 1)), ("generated", ()), ("last", (1,))])
def test_a_single_token_was_never_fed(word: str, ran: tuple[int, ...]) -> None:
    assert tuple(activations.positions_that_ran(activations.Capture((0,), word, "float32"), 2, 1)) == ran


@pytest.mark.parametrize(("positions", "said"), [
    ((6,), "0 to 5"), ((0, -4), "-1 to -3"), ((10**40,), "huge"), ((2, -1), "2 and -1"), ((-1, 2), "-1 and 2")],
    ids=str)
def test_positions_that_can_not_run_or_are_one(positions: tuple[int, ...], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plan(ActivationRequest((0,), positions), 3)
    assert (caught.value.param, caught.value.code) == ("activations.positions", "invalid_request")
    assert said in caught.value.message
    assert plan(ActivationRequest((0,), (5, -3)), 3).max_tokens == 4


def test_every_prompt_of_a_batch_is_told() -> None:
    with pytest.raises(InvalidRequest) as caught:
        plan(ActivationRequest((0,), (-3,)), 2, 5, 1)
    assert ["prompt 0" in caught.value.details[0].message, "prompt 2" in caught.value.details[1].message] == [True] * 2
    assert len(caught.value.details) == 2


@pytest.mark.parametrize(("asked", "lengths", "max_tokens", "n", "rows"), [
    (ActivationRequest((0,)), (10,), 5, 1, 14), (ActivationRequest((0,)), (10, 20), 5, 2, 2 * (14 + 24)),
    (ActivationRequest((0,), "prompt"), (10, 20), 5, 2, 60), (ActivationRequest((0,), "generated"), (10, 20), 5, 2, 16),
    (ActivationRequest((0,), "last"), (10, 20), 5, 2, 4), (ActivationRequest((0,), (1, 2, 3)), (10, 20), 5, 2, 12),
    (ActivationRequest((0, 1, "embedding"), "last"), (1,), 1, 1, 3), (ActivationRequest("all", "last"), (1,), 1, 1, 4),
    (ActivationRequest((0,), "generated"), (10,), 1, 1, 0),
], ids=str)
def test_sizes(asked: ActivationRequest, lengths: tuple[int, ...], max_tokens: int, n: int, rows: int) -> None:
    assert plan(asked, *lengths, max_tokens=max_tokens, n=n).activation_bytes == rows * 4096
    half = plan(replace(asked, dtype="bfloat16"), *lengths, max_tokens=max_tokens, n=n)
    assert half.activation_bytes == rows * 2048


def test_what_exceeds_the_cap_is_refused_with_what_would_fit() -> None:
    assert plan(ActivationRequest((0,)), 250, max_tokens=7).activation_bytes == 2**20
    with pytest.raises(ActivationsTooLarge) as caught:
        plan(ActivationRequest("all"), 50, max_tokens=101, n=2)
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "activations_too_large", "activations")
    assert f"{4 * 2 * 150 * 4096} bytes" in error.message
    assert f"at most {2**20}" in error.message
    assert "32 positions of each choice" in error.message
    # What the message says would fit does, and one more does not.
    assert plan(ActivationRequest("all", tuple(range(32))), 50, max_tokens=101, n=2)
    with pytest.raises(ActivationsTooLarge):
        plan(ActivationRequest("all", tuple(range(33))), 50, max_tokens=101, n=2)
    with pytest.raises(ActivationsTooLarge, match="fewer prompts"):
        plan(ActivationRequest((0,), "last", "bfloat16"), *[1] * 513)


@given(st.integers(1, 3), st.lists(st.integers(1, 300), min_size=1, max_size=3), st.integers(1, 400), st.integers(1, 3),
       st.sampled_from(["all", "prompt", "generated", "last"]))
def test_what_a_refusal_suggests_is_accepted(layers: int, lengths: list[int], max_tokens: int, n: int,
                                             word: str) -> None:
    def ask(layers: int, positions: str | tuple[int, ...], max_tokens: int, dtype: str = "float32") -> Plan:
        return plan(ActivationRequest(tuple(range(layers)), positions, dtype), *lengths, max_tokens=max_tokens, n=n)

    try:
        ask(layers, word, max_tokens)
    except ActivationsTooLarge as error:
        for suggested in error.message.partition("would fit: ")[2].rstrip(".").split(" or "):
            number = next((int(part) for part in suggested.split() if part.isdigit()), 0)
            if "Layers" in suggested:
                assert ask(number, word, max_tokens)
                with pytest.raises(ActivationsTooLarge):
                    ask(number + 1, word, max_tokens)
            elif "max_tokens" in suggested:
                assert ask(layers, word, number)
                with pytest.raises(ActivationsTooLarge):
                    ask(layers, word, number + 1)
            elif "bfloat16" in suggested:
                assert ask(layers, word, max_tokens, "bfloat16")


def test_large_activations_are_rendered_as_they_go_and_are_no_log_probabilities() -> None:
    model = replace(MODEL, activation_max_mb=16)
    prompts = [TokenizedPrompt(tuple(range(2000)), ())]
    large = make_plan(request(ActivationRequest((0,))), model, prompts, 32_000)
    assert (large.renders_as_it_goes, large.many_logprobs) == (True, False)
    assert not plan(ActivationRequest((0,)), 3).renders_as_it_goes


@pytest.mark.parametrize("wrong", [
    [], [part(0, 1, 2, 3)], [part(0, 1, 2, 3, 4, 5)], [part(1, 2, 3, 4, 0)], [part(0, 1, 2, 3, 4, layers=2)],
    [part(0, 1, 2, 3, 4, dtype="bfloat16")], [part(0, 1, 2, 3, 4, hidden=512)], [part(0, 1), part(3, 4)],
    [part(0, 1), part(1, 2, 3, 4)], [part(0, 1, 2), part(3, 4, layers=2)], [part(3, 4), part(0, 1, 2)], [part()],
])
def test_rows_that_are_missing_fail_the_request(wrong: list[ActivationPart]) -> None:
    """A prompt of 3 tokens and 3 generated ones have 5 positions."""
    choice = Choice(plan(ActivationRequest((0,)), 3), 0, None, [])
    choice.push(EngineEvent(0, 0, "a", (1, 2)))
    for one in wrong[:-1]:
        choice.push(EngineEvent(0, 0, activations=one))
    with pytest.raises(InferenceError):
        choice.push(EngineEvent(0, 0, "b", (3,), finish_reason="length", activations=wrong[-1] if wrong else None))


def test_a_choice_counts_the_bytes_of_its_activations() -> None:
    choice = Choice(plan(ActivationRequest((0,)), 3), 0, None, [])
    assert choice.push(EngineEvent(0, 0, "a", (1, 2))).activations is None
    assert choice.push(EngineEvent(0, 0, activations=part(0, 1, 2))).empty
    piece = choice.push(EngineEvent(0, 0, "b", (3,), finish_reason="length", activations=part(3, 4)))
    assert piece.activations is not None
    assert piece.activations.shape == (1, 5, 1024)
    assert piece.activations.nbytes == choice.activation_bytes == 5 * 4096


@given(st.integers(1, 4), st.lists(st.integers(0, 5), min_size=1, max_size=5), st.sampled_from([2, 4]))
def test_parts_make_the_numbers_in_order(layers: int, cuts: list[int], size: int) -> None:
    """A part has every Layer of its positions; a file has every position of a Layer together."""
    dtype = np.dtype(f"<u{size}")
    whole = np.arange(layers * sum(cuts) * 3, dtype=dtype).reshape(layers, sum(cuts), 3)
    parts, at = [], 0
    for cut in cuts:
        rows = np.ascontiguousarray(whole[:, at : at + cut])
        parts.append(ActivationPart("float32", rows.shape, tuple(range(at, at + cut)),
                                    rows.reshape(-1).view(np.uint8).data))
        at += cut
    joined = activations.Activations("float32", (layers, at, 3), tuple(range(at)), tuple(parts))
    assert b"".join(joined.pieces()) == whole.tobytes()

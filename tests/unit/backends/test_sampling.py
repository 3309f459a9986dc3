"""The engine's own gate: what is not exactly a sampling object of the contract is refused, never bent."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends.llama_vllm.sampling import InvalidRequest, Limits, Sampling, parse_sampling

LIMITS = Limits(
    vocab_size=1000, max_model_len=100, max_logprobs=50, full_vocab_max_prompt_tokens=20,
    full_vocab_max_completion_tokens=10,
)  # fmt: skip
PROMPT = np.array([1, 2, 3], np.int32)


def parse(fields: Any, prompt: np.ndarray = PROMPT) -> Sampling:
    return parse_sampling(json.dumps(fields).encode(), prompt, LIMITS)


def refusal(fields: Any, prompt: np.ndarray = PROMPT) -> str:
    with pytest.raises(InvalidRequest) as refused:
        parse(fields, prompt)
    message = str(refused.value)
    assert "\n" not in message
    return message


class TestDefaults:
    def test_hold_for_what_is_left_out(self) -> None:
        assert parse({}) == parse_sampling(None, PROMPT, LIMITS) == Sampling(max_tokens=97)

    def test_of_max_tokens_is_what_fits(self) -> None:
        assert parse({}, np.arange(1, 100, dtype=np.int32)).max_tokens == 1

    def test_of_max_tokens_is_never_enormous(self) -> None:
        wide = replace(LIMITS, max_model_len=131_072)
        assert parse_sampling(None, PROMPT, wide).max_tokens == 32_000

    @pytest.mark.parametrize("name", ["max_tokens", "seed", "logprobs", "prompt_logprobs", "allowed_token_ids"])
    def test_hold_for_null_where_null_is_a_value(self, name: str) -> None:
        assert parse({name: None}) == parse({})


class TestJson:
    @pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"nope", b"[" * 100_000, b'{"seed": ' + b"9" * 5000 + b"}"])
    def test_that_is_none_is_refused(self, raw: bytes) -> None:
        with pytest.raises(InvalidRequest, match="not valid JSON"):
            parse_sampling(raw, PROMPT, LIMITS)

    @pytest.mark.parametrize("raw", [b"[]", b'"x"', b"1", b"null", b"true"])
    def test_that_is_no_object_is_refused(self, raw: bytes) -> None:
        with pytest.raises(InvalidRequest, match="object"):
            parse_sampling(raw, PROMPT, LIMITS)

    def test_with_a_key_twice_is_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="twice"):
            parse_sampling(b'{"logit_bias": {"1": 1, "1": 2}}', PROMPT, LIMITS)

    @pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
    def test_with_what_is_no_json_number_is_refused(self, number: bytes) -> None:
        with pytest.raises(InvalidRequest, match="not JSON"):
            parse_sampling(b'{"temperature": ' + number + b"}", PROMPT, LIMITS)

    def test_with_a_number_beyond_all_bounds_is_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="temperature must be at least 0 and at most 2"):
            parse_sampling(b'{"temperature": 1e400}', PROMPT, LIMITS)

    @pytest.mark.parametrize("name", ["temprature", "best_of", "suffix", "echo", "stream", "Temperature", ""])
    def test_with_an_unknown_field_is_refused(self, name: str) -> None:
        assert "unknown field" in refusal({name: 1})


class TestFields:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(("max_tokens", value) for value in (0, -1, 1.0, 2.5, "3", True, [1])),
            *(("temperature", value) for value in (-0.1, 2.1, "1", True, None, 0.001, 10**400)),
            *(("top_p", value) for value in (0, -1, 1.1, "1", None)),
            *(("top_k", value) for value in (-2, 2**63, 1.0, "1", True, None)),
            *(("min_p", value) for value in (-0.1, 1.1, True, None)),
            *(("presence_penalty", value) for value in (-2.1, 2.1, None)),
            *(("frequency_penalty", value) for value in (-2.1, 2.1, None)),
            *(("repetition_penalty", value) for value in (0, 2.1, None)),
            *(("n", value) for value in (0, 129, 1.0, None)),
            *(("stop", value) for value in ("x", [""], [1], ["a"] * 5, None, ["\ud800"])),
            *(("stop_token_ids", value) for value in ([-1], [1000], [1.0], [True], 5, None)),
            *(("seed", value) for value in (-1, 2**63, 1.0, True)),
            *(("logprobs", value) for value in (-2, 51, 1.0, True)),
            *(("prompt_logprobs", value) for value in (-2, 51, "1")),
            *(
                ("logit_bias", value)
                for value in ([], {"a": 1}, {"01": 1}, {"-1": 1}, {"1000": 1}, {"1": 101}, {"1": "1"})
            ),
            *(("logit_bias", value) for value in ({" 1": 1}, {"²": 1}, {"1" * 5000: 1}, {"1": None}, None)),
            *(("allowed_token_ids", value) for value in ([], [1000], ["1"])),
            *(("bad_words", value) for value in ([""], "x", ["a"] * 65, None)),
            *(("min_tokens", value) for value in (-1, 98, 1.0, None)),
            *(("ignore_eos", value) for value in (1, 0, "true", None)),
            ("include_stop_str_in_output", 1),
            ("skip_special_tokens", None),
            ("spaces_between_special_tokens", "yes"),
        ],
    )
    def test_of_the_wrong_type_or_out_of_bounds_are_refused_by_name(self, name: str, value: Any) -> None:
        assert refusal({name: value}).startswith(name)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("max_tokens", 97), ("temperature", 0), ("temperature", 0.01), ("temperature", 2), ("top_p", 1),
            ("top_k", -1), ("min_p", 1), ("presence_penalty", -2), ("repetition_penalty", 2.0), ("seed", 2**63 - 1),
            ("logprobs", 0), ("logprobs", 50), ("prompt_logprobs", -1), ("min_tokens", 97), ("ignore_eos", True),
        ],
    )  # fmt: skip
    def test_at_their_bounds_are_taken(self, name: str, value: Any) -> None:
        assert getattr(parse({name: value}), name) == value

    def test_that_are_lists_are_taken_as_they_are(self) -> None:
        sampling = parse(
            {"stop": ["a", "b"], "stop_token_ids": [], "logit_bias": {"0": -100, "999": 2.5}, "bad_words": ["x"]}
        )
        assert (sampling.stop, sampling.stop_token_ids, sampling.bad_words) == (("a", "b"), (), ("x",))
        assert sampling.logit_bias == ((0, -100.0), (999, 2.5))


class TestPrompt:
    def test_without_tokens_is_refused(self) -> None:
        assert "no tokens" in refusal({}, np.array([], np.int32))

    @pytest.mark.parametrize("token_id", [-1, 1000, 2**31 - 1, -(2**31)])
    def test_with_an_id_outside_the_vocabulary_is_refused_with_its_place(self, token_id: int) -> None:
        assert refusal({}, np.array([5, token_id], np.int32)).startswith(f"input_ids[1] is {token_id},")

    def test_that_leaves_no_room_is_refused_with_the_numbers(self) -> None:
        assert "99 prompt tokens and max_tokens 2" in refusal({"max_tokens": 2}, np.ones(99, np.int32))
        assert "context of 100" in refusal({}, np.ones(100, np.int32))


class TestTogether:
    def test_several_choices_need_max_tokens(self) -> None:
        assert "max_tokens" in refusal({"n": 2})

    def test_several_choices_at_temperature_0_are_refused(self) -> None:
        assert "temperature 0" in refusal({"n": 2, "max_tokens": 1, "temperature": 0})

    def test_the_whole_vocabulary_has_caps(self) -> None:
        assert "at most 20 prompt tokens" in refusal({"prompt_logprobs": -1}, np.ones(21, np.int32))
        assert "at most 10 tokens over all choices" in refusal({"logprobs": -1, "max_tokens": 6, "n": 2})
        assert parse({"logprobs": -1, "max_tokens": 5, "n": 2}).logprobs == -1

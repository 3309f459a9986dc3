"""What a caller may ask of Activations, and how it is told what it may not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from backends.llama_vllm.activations import (
    FINAL_NORM_POINT,
    ActivationLimits,
    ActivationRequest,
    capturable,
    parse_activations,
    points,
    refusal,
)
from backends.llama_vllm.sampling import InvalidRequest, Sampling

LIMITS = ActivationLimits(
    n_layers=4, hidden_size=64, dtype="bfloat16", layers=capturable("all", 4), max_bytes=2**20, pool_bytes=2**21
)
PROMPT = 10
SAMPLING = Sampling(max_tokens=5)


def parse(
    layers: list[str] | None = None,
    positions: list[str] | None = None,
    dtype: str | None = None,
    sampling: Sampling = SAMPLING,
    limits: ActivationLimits = LIMITS,
) -> ActivationRequest | None:
    def raw(values: list[str] | None) -> list[bytes] | None:
        return None if values is None else [value.encode() for value in values]

    return parse_activations(
        raw(layers), raw(positions), None if dtype is None else dtype.encode(), PROMPT, sampling, limits
    )


def refused(*args: object, **fields: object) -> str:
    with pytest.raises(InvalidRequest) as problem:
        parse(*args, **fields)  # type: ignore[arg-type]
    assert "\n" not in str(problem.value)
    return str(problem.value)


def asked(*args: object, **fields: object) -> ActivationRequest:
    request = parse(*args, **fields)  # type: ignore[arg-type]
    assert request is not None
    return request


def test_nothing_asked_is_nothing_captured() -> None:
    assert parse() is None


def test_layers_come_in_the_order_asked() -> None:
    request = asked(["3", "embedding", "final_norm", "0"])
    assert request.points == (4, 0, FINAL_NORM_POINT, 1)
    assert (request.layout.layers, request.layout.hidden, request.layout.dtype) == (4, 64, "bfloat16")


def test_all_layers_are_the_blocks_alone() -> None:
    assert asked(["all"]).points == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("positions", "rows"), [(None, 14), ("all", 14), ("prompt", 10), ("generated", 4), ("last", 4)]
)
def test_positions_by_word(positions: str | None, rows: int) -> None:
    request = asked(["0"], None if positions is None else [positions])
    assert request.selection.kind == (positions or "all")
    assert request.layout.rows == rows


def test_listed_positions_are_absolute_and_negative_ones_count_from_the_prompts_end() -> None:
    assert asked(["0"], ["-1", "0", "13", "4"]).selection.positions == (9, 0, 13, 4)


def test_last_keeps_more_rows_where_the_end_is_found_outside_of_the_engine() -> None:
    def rows(max_tokens: int, stop: tuple[str, ...] = (), hidden_size: int = 64) -> int:
        limits = replace(LIMITS, hidden_size=hidden_size, max_bytes=2**30, pool_bytes=2**30)
        sampling = Sampling(max_tokens=max_tokens, stop=stop)
        return asked(["all"], ["last"], sampling=sampling, limits=limits).layout.rows

    assert [rows(1000), rows(3)] == [4, 3]
    assert [rows(1000, ("x",)), rows(3, ("x",))] == [256, 3]
    assert [rows(1000, ("x",), 2**17), rows(1000, ("x",), 2**20)] == [16, 4]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_data_types(dtype: str) -> None:
    assert asked(["0"], dtype=dtype).layout.dtype == dtype


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"positions": ["all"]}, "need activation_layers"),
        ({"dtype": "float32"}, "need activation_layers"),
        ({"layers": []}, "empty"),
        ({"layers": ["4"]}, "'4' must be 0 to 3, embedding or final_norm"),
        ({"layers": ["-1"]}, "'-1'"),
        ({"layers": ["01"]}, "'01'"),
        ({"layers": ["１"]}, "must be 0 to 3"),
        ({"layers": ["all", "0"]}, "'all'"),
        ({"layers": ["0", "0"]}, "twice"),
        ({"layers": ["x" * 1000]}, "'" + "x" * 40 + "'"),
        ({"layers": ["0"], "positions": []}, "empty"),
        ({"layers": ["0"], "positions": ["some"]}, "'some' must be one of all, prompt, generated, last alone"),
        ({"layers": ["0"], "positions": ["all", "1"]}, "'all'"),
        ({"layers": ["0"], "positions": ["1.0"]}, "'1.0'"),
        ({"layers": ["0"], "positions": ["-0"]}, "'-0'"),
        ({"layers": ["0"], "positions": ["9" * 4000]}, "999"),
        ({"layers": ["0"], "positions": ["14"]}, "14 is outside of the 14 positions"),
        ({"layers": ["0"], "positions": ["-11"]}, "-11 is outside"),
        ({"layers": ["0"], "positions": ["9", "-1"]}, "twice"),
        ({"layers": ["0"], "dtype": "float64"}, "bfloat16, float16, float32"),
        ({"layers": ["0"], "dtype": ""}, "bfloat16"),
    ],
)
def test_mistakes_are_refused_in_a_line(fields: dict[str, object], says: str) -> None:
    assert says in refused(**fields)


@pytest.mark.parametrize("positions", [["last"], ["7", "-1", "3"], None])
def test_a_request_reaches_the_worker_as_it_was(positions: list[str] | None) -> None:
    request = asked(["3", "final_norm"], positions, "float32", sampling=Sampling(max_tokens=5, stop=("x",)))
    told = json.loads(json.dumps(request.extra_args(Path("/slab"))))
    assert ActivationRequest.of_extra_args(told | {"other": 1}) == (Path("/slab"), request)
    assert ActivationRequest.of_extra_args({"other": 1}) is None
    assert ActivationRequest.of_extra_args(None) is None


def test_a_catalog_may_allow_less() -> None:
    limits = replace(LIMITS, layers=capturable([1, 3, "final_norm"], 4))
    assert asked(["3", "final_norm"], limits=limits).points == (4, FINAL_NORM_POINT)
    assert "0 can't be captured" in refused(["all"], limits=limits)
    assert "embedding can't be captured" in refused(["embedding"], limits=limits)
    assert points([1, 3, "final_norm"], 4) == {2, 4, FINAL_NORM_POINT}
    with pytest.raises(ValueError, match="has 7"):
        capturable([7], 4)


def test_an_answer_may_be_only_so_large() -> None:
    # 4 Layers of 64 numbers of 2 bytes at 10 + 2040 - 1 positions.
    assert asked(["all"], sampling=Sampling(max_tokens=2039))
    assert "1049088 bytes and may take 1048576" in refused(["all"], sampling=Sampling(max_tokens=2040))
    assert "bytes" in refused(["all"], dtype="float32", sampling=Sampling(max_tokens=2039))
    assert "bytes" in refused(["all"], sampling=Sampling(max_tokens=2039, n=2))
    assert asked(["all"], ["last"], sampling=Sampling(max_tokens=2040, n=2))


def test_what_can_never_fit_is_refused() -> None:
    limits = replace(LIMITS, pool_bytes=2**20)
    assert "can never fit into the 1048576" in refused(["all"], sampling=Sampling(max_tokens=2039), limits=limits)


def test_models_that_are_spread_over_pipelines_capture_nothing() -> None:
    assert not refusal(SimpleNamespace(pipeline_parallel_size=1, prefill_context_parallel_size=1))
    assert "pipeline" in refusal(SimpleNamespace(pipeline_parallel_size=2, prefill_context_parallel_size=1))
    assert refused(["0"], limits=replace(LIMITS, refusal="not here")) == "not here"
    assert parse(limits=replace(LIMITS, refusal="not here")) is None

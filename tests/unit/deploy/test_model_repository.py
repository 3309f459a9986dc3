"""The entries that Triton reads are what the catalog says, and carry what the other parts read from them."""
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from frontend.completions.request import CompletionRequest
from frontend.errors import InvalidRequest
from frontend.inference import ModelCard
from frontend.schemas.completions import check_completion
from model_repository import catalog, render

FOLDER = catalog.FOLDER
MODELS = catalog.load()


def config(entry: str) -> model_config_pb2.ModelConfig:
    text = (FOLDER / entry / "config.pbtxt").read_text()
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def test_the_entries_match_the_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    assert render.main(["--check"]) == 0, capsys.readouterr().out


def test_the_catalog_has_the_models_that_strata_promises() -> None:
    assert list(MODELS) == ["llama-8b", "llama-70b", "llama-405b", "smollm2-135m", "tiny-llama"]
    assert [MODELS[id].engine_args["tensor_parallel_size"] for id in [*MODELS][:3]] == [1, 4, 8]


def test_what_the_catalog_lost_is_removed_and_what_it_never_had_stays(tmp_path: Path) -> None:
    files = render.entries(MODELS)
    render.write(tmp_path, files)
    (tmp_path / "catalog.toml").touch()
    assert render.rendered(tmp_path) == files
    fewer = render.entries({"tiny-llama": MODELS["tiny-llama"]})
    render.write(tmp_path, fewer)
    assert render.rendered(tmp_path) == fewer
    assert (tmp_path / "catalog.toml").exists()


@pytest.mark.parametrize("id", MODELS)
def test_an_entry_is_named_as_its_folder_and_has_a_version(id: str) -> None:
    for entry in (id, f"{id}_tokenizer", f"{id}_engine"):
        assert config(entry).name == entry
        assert (FOLDER / entry / "1").is_dir()


@pytest.mark.parametrize("id", MODELS)
def test_a_frontend_reads_the_card(id: str) -> None:
    card = ModelCard.from_json(config(f"{id}_tokenizer").parameters["card"].string_value)
    assert card.id == id
    assert card.fingerprint == MODELS[id].fingerprint


@pytest.mark.parametrize("id", MODELS)
def test_the_engine_reads_its_arguments(id: str) -> None:
    engine = json.loads(config(f"{id}_engine").parameters["engine"].string_value)
    assert engine["engine_args"]["max_model_len"] == MODELS[id].max_model_len
    assert engine["checkpoint"] == MODELS[id].checkpoint


@pytest.mark.parametrize("most", [-1, catalog.MOST_LOGPROBS + 1])
def test_a_cap_that_the_api_would_refuse_is_no_cap(most: int) -> None:
    with pytest.raises(ValueError, match=f"max_logprobs of tiny-llama is {most}"):
        replace(MODELS["tiny-llama"], max_logprobs=most)


def test_the_api_takes_what_a_catalog_may_advertise() -> None:
    def asks(logprobs: int) -> CompletionRequest:
        return check_completion({"model": "m", "prompt": "x", "max_tokens": 1, "logprobs": logprobs}, 100)

    assert asks(catalog.MOST_LOGPROBS).sampling.logprobs == catalog.MOST_LOGPROBS
    with pytest.raises(InvalidRequest):
        asks(catalog.MOST_LOGPROBS + 1)


@pytest.mark.parametrize("id", MODELS)
def test_the_ensemble_hands_on_tensors_that_its_parts_have(id: str) -> None:
    ensemble = config(id)
    for step in ensemble.ensemble_scheduling.step:
        part = config(step.model_name)
        assert set(step.input_map) <= {tensor.name for tensor in part.input}
        assert set(step.output_map) <= {tensor.name for tensor in part.output}
    engine = config(f"{id}_engine")
    assert list(ensemble.output) == list(engine.output)


def test_a_fingerprint_changes_with_what_decides_the_numbers_and_with_nothing_else() -> None:
    model = MODELS["llama-8b"]
    assert model.fingerprint.startswith("fp_")
    assert len(model.fingerprint) == 19
    for change in ({"revision": "x"}, {"dtype": "float16"}, {"engine_version": "vllm 1"}, {"checkpoint": "y"}):
        assert replace(model, **change).fingerprint != model.fingerprint
    assert replace(model, engine_args={"tensor_parallel_size": 2}).fingerprint != model.fingerprint
    assert replace(model, price_per_hour=1.0, max_model_len=1).fingerprint == model.fingerprint

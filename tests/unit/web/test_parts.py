"""The small parts of the App: charts, the Workbench's form, what a logit lens may be asked."""
from __future__ import annotations

import re
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from frontend.errors import ApiError
from frontend.schemas.completions import CompletionSchema
from frontend.web import lens
from frontend.web.charts import stacked_bars
from frontend.web.fields import groups


def bars(svg: str) -> list[tuple[str, float, float]]:
    """The bars of a picture: their class, their foot and their height."""
    return [(bar.get("class", ""), float(bar.get("y", 0)) + float(bar.get("height", 0)), float(bar.get("height", 0)))
            for bar in ElementTree.fromstring(svg).iter("rect") if bar.get("class") != "hit"]


def test_bars_stand_on_each_other_and_add_up() -> None:
    chart = stacked_bars(["mon", "tue"], {"a": [10, 0], "b": [30, 20]}, "tokens")
    assert bars(chart.svg) == [("c0", 200, 40), ("c1", 160, 120), ("c1", 200, 80)]
    assert (chart.top, chart.labels, chart.words) == ("50 tokens", ("mon", "tue"), "60 tokens from mon to tue")


def test_sums_end_where_the_days_do() -> None:
    chart = stacked_bars(["1", "2", "3"], {"a": [1.5, 2.5]}, "dollars", line=8, cumulative=True)
    assert [height for _, _, height in bars(chart.svg)] == [30, 80]
    assert 'class="limit" x1="0" x2="1000" y1="40.00"' in chart.svg
    assert chart.words == "4 dollars from 1 to 3"


def test_names_are_text() -> None:
    chart = stacked_bars(["<b>"], {'"><script>': [1]}, "tokens")
    assert "<b>" not in chart.svg
    assert "<script" not in chart.svg
    assert stacked_bars([], {}, "tokens").words == "no tokens"


def test_the_form_has_every_field_once() -> None:
    names = [control.name for controls in groups(CompletionSchema()).values() for control in controls]
    assert sorted(names) == sorted(set(names))
    places_of_their_own = {"model", "prompt", "stream", "stream_options", "activations"}
    assert set(names) == set(CompletionSchema().load_fields) - places_of_their_own


def test_the_form_says_defaults_and_bounds_as_the_api_has_them() -> None:
    controls = {control.name: control for found in groups(CompletionSchema()).values() for control in found}
    assert (controls["temperature"].kind, controls["temperature"].low, controls["temperature"].high) == ("number", 0, 2)
    assert controls["temperature"].default == 1.0
    assert controls["echo"].kind == "flag"
    assert controls["stop"].kind == controls["bad_words"].kind == "lines"
    assert controls["logit_bias"].kind == "map"


BODY = {"model": "tiny-llama", "prompt": "The sky is", "layers": [0, "final_norm"]}


def test_a_look_inside_is_a_completion_of_one_token() -> None:
    request = lens.load(BODY, 32_000).request
    assert (request.max_tokens, request.sampling.temperature, request.prompts) == (1, 0, ("The sky is",))
    assert request.activations
    assert (request.activations.layers, request.activations.positions) == ((0, "final_norm"), "prompt")


@pytest.mark.parametrize(("changes", "param"), [
    ({"layers": []}, "layers"), ({"layers": [0, 0]}, "layers"), ({"prompt": ["a", "b"]}, "prompt"),
    ({"layres": [1]}, "layres"), ({"add_special_tokens": 1}, "add_special_tokens")])
def test_a_look_inside_is_as_strict_as_the_api(changes: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as raised:
        lens.load({**BODY, **changes}, 32_000)
    assert raised.value.param == param


def test_a_picture_has_a_largest_size() -> None:
    asked = lens.load(BODY, 32_000)
    small = SimpleNamespace(capture=lambda _: SimpleNamespace(layers=(0, 1)), prompt_tokens=lens.MOST_ROWS // 2)
    asked.check_plan(small)  # type: ignore[arg-type]
    large = SimpleNamespace(capture=lambda _: SimpleNamespace(layers=(0, 1)), prompt_tokens=lens.MOST_ROWS // 2 + 1)
    with pytest.raises(ApiError, match=re.escape("Choose fewer Layers")):
        asked.check_plan(large)  # type: ignore[arg-type]

"""An answer with Activations: the same streamed and not, and as a file that says everything else in its metadata."""
from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from frontend.completions.answer import Answer, Usage
from frontend.completions.choices import Choice, Piece, join_pieces
from frontend.completions.plan import make_plan
from frontend.completions.request import ActivationRequest, CompletionRequest, Sampling
from frontend.inference import ActivationPart, EngineEvent, TokenizedPrompt
from tests.unit.completions.test_plan import CARD

Json = dict[str, Any]
VALUES = np.arange(2 * 4 * CARD.hidden_size, dtype=np.float32).reshape(2, 4, CARD.hidden_size)


def answered(asked: ActivationRequest, positions: tuple[int, ...], values: np.ndarray) -> tuple[Answer, Choice,
                                                                                                  list[Piece]]:
    """A prompt of 3 tokens with 2 generated ones, in two events."""
    request = CompletionRequest("m", ("x",), 2, Sampling(), activations=asked)
    plan = make_plan(request, CARD, [TokenizedPrompt((5, 6, 7), ())], 100)
    choice = Choice(plan, 0, None, [])
    first, rest = (
        ActivationPart("float32", rows.shape, places, np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
        for rows, places in ((values[:, :1], positions[:1]), (values[:, 1:], positions[1:])))
    pieces = [choice.push(EngineEvent(0, 0, "a", (1,))), choice.push(EngineEvent(0, 0, activations=first)),
              choice.push(EngineEvent(0, 0, "b", (2,), finish_reason="length", activations=rest))]
    assert pieces.pop(1).empty
    return Answer("cmpl-1", 7, plan, None), choice, pieces


def body(asked: ActivationRequest, positions: tuple[int, ...], values: np.ndarray) -> Json:
    answer, choice, pieces = answered(asked, positions, values)
    result = json.loads(b"".join(answer.body([(choice, join_pieces(pieces))], Usage(3, 2))))
    assert isinstance(result, dict)
    return result


def test_an_unstreamed_answer_holds_the_file() -> None:
    choice = body(ActivationRequest(("embedding", 0)), (0, 1, 2, 3), VALUES)["choices"][0]
    assert choice["text"] == "ab"
    activations = choice["activations"]
    file = base64.b64decode(activations.pop("data"), validate=True)
    assert activations == {"layers": ["embedding", 0], "positions": [0, 4], "shape": [2, 4, CARD.hidden_size],
                           "dtype": "float32", "format": "safetensors", "encoding": "base64"}
    assert np.array_equal(safetensors.numpy.load(file)["activations"], VALUES)


def test_listed_positions_are_listed() -> None:
    values = VALUES[:, [2, 0]]
    choice = body(ActivationRequest(("embedding", 0), (-1, 0)), (2, 0), np.ascontiguousarray(values))["choices"][0]
    assert choice["activations"]["positions"] == [2, 0]


def test_the_event_that_ends_a_choice_brings_its_activations() -> None:
    answer, choice, pieces = answered(ActivationRequest(("embedding", 0)), (0, 1, 2, 3), VALUES)
    first, last = (json.loads(b"".join(answer.event(choice, piece, False)).removeprefix(b"data: "))["choices"][0]
                   for piece in pieces)
    assert "activations" not in first
    whole = json.loads(b"".join(answer.body([(choice, join_pieces(pieces))], Usage(3, 2))))["choices"][0]
    assert last["activations"] == whole["activations"]


def test_the_file_says_everything_else_in_its_metadata(tmp_path: Path) -> None:
    answer, choice, pieces = answered(ActivationRequest(("embedding", 0)), (0, 1, 2, 3), VALUES)
    piece = join_pieces(pieces)
    assert piece.activations is not None
    file = answer.file(choice, piece, piece.activations, Usage(3, 2))
    path = tmp_path / "answer.safetensors"
    path.write_bytes(b"".join(file.parts()))
    with safetensors.safe_open(path, "np") as opened:
        assert np.array_equal(opened.get_tensor("activations"), VALUES)
        metadata = opened.metadata()
    completion = json.loads(metadata.pop("completion"))
    assert metadata == {"model": "m", "fingerprint": CARD.fingerprint, "layers": '["embedding",0]',
                        "positions": "[0,1,2,3]"}
    whole = body(ActivationRequest(("embedding", 0)), (0, 1, 2, 3), VALUES)
    for left_out in ("data", "encoding"):
        del whole["choices"][0]["activations"][left_out]
    assert completion == whole

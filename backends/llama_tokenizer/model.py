"""Triton's edge of the tokenizer: tensors in, tensors out, only what the caller asked for.

The tensors are described in `model_repository/` (the `<id>_tokenizer` entries).
"""

from __future__ import annotations

import locale
import os
import sys

# The stub runs Python isolated from the environment: without a locale, so that UTF-8 files are read as ASCII, and
# without PYTHONPATH, which is where this package is.
locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
sys.path += [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry not in sys.path]

import json  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
import triton_python_backend_utils as pb_utils  # noqa: E402

from backends.checkpoints import tokenizer_folder, weights_folder  # noqa: E402
from backends.llama_tokenizer.lens import Lens  # noqa: E402
from backends.llama_tokenizer.tokenization import InvalidInput, Prompts, Tokenization  # noqa: E402
from backends.text import load_tokenizer  # noqa: E402


class TritonPythonModel:
    """One model's tokenizer."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the tokenizer of the checkpoint that the entry's parameters name."""
        parameters = json.loads(args["model_config"])["parameters"]
        card = json.loads(parameters["card"]["string_value"])
        self._checkpoint = card["checkpoint"], card.get("revision")
        self._lens: Lens | None = None
        folder = tokenizer_folder(*self._checkpoint)
        self._tokenization = Tokenization(load_tokenizer(folder), card["vocab_size"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answers each request by itself, so that one that is wrong spoils no other."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            return pb_utils.InferenceResponse(self._outputs(request))
        except InvalidInput as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))

    def _outputs(self, request: Any) -> list[Any]:
        asked = set(request.requested_output_names())
        if "lens_ids" in asked:
            return self._read(request)
        wants_texts = bool(asked & {"token_texts", "text"})
        table = self._tokenization.table
        makers: dict[str, Callable[[], npt.NDArray[Any]]] = {}
        prompts = self._prompts(request, wants_texts)
        if prompts is not None:
            makers["input_ids"] = lambda: prompts.ids
            makers["lengths"] = lambda: prompts.lengths
            makers["token_texts"] = lambda: strings(prompts.texts)
            makers["text"] = lambda: strings(prompts.whole_texts())
        if flag(request, "vocabulary", default=False):
            makers["vocabulary"] = lambda: np.array(table.bytes, dtype=np.object_)
            makers["special_ids"] = lambda: np.array(sorted(table.special_ids), np.int32)
        return [pb_utils.Tensor(name, make()) for name, make in makers.items() if name in asked]

    def _read(self, request: Any) -> list[Any]:
        """A residual stream [rows, hidden], read by the output head."""
        tensor = pb_utils.get_input_tensor_by_name(request, "residual")
        top = pb_utils.get_input_tensor_by_name(request, "lens_top")
        if tensor is None or top is None:
            raise InvalidInput("send residual and lens_top")
        if self._lens is None:
            self._lens = Lens(weights_folder(*self._checkpoint))
        residual = tensor.as_numpy()
        if residual.ndim != 2 or residual.shape[1] != self._lens.hidden:
            raise InvalidInput(f"residual has the shape {residual.shape}, not [rows, {self._lens.hidden}]")
        read = self._lens.read(residual, flag(request, "normed", default=False), int(top.as_numpy().ravel()[0]))
        return [pb_utils.Tensor("lens_ids", read.ids), pb_utils.Tensor("lens_probabilities", read.probabilities)]

    def _prompts(self, request: Any, with_texts: bool) -> Prompts | None:
        text = pb_utils.get_input_tensor_by_name(request, "text_input")
        ids = pb_utils.get_input_tensor_by_name(request, "input_ids")
        if text is not None and ids is not None:
            raise InvalidInput("send text_input or input_ids, not both")
        if text is not None:
            add_special_tokens = flag(request, "add_special_tokens", default=True)
            return self._tokenization.tokenize(text.as_numpy().ravel().tolist(), add_special_tokens, with_texts)
        if ids is not None:
            given = ids.as_numpy().ravel()
            if with_texts:
                return self._tokenization.describe(given, flag(request, "skip_special_tokens", default=True))
            self._tokenization.check(given)
            return Prompts(given, np.array([len(given)], np.int32))
        if not flag(request, "vocabulary", default=False):
            raise InvalidInput("send text_input, input_ids or vocabulary")
        return None


def flag(request: Any, name: str, default: bool) -> bool:
    """An optional BOOL[1] input."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else bool(tensor.as_numpy().ravel()[0])


def strings(texts: Any) -> npt.NDArray[np.object_]:
    """Texts as Triton carries them: UTF-8 bytes."""
    return np.array([text.encode() for text in texts], dtype=np.object_)

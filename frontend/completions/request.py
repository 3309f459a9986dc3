"""What a caller asked for, after the schema has checked it: the typed edge between schemas and the walk."""
from __future__ import annotations

from dataclasses import dataclass

#: A prompt as the caller sent it: text, or the ids of its tokens.
RawPrompt = str | tuple[int, ...]


#: A Layer index, "embedding" or "final_norm".
Layer = int | str
#: For the layers and the positions of ActivationRequest.
ALL = "all"
#: Activations that are no decoder block's: what block 0 reads, and what the output head reads.
NAMED_LAYERS = ("embedding", "final_norm")
#: The words for positions; the other way to say them is a list.
POSITION_WORDS = (ALL, "prompt", "generated", "last")
#: The data types of Activations, and the bytes of one number in each.
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class ActivationRequest:
    """Which Activations to return with each choice.

    `layers` are ALL (every Layer index) or the Layers in the order of the answer's first axis; `positions` are one of
    POSITION_WORDS or absolute positions in the order of its second axis, where -1 is the prompt's last token. `dtype`
    is a key of DTYPE_BYTES, or None for the model's own.
    """

    layers: str | tuple[Layer, ...]
    positions: str | tuple[int, ...] = ALL
    dtype: str | None = None


@dataclass(frozen=True)
class Sampling:
    """The sampling fields, defaults filled in. Every one of them is sent to Inference explicitly."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True


@dataclass(frozen=True)
class CompletionRequest:
    """One body of POST /v1/completions. Nothing in it depends on the model yet: ids may be out of vocabulary."""

    model: str
    prompts: tuple[RawPrompt, ...]
    max_tokens: int | None = None
    sampling: Sampling = Sampling()
    add_special_tokens: bool = True
    echo: bool = False
    stream: bool = False
    include_usage: bool = False
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    activations: ActivationRequest | None = None
    user: str | None = None

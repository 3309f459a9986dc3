"""A choice shows the same thing in pieces and as a whole, and every visible token stands where its offset says."""
from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.completions.choices import Choice, Piece, join_pieces
from frontend.completions.logprobs import TokenNames
from frontend.completions.plan import Plan
from frontend.completions.request import CompletionRequest, Sampling
from frontend.inference import EngineEvent, LogprobRows, ModelCard, TokenizedPrompt, Vocabulary

TEXTS = ("a", "b", " c", "de", "\ufffd", "\ufffd", "<bos>", "<eos>")
RAW = (b"a", b"b", b" c", b"de", b"\xc3", b"\xa9", b"<bos>", b"<eos>")
BOS, EOS = 6, 7
NAMES = TokenNames(Vocabulary(RAW, TEXTS, frozenset({BOS, EOS})), as_ids=False)
CARD = ModelCard(
    id="m", checkpoint="m", revision="1", dtype="float32", fingerprint="fp_0", gpu_shape="CPU", price_per_hour=0,
    created=0, warm="always", idle_minutes=30, warm_windows=[], max_requests=4, max_queue=8,
    max_model_len=64, vocab_size=len(TEXTS), n_layers=1, hidden_size=8, bos_token="<bos>",
    bos_token_id=BOS, eos_token_id=EOS, max_logprobs=5, full_vocab_max_prompt_tokens=8,
    full_vocab_max_completion_tokens=8, activation_layers="all", activation_max_mb=1)


def plan(prompt: TokenizedPrompt, *, echo: bool = False, logprobs: int | None = 1) -> Plan:
    request = CompletionRequest("m", (prompt.ids,), 16, Sampling(logprobs=logprobs), echo=echo)
    return Plan(request, CARD, (prompt,), 16)


def rows(tokens: list[int]) -> LogprobRows:
    """Column 0 the token that stands there, column 1 the likeliest, which is token 0."""
    ids = np.array([[token, 0] for token in tokens], np.int32).reshape(-1, 2)
    values = np.array([[-2.0, -1.0] for _ in tokens], np.float32).reshape(-1, 2)
    return LogprobRows(ids, values, np.full(len(tokens), 2, np.int32))


def event(tokens: list[int], texts: list[str], text: str, finish: str | None = None,
          stop: int | str | None = None) -> EngineEvent:
    return EngineEvent(0, 0, text, tuple(tokens), tuple(texts), rows(tokens), None, finish, stop)


def body(piece: Piece) -> dict[str, object]:
    assert piece.logprobs is not None
    result = json.loads(b"".join(piece.logprobs.render()))
    assert isinstance(result, dict)
    return result


def push_all(choice: Choice, events: list[EngineEvent]) -> Piece:
    return join_pieces([choice.push(e) for e in events])


def test_an_echoed_bos_is_named_and_shifts_nothing() -> None:
    prompt = TokenizedPrompt((BOS, 0, 2), ("", "a", " c"))
    choice = Choice(plan(prompt, echo=True), 0, NAMES, [rows([0]), rows([2])])
    logprobs = body(push_all(choice, [event([3], ["de"], "de", "length")]))
    assert logprobs["tokens"] == ["<bos>", "a", " c", "de"]
    assert logprobs["text_offset"] == [0, 0, 1, 3]
    assert logprobs["token_logprobs"] == [None, -2.0, -2.0, -2.0]
    assert logprobs["top_logprobs"] == [None, {"a": -2.0}, {" c": -2.0, "a": -1.0},
                                        {"de": -2.0, "a": -1.0}]


def test_tokens_wait_for_text_that_is_held_back() -> None:
    choice = Choice(plan(TokenizedPrompt((0,), ())), 0, NAMES, [])
    first = choice.push(event([0, 1], ["a", "b"], "a"))
    assert body(first)["tokens"] == ["a"]
    assert first.token_ids == (0,)
    last = choice.push(event([2], [" c"], "b c", "length"))
    assert body(last)["tokens"] == ["b", " c"]
    assert body(last)["text_offset"] == [1, 2]


def test_a_token_that_a_stop_string_cut_has_the_end_of_the_text_as_its_offset() -> None:
    choice = Choice(plan(TokenizedPrompt((0,), ())), 0, NAMES, [])
    piece = push_all(choice, [event([0], ["a"], "a"), event([3, 1], ["de", "b"], "d", "stop", "eb")])
    assert piece.text == "ad"
    assert body(piece)["tokens"] == ["a", "de", "b"]
    assert body(piece)["text_offset"] == [0, 2, 2]


@pytest.mark.parametrize(("stop_reason", "token", "name"), [(None, EOS, "<eos>"), (1, 1, "b")])
def test_a_hidden_stop_token_keeps_its_name(stop_reason: int | None, token: int, name: str) -> None:
    choice = Choice(plan(TokenizedPrompt((0,), ())), 0, NAMES, [])
    piece = push_all(choice, [event([0, token], ["a", ""], "a", "stop", stop_reason)])
    assert body(piece)["tokens"] == ["a", name]
    assert body(piece)["text_offset"] == [0, 1]


def test_the_token_that_completes_a_character_carries_it() -> None:
    choice = Choice(plan(TokenizedPrompt((0,), ())), 0, NAMES, [])
    logprobs = body(push_all(choice, [event([4], [""], ""), event([5], ["é"], "é", "length")]))
    assert logprobs["tokens"] == ["", "é"]
    assert logprobs["text_offset"] == [0, 0]


def test_rows_may_come_ahead_of_their_tokens() -> None:
    """Whole-vocabulary rows are megabytes each, so the engine sends them in responses without tokens."""
    choice = Choice(plan(TokenizedPrompt((0,), ())), 0, NAMES, [])
    assert choice.push(EngineEvent(0, 0, logprobs=rows([0, 1]))).empty
    last = EngineEvent(0, 0, "ab c", (0, 1, 2), ("a", "b", " c"), rows([2]), None, "length", None)
    logprobs = body(choice.push(last))
    assert logprobs["tokens"] == ["a", "b", " c"]
    assert logprobs["token_logprobs"] == [-2.0, -2.0, -2.0]


def test_an_echoed_prompt_without_text_is_not_lost() -> None:
    choice = Choice(plan(TokenizedPrompt((BOS,), ("",)), echo=True), 0, NAMES, [])
    first = choice.push(event([0], ["a"], ""))
    assert not first.empty
    assert body(first)["tokens"] == ["<bos>"]


def test_two_ids_that_decode_alike_share_the_key_with_the_higher_log_probability() -> None:
    choice = Choice(plan(TokenizedPrompt((0,), ()), logprobs=3), 0, NAMES, [])
    alike = LogprobRows(np.array([[0, 4, 5, 1]], np.int32), np.array([[-3.0, -0.5, -1.5, -2.0]], np.float32),
                        np.array([4], np.int32))
    piece = choice.push(EngineEvent(0, 0, "a", (0,), ("a",), alike, None, "length", None))
    assert body(piece)["top_logprobs"] == [{"a": -3.0, "\ufffd": -0.5, "b": -2.0}]
    by_id = Choice(plan(TokenizedPrompt((0,), ()), logprobs=3), 0, TokenNames(NAMES.vocabulary, True), [])
    piece = by_id.push(EngineEvent(0, 0, "a", (0,), ("a",), alike, None, "length", None))
    assert body(piece)["top_logprobs"] == [{"token_id:0": -3.0, "token_id:4": -0.5, "token_id:5": -1.5,
                                            "token_id:1": -2.0}]


@given(st.lists(st.sampled_from([(0, "a"), (1, "b"), (2, " c"), (3, "de"), (4, ""), (EOS, "")]), min_size=1),
       st.data())
def test_pieces_join_to_the_unstreamed_choice(tokens: list[tuple[int, str]], data: st.DataObject) -> None:
    ids, texts = [t for t, _ in tokens], [x for _, x in tokens]
    whole = "".join(texts)
    cut = data.draw(st.integers(0, len(whole)))
    at_once = Choice(plan(TokenizedPrompt((0,), ())), 0, NAMES, [])
    want = at_once.push(event(ids, texts, whole[:cut], "stop", "x"))
    bounds = sorted({0, len(ids), *data.draw(st.lists(st.integers(0, len(ids)), max_size=4))})
    streamed, pieces, shown = Choice(plan(TokenizedPrompt((0,), ())), 0, NAMES, []), [], 0
    for start, end in itertools.pairwise(bounds):
        last = end == len(ids)
        safe = cut if last else min(cut, data.draw(st.integers(shown, max(shown, len("".join(texts[:end]))))))
        pieces.append(streamed.push(event(ids[start:end], texts[start:end], whole[shown:safe],
                                          "stop" if last else None, "x" if last else None)))
        shown = safe
    got = join_pieces(pieces)
    assert (got.text, got.token_ids, got.finish_reason) == (want.text, want.token_ids, want.finish_reason)
    assert body(got) == body(want)
    offsets = body(got)["text_offset"]
    assert isinstance(offsets, list)
    for (_, text), offset in zip(tokens, offsets, strict=True):
        assert offset == len(got.text) or got.text[offset:].startswith(text)

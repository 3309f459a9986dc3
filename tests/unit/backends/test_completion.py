"""The text of a completion never has to be taken back, and stops where it should."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.llama_vllm.completion import CompletionText, longest_overlap
from backends.llama_vllm.sampling import Sampling
from backends.text import PieceDecoder, TokenTable

END = 256


class Spelling:
    """A table whose tokens are the given strings or bytes, in order; "<end>" is special."""

    def __init__(self, *tokens: str | bytes) -> None:
        self.bytes = [token if isinstance(token, bytes) else token.encode() for token in tokens]
        special = frozenset(place for place, token in enumerate(tokens) if token == "<end>")
        alone = [whole(data) for data in self.bytes]
        hidden = ["" if place in special else text for place, text in enumerate(alone)]
        self.table = TokenTable(self.bytes, special, alone, hidden)

    def run(self, sampling: Sampling, stopped_by_last: bool = False) -> tuple[list[str], str | None, list[int]]:
        """Generates the tokens in order, one a step: what each step showed, the stop string, the tokens counted."""
        completion = CompletionText(self.table, sampling)
        shown, counted = [], []
        last = len(self.bytes) - 1
        for token_id in range(len(self.bytes)):
            stop = completion.update([token_id], stopped_by_last and token_id == last)
            finished = stop is not None or token_id == last
            news = completion.take(finished)
            shown.append(news.text)
            counted += news.token_ids
            if finished:
                return shown, stop, counted
        raise AssertionError("nothing to generate")


def whole(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def stopping(*stops: str, max_tokens: int = 100, **others: bool | int) -> Sampling:
    return Sampling(stop=stops, max_tokens=max_tokens, **others)  # type: ignore[arg-type]


class TestStopStrings:
    def test_are_cut_off_with_all_that_follows_in_the_token(self) -> None:
        assert Spelling("one", " two stop three").run(stopping("stop")) == (["one", " two "], "stop", [0, 1])

    def test_spread_over_tokens_are_never_shown_in_part(self) -> None:
        assert Spelling("a", " I", " J", " K L").run(stopping(" I J K L")) == (
            ["a", "", "", ""],
            " I J K L",
            [0, 1, 2, 3],
        )

    def test_that_do_not_complete_are_shown_when_that_is_certain(self) -> None:
        assert Spelling("a", " I", " J", "!", "b").run(stopping(" I J K L")) == (
            ["a", "", "", " I J!", "b"],
            None,
            [0, 1, 2, 3, 4],
        )

    def test_that_do_not_complete_are_shown_at_the_end(self) -> None:
        assert Spelling("a", " I", " J").run(stopping(" I J K L")) == (["a", "", " I J"], None, [0, 1, 2])

    def test_hold_back_no_more_than_they_must(self) -> None:
        shown, _, _ = Spelling("aaaaaaaa ab", "x").run(stopping("abc"))
        assert shown == ["aaaaaaaa ", "abx"]

    def test_hold_back_what_a_restart_inside_the_match_needs(self) -> None:
        assert Spelling("a", "a", "a", "b").run(stopping("aab")) == (["", "", "a", ""], "aab", [0, 1, 2, 3])

    def test_that_end_first_win(self) -> None:
        assert Spelling("x abcdef").run(stopping("abcdef", "bcd"))[:2] == (["x a"], "bcd")

    def test_that_end_together_go_by_their_order(self) -> None:
        assert Spelling("xabc").run(stopping("bc", "abc"))[:2] == (["xa"], "bc")
        assert Spelling("xabc").run(stopping("abc", "bc"))[:2] == (["x"], "abc")

    def test_overlapping_hold_back_the_longest(self) -> None:
        shown, stop, _ = Spelling("1ab", "c2").run(stopping("bX", "abcd"))
        assert (shown, stop) == (["1", "abc2"], None)

    def test_completed_by_the_last_token_count(self) -> None:
        assert Spelling("a", "st", "op").run(stopping("stop", max_tokens=3)) == (["a", "", ""], "stop", [0, 1, 2])

    def test_count_across_a_split_character(self) -> None:
        data = "é".encode()
        assert Spelling("a", data[:1], data[1:], "b").run(stopping("éb")) == (["a", "", "", ""], "éb", [0, 1, 2, 3])

    def test_can_be_a_replacement_character(self) -> None:
        assert Spelling("a", b"\xff", "b").run(stopping("�")) == (["a", ""], "�", [0, 1])

    def test_can_be_completed_by_the_character_that_the_end_leaves_incomplete(self) -> None:
        assert Spelling("a", b"\xc3").run(stopping("a�", max_tokens=2)) == (["", ""], "a�", [0, 1])

    def test_can_be_kept_in_the_text(self) -> None:
        sampling = stopping(" I J", include_stop_str_in_output=True)
        assert Spelling("a", " I", " J K").run(sampling) == (["a", " I", " J"], " I J", [0, 1, 2])

    def test_ignore_the_tokens_of_a_step_that_follow(self) -> None:
        spelling = Spelling("a", "stop", "b", "c")
        completion = CompletionText(spelling.table, stopping("stop"))
        assert completion.update([0, 1, 2, 3], stop_terminated=False) == "stop"
        assert completion.num_output_tokens() == 2
        assert completion.take(finished=True).token_ids == [0, 1]


class TestMinTokens:
    def test_a_stop_string_inside_the_first_tokens_does_not_count(self) -> None:
        assert Spelling("stop", "a", "b").run(stopping("stop", min_tokens=1))[:2] == (["stop", "a", "b"], None)

    def test_a_stop_string_that_ends_after_them_counts(self) -> None:
        assert Spelling("st", "op", "b").run(stopping("stop", min_tokens=1))[:2] == (["", ""], "stop")

    def test_one_that_did_not_count_is_not_found_later(self) -> None:
        shown, stop, _ = Spelling("stop", "st", "op").run(stopping("stop", min_tokens=2))
        assert (shown, stop) == (["stop", "", ""], "stop")

    def test_a_token_exactly_at_the_bound_is_among_them(self) -> None:
        assert Spelling("a", "stop", "b").run(stopping("stop", min_tokens=2))[1] is None
        assert Spelling("a", "stop", "b").run(stopping("stop", min_tokens=1))[1] == "stop"


class TestTheTokenThatEnds:
    def test_adds_no_text(self) -> None:
        assert Spelling("a", " the").run(stopping(), stopped_by_last=True) == (["a", ""], None, [0, 1])

    def test_adds_its_text_when_that_is_asked_for(self) -> None:
        sampling = stopping(include_stop_str_in_output=True)
        assert Spelling("a", " the").run(sampling, stopped_by_last=True)[0] == ["a", " the"]

    def test_is_hidden_when_special_even_then(self) -> None:
        sampling = stopping(include_stop_str_in_output=True)
        assert Spelling("a", "<end>").run(sampling, stopped_by_last=True)[0] == ["a", ""]

    def test_is_shown_when_special_tokens_are(self) -> None:
        sampling = stopping(include_stop_str_in_output=True, skip_special_tokens=False)
        assert Spelling("a", "<end>").run(sampling, stopped_by_last=True)[0] == ["a", "<end>"]

    def test_completes_what_was_held_back(self) -> None:
        assert Spelling("a st", "<end>").run(stopping("stop"), stopped_by_last=True)[0] == ["a ", "st"]

    def test_closes_an_incomplete_character(self) -> None:
        assert Spelling("a", b"\xc3", "<end>").run(stopping(), stopped_by_last=True)[0] == ["a", "", "�"]


class TestTokenTexts:
    def test_are_there_only_when_wanted(self) -> None:
        spelling = Spelling("a", "b")
        for logprobs, texts in ((None, []), (0, ["a", "b"])):
            completion = CompletionText(spelling.table, Sampling(logprobs=logprobs, max_tokens=9))
            completion.update([0, 1], stop_terminated=False)
            assert completion.take(finished=False).token_texts == texts

    def test_join_to_the_text_before_it_was_cut(self) -> None:
        spelling = Spelling("a", "bstopc")
        completion = CompletionText(spelling.table, stopping("stop", logprobs=0))
        completion.update([0, 1], stop_terminated=False)
        news = completion.take(finished=True)
        assert (news.text, news.token_texts) == ("ab", ["a", "bstopc"])

    def test_close_an_incomplete_character_in_the_last_token(self) -> None:
        spelling = Spelling("a", b"\xc3")
        completion = CompletionText(spelling.table, Sampling(logprobs=0, max_tokens=2))
        completion.update([0], stop_terminated=False)
        completion.update([1], stop_terminated=False)
        news = completion.take(finished=True)
        assert (news.text, news.token_texts) == ("a�", ["a", "�"])


letters = st.text("ab", min_size=1, max_size=4)


@given(
    pieces=st.lists(letters, min_size=1, max_size=12),
    stops=st.lists(letters, min_size=1, max_size=4),
    floor=st.integers(0, 5),
)
def test_steps_add_up_to_the_text_up_to_the_first_stop_string(
    pieces: Sequence[str], stops: list[str], floor: int
) -> None:
    sampling = stopping(*stops, min_tokens=floor)
    shown, stop, counted = Spelling(*pieces).run(sampling)
    assert ("".join(shown), stop, len(counted)) == expected(pieces, stops, floor)


@given(pieces=st.lists(letters, min_size=1, max_size=12), stops=st.lists(letters, min_size=1, max_size=4))
def test_no_step_shows_what_the_next_takes_back(pieces: Sequence[str], stops: list[str]) -> None:
    shown, _, _ = Spelling(*pieces).run(stopping(*stops))
    text, _, _ = expected(pieces, stops, 0)
    assert text.startswith("".join(shown[:-1]))


def expected(pieces: Sequence[str], stops: list[str], floor: int) -> tuple[str, str | None, int]:
    """By the definition: the first stop string that ends in a token after the first `floor`."""
    text = ""
    for count, piece in enumerate(pieces, 1):
        before, text = len(text), text + piece
        if count <= floor:
            continue
        for end in range(before + 1, len(text) + 1):
            for stop in stops:
                if text[:end].endswith(stop):
                    return text[: end - len(stop)], stop, count
    return text, None, len(pieces)


@pytest.mark.parametrize(
    ("text", "stops", "length"),
    [
        ("", ["a"], 0),
        ("xa", ["ab"], 1),
        ("xab", ["ab"], 0),
        ("aa", ["aab"], 2),
        ("aaa", ["aab"], 2),
        ("ab", ["bc", "abc"], 2),
    ],
)
def test_longest_overlap(text: str, stops: list[str], length: int) -> None:
    assert longest_overlap(text, stops) == length


@given(ids=st.lists(st.integers(0, 255), min_size=1, max_size=20))
def test_without_stop_strings_the_text_is_the_decoding(byte_table: TokenTable, ids: list[int]) -> None:
    completion = CompletionText(byte_table, Sampling(max_tokens=len(ids)))
    shown = []
    for token_id in ids:
        completion.update([token_id], stop_terminated=False)
        shown.append(completion.take(finished=False).text)
    decoder = PieceDecoder(byte_table)
    assert "".join(shown) == "".join(map(decoder.push, ids)) + decoder.finish()

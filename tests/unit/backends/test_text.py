"""Decoding token by token gives the text that decoding everything gives, wherever the cuts fall."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from backends.text import PieceDecoder, TokenTable, UnsupportedTokenizer, pieces

END = 256
ids = st.lists(st.integers(0, 128_255), max_size=40)


class TestPieces:
    @settings(max_examples=400)
    @given(ids=ids, skip=st.booleans())
    def test_joined_are_what_hugging_face_decodes(
        self, llama_3: Tokenizer, llama_3_table: TokenTable, ids: list[int], skip: bool
    ) -> None:
        expected = llama_3.decode(ids, skip_special_tokens=skip)
        assert "".join(pieces(llama_3_table, ids, skip)) == expected

    @settings(max_examples=400)
    @given(data=st.binary(max_size=24))
    def test_bytes_that_are_no_text_become_replacement_characters_as_in_python(
        self, byte_table: TokenTable, data: bytes
    ) -> None:
        assert "".join(pieces(byte_table, data)) == data.decode("utf-8", "replace")

    @given(text=st.text(max_size=40))
    def test_of_an_encoded_text_are_the_text(self, llama_3: Tokenizer, llama_3_table: TokenTable, text: str) -> None:
        assert "".join(pieces(llama_3_table, llama_3.encode(text).ids, skip_special_tokens=False)) == text

    def test_of_a_split_character_belong_to_the_token_that_completes_it(self, byte_table: TokenTable) -> None:
        assert pieces(byte_table, "a🙂b".encode()) == ["a", "", "", "", "🙂", "b"]

    def test_of_a_character_that_stays_incomplete_end_in_a_replacement(self, byte_table: TokenTable) -> None:
        assert pieces(byte_table, "a🙂".encode()[:-1]) == ["a", "", "", "\N{REPLACEMENT CHARACTER}"]

    def test_of_a_hidden_special_token_inside_a_character_leave_it_whole(self, byte_table: TokenTable) -> None:
        first, second = "é".encode()
        assert pieces(byte_table, [first, END, second]) == ["", "", "é"]

    def test_of_a_visible_special_token_inside_a_character_break_it(self, byte_table: TokenTable) -> None:
        first, second = "é".encode()
        assert pieces(byte_table, [first, END, second], skip_special_tokens=False) == ["", "�<end>", "�"]

    def test_of_an_id_that_the_tokenizer_lacks_are_empty(self, byte_table: TokenTable) -> None:
        assert pieces(byte_table, [ord("a"), 259, ord("b")]) == ["a", "", "b"]

    def test_of_nothing_are_none(self, byte_table: TokenTable) -> None:
        assert pieces(byte_table, []) == []


def test_finishing_twice_adds_nothing_more(byte_table: TokenTable) -> None:
    decoder = PieceDecoder(byte_table)
    decoder.push("é".encode()[0])
    assert (decoder.finish(), decoder.finish()) == ("�", "")


class TestTokenTable:
    def test_knows_the_bytes_of_every_llama_3_token(self, llama_3: Tokenizer, llama_3_table: TokenTable) -> None:
        assert len(llama_3_table.bytes) == 128_256
        assert all(llama_3_table.bytes)
        assert llama_3_table.bytes[128_000] == b"<|begin_of_text|>"
        assert llama_3_table.special_ids == frozenset(range(128_000, 128_256))

    def test_refuses_a_tokenizer_that_is_not_byte_level(self) -> None:
        tokenizer = Tokenizer(models.BPE({"▁a": 0}, []))
        tokenizer.decoder = decoders.Metaspace()
        with pytest.raises(UnsupportedTokenizer, match="byte-level"):
            TokenTable.of(tokenizer, 1)

    def test_refuses_tokens_outside_the_byte_alphabet(self) -> None:
        tokenizer = Tokenizer(models.BPE({"▁a": 0}, []))
        tokenizer.decoder = decoders.ByteLevel()
        with pytest.raises(UnsupportedTokenizer, match="▁"):
            TokenTable.of(tokenizer, 1)

    def test_refuses_a_tokenizer_that_rewrites_text(self) -> None:
        tokenizer = Tokenizer(models.BPE({"a": 0}, []))
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.normalizer = normalizers.NFKC()
        with pytest.raises(UnsupportedTokenizer, match="rewrites"):
            TokenTable.of(tokenizer, 1)

    def test_refuses_a_tokenizer_larger_than_the_model(self, llama_3: Tokenizer) -> None:
        with pytest.raises(UnsupportedTokenizer, match="128000"):
            TokenTable.of(llama_3, 128_000)

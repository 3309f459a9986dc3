"""What callers get of the engine's outputs, through vLLM's own OutputProcessor: order, pace, endings, nothing left."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.outputs import LogprobsLists, LogprobsTensors

from backends.llama_vllm.activations import ActivationRequest
from backends.llama_vllm.choice import ChoiceState, register, vllm_params
from backends.llama_vllm.delivery import Delivery, Failure
from backends.llama_vllm.positions import Run, Selection
from backends.llama_vllm.recording import Recording
from backends.llama_vllm.sampling import Sampling
from backends.llama_vllm.slab import Layout, SlabWriter
from backends.llama_vllm.slab_pool import SlabPool
from backends.text import TokenTable

VOCAB = 260


class Recorder:
    """A caller that remembers its responses, strings decoded."""

    name = ""

    def __init__(self) -> None:
        self.responses: list[dict[str, Any]] = []
        self.finals = 0
        self.failure: tuple[Failure, str] | None = None

    def send(self, message: dict[str, Any], final: bool) -> None:
        assert self.finals == 0
        self.finals += final
        self.responses.append({name: plain(array) for name, array in message.items()})

    def fail(self, failure: Failure, message: str) -> None:
        assert self.finals == 0
        self.finals += 1
        self.failure = (failure, message)

    def cancelled(self) -> bool:
        return False

    def text(self, index: int = 0) -> str:
        return "".join(response.get("text", "") for response in self.responses if response["index"] == index)


def plain(array: np.ndarray) -> Any:
    values = [item.decode() if isinstance(item, bytes) else item for item in array.tolist()]
    return values[0] if len(values) == 1 and not isinstance(values[0], list) else values


class Bench:
    """A request of the given sampling whose engine steps the test makes up."""

    def __init__(
        self,
        table: TokenTable,
        sampling: Sampling,
        stream: bool,
        pace: float = 0.0,
        prompt: int = 3,
        recording: Recording | None = None,
    ) -> None:
        self.caller = Recorder()
        self.processor = OutputProcessor(None, log_stats=False)
        self.closed: list[Delivery] = []
        self._large = ThreadPoolExecutor(1)
        self.delivery = Delivery(
            self.caller, sampling, prompt, stream, lambda: pace, self._large, self.closed.append, recording
        )
        for index in range(sampling.n):
            request = EngineCoreRequest(
                f"{index}-internal", [1] * prompt, None, vllm_params(sampling, index), None, 0.0, None, None, None,
                external_req_id=f"{index}",
            )  # fmt: skip
            state = ChoiceState(request, index, sampling, table, self.delivery.changed, self._died)
            self.delivery.choices.append(state)
            register(self.processor, state)

    def _died(self, error: Exception) -> None:
        self.delivery.fail(Failure.UNAVAILABLE, str(error))

    def step(self, text: bytes, index: int = 0, **fields: Any) -> list[str]:
        """One engine step in which a choice gets these bytes as tokens: the requests that the engine is to abort."""
        output = EngineCoreOutput(f"{index}-internal", list(text), **fields)
        return self.processor.process_outputs([output]).reqs_to_abort

    async def settle(self, seconds: float = 0.0) -> None:
        await asyncio.sleep(seconds)
        for _ in range(5):
            await asyncio.sleep(0)


def files(folder: Path) -> list[str]:
    return os.listdir(folder)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def generated(rows: int, k: int) -> LogprobsLists:
    return LogprobsLists(
        np.zeros((rows, k + 1), np.int32), np.zeros((rows, k + 1), np.float32), np.ones(rows, np.int64)
    )


def whole(rows: int) -> LogprobsLists:
    ids = np.zeros((rows, 1), np.int32)
    return LogprobsLists(ids, np.zeros((rows, 1 + VOCAB), np.float32), np.ones(rows, np.int64))


def of_prompt(rows: int, k: int) -> LogprobsTensors:
    ids = torch.zeros((rows, k + 1), dtype=torch.int32)
    return LogprobsTensors(ids, torch.zeros((rows, k + 1)), torch.ones(rows, dtype=torch.int32))


class TestStreams:
    def test_send_the_first_token_at_once_and_then_what_piled_up(self, byte_table: TokenTable) -> None:
        async def test() -> None:
            bench = Bench(byte_table, Sampling(max_tokens=9), stream=True, pace=0.05)
            bench.step(b"a")
            await bench.settle()
            assert [response["text"] for response in bench.caller.responses] == ["a"]
            bench.step(b"b")
            bench.step(b"c")
            await bench.settle()
            assert len(bench.caller.responses) == 1
            await bench.settle(0.06)
            assert [response["text"] for response in bench.caller.responses] == ["a", "bc"]
            assert bench.caller.responses[1]["token_ids"] == [98, 99]

        run(test)

    def test_send_the_end_at_once_with_what_piled_up(self, byte_table: TokenTable) -> None:
        async def test() -> None:
            bench = Bench(byte_table, Sampling(max_tokens=4, n=2), stream=True, pace=60)
            bench.step(b"a")
            await bench.settle()
            bench.step(b"b")
            bench.step(b"c", finish_reason=FinishReason.LENGTH)
            await bench.settle()
            assert [response["text"] for response in bench.caller.responses] == ["a"]
            bench.step(b"x", index=1, finish_reason=FinishReason.LENGTH)
            await bench.settle()
            assert [response["text"] for response in bench.caller.responses] == ["a", "bc", "x"]
            assert (bench.caller.finals, bench.closed) == (1, [bench.delivery])

        run(test)

    def test_end_with_the_reason_in_the_last_response(self, byte_table: TokenTable) -> None:
        async def test() -> None:
            bench = Bench(byte_table, Sampling(max_tokens=9), stream=True)
            bench.step(b"a")
            await bench.settle()
            bench.step(bytes([98]), finish_reason=FinishReason.STOP, stop_reason=98)
            await bench.settle()
            last = bench.caller.responses[-1]
            assert (last["finish_reason"], last["stop_reason"], last["token_ids"]) == ("stop", "98", 98)
            assert (bench.caller.text(), bench.caller.finals) == ("a", 1)
            assert bench.closed == [bench.delivery]
            assert bench.processor.request_states == {}

        run(test)

    def test_stop_the_engine_at_a_stop_string(self, byte_table: TokenTable) -> None:
        async def test() -> None:
            bench = Bench(byte_table, Sampling(max_tokens=9, stop=("bc",), logprobs=0), stream=True)
            assert bench.step(b"a", new_logprobs=generated(1, 0)) == []
            assert bench.step(b"b", new_logprobs=generated(1, 0)) == []
            assert bench.step(b"cd", new_logprobs=generated(2, 0)) == ["0-internal"]
            await bench.settle()
            assert bench.caller.text() == "a"
            last = bench.caller.responses[-1]
            assert json.loads(last["stop_reason"]) == "bc"
            assert last["token_texts"] == ["a", "b", "c"]
            assert len(last["logprobs"]) == 3
            assert bench.processor.request_states == {}

        run(test)

    def test_hold_other_choices_until_the_prompts_rows_are_sent(self, byte_table: TokenTable) -> None:
        async def test() -> None:
            bench = Bench(byte_table, Sampling(max_tokens=9, n=2, prompt_logprobs=1), stream=True)
            bench.step(b"x", index=1)
            await bench.settle()
            assert bench.caller.responses == []
            bench.step(b"a", new_prompt_logprobs_tensors=of_prompt(2, 1))
            await bench.settle()
            assert [sorted(response) for response in bench.caller.responses] == [
                ["index", "prompt_logprob_ids", "prompt_logprob_ranks", "prompt_logprobs"],
                ["index", "text", "token_ids"],
                ["index", "text", "token_ids"],
            ]
            assert bench.caller.text(1) == "x"

        run(test)

    def test_of_several_choices_close_with_the_last(self, byte_table: TokenTable) -> None:
        async def test() -> None:
            bench = Bench(byte_table, Sampling(max_tokens=1, n=2), stream=True)
            bench.step(b"a", index=1, finish_reason=FinishReason.LENGTH)
            await bench.settle()
            assert bench.caller.finals == 0
            bench.step(b"b", index=0, finish_reason=FinishReason.LENGTH)
            await bench.settle()
            assert (bench.caller.finals, bench.caller.text(0), bench.caller.text(1)) == (1, "b", "a")

        run(test)


class TestWholeAnswers:
    def test_come_once_per_choice_as_each_ends(self, byte_table: TokenTable) -> None:
        async def test() -> None:
            bench = Bench(byte_table, Sampling(max_tokens=2, n=2), stream=False)
            bench.step(b"a", index=0)
            bench.step(b"b", index=1, finish_reason=FinishReason.STOP)
            await bench.settle()
            assert [(response["index"], response["finish_reason"]) for response in bench.caller.responses] == [
                (1, "stop")
            ]
            bench.step(b"c", index=0, finish_reason=FinishReason.LENGTH)
            await bench.settle()
            assert [response["text"] for response in bench.caller.responses if response["index"] == 0] == ["ac"]

        run(test)

    def test_send_the_prompts_rows_before_the_end(self, byte_table: TokenTable) -> None:
        async def test() -> None:
            bench = Bench(byte_table, Sampling(max_tokens=2, prompt_logprobs=0), stream=False)
            bench.step(b"a", new_prompt_logprobs_tensors=of_prompt(2, 0))
            await bench.settle()
            assert [sorted(response) for response in bench.caller.responses] == [
                ["index", "prompt_logprob_ids", "prompt_logprob_ranks", "prompt_logprobs"]
            ]

        run(test)

    def test_keep_no_more_whole_vocabulary_rows_than_fit_one_response(
        self, byte_table: TokenTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("backends.llama_vllm.outputs.LARGEST_BYTES", 2 * VOCAB * 4)

        async def test() -> None:
            bench = Bench(byte_table, Sampling(max_tokens=5, logprobs=-1), stream=False)
            for _ in range(4):
                bench.step(b"a", new_logprobs=whole(1))
                await bench.settle()
            bench.step(b"a", new_logprobs=whole(1), finish_reason=FinishReason.LENGTH)
            await bench.settle()
            assert [len(response["logprobs"]) for response in bench.caller.responses[:2]] == [2, 2]
            assert bench.caller.text() == "aaaaa"

        run(test)

    def test_of_a_prompt_of_one_token_wait_for_no_rows(self, byte_table: TokenTable) -> None:
        async def test() -> None:
            bench = Bench(byte_table, Sampling(max_tokens=1, prompt_logprobs=-1), stream=False, prompt=1)
            bench.step(b"a", finish_reason=FinishReason.LENGTH)
            await bench.settle()
            assert bench.caller.text() == "a"

        run(test)


class TestFailures:
    def test_of_the_engine_reach_the_caller_once(self, byte_table: TokenTable) -> None:
        async def test() -> None:
            bench = Bench(byte_table, Sampling(max_tokens=2, n=2), stream=True)
            bench.processor.propagate_error(RuntimeError("gone"))
            bench.step(b"a")
            await bench.settle()
            assert bench.caller.failure == (Failure.UNAVAILABLE, "gone")
            assert bench.caller.responses == []

        run(test)

    def test_of_one_choice_end_the_request(self, byte_table: TokenTable) -> None:
        async def test() -> None:
            bench = Bench(byte_table, Sampling(max_tokens=2), stream=False)
            bench.step(b"", finish_reason=FinishReason.ERROR)
            await bench.settle()
            assert bench.caller.failure is not None
            assert bench.caller.failure[0] is Failure.INTERNAL

        run(test)

    def test_leave_nothing_in_the_engine_after_an_abort(self, byte_table: TokenTable) -> None:
        async def test() -> None:
            bench = Bench(byte_table, Sampling(max_tokens=2), stream=True)
            bench.delivery.fail(Failure.CANCELLED, "the caller went away")
            assert bench.processor.abort_requests(["0-internal"], internal=True) == ["0-internal"]
            await bench.settle()
            assert bench.processor.request_states == {}
            assert bench.processor.external_req_ids == {}
            assert bench.caller.responses == []
            assert bench.caller.failure == (Failure.CANCELLED, "the caller went away")

        run(test)

    @pytest.mark.parametrize("stream", [True, False])
    def test_tell_who_cancels_the_tokens_that_were_not_sent(self, byte_table: TokenTable, stream: bool) -> None:
        async def test() -> None:
            bench = Bench(byte_table, Sampling(max_tokens=9, n=3, temperature=1), stream=stream, pace=60)
            bench.step(b"ab")
            bench.step(b"c", 1, finish_reason=FinishReason.STOP)
            await bench.settle()
            sent = len(bench.caller.responses)
            assert sent == 2 if stream else 1
            bench.step(b"de")
            bench.delivery.cancel()
            unsent = {"index": 0, "token_ids": [*b"de"] if stream else [*b"abde"]}
            assert bench.caller.responses[sent:] == [unsent]
            assert bench.caller.failure == (Failure.CANCELLED, "the caller cancelled it")
            bench.delivery.cancel()
            assert bench.caller.finals == 1

        run(test)

    def test_while_a_large_answer_is_sent_end_it(self, byte_table: TokenTable, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("backends.llama_vllm.delivery.LARGE_BYTES", 0)

        async def test() -> None:
            bench = Bench(byte_table, Sampling(max_tokens=2), stream=True)
            bench.step(b"a")
            await bench.settle(0.05)
            assert bench.caller.text() == "a"
            bench.delivery.fail(Failure.CANCELLED, "away")
            assert bench.caller.finals == 1

        run(test)

    def test_told_twice_while_a_large_answer_is_sent_tell_the_rest_all_the_same(
        self, byte_table: TokenTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("backends.llama_vllm.delivery.LARGE_BYTES", 0)

        async def test() -> None:
            bench = Bench(byte_table, Sampling(max_tokens=9), stream=True)
            bench.step(b"a")
            await asyncio.sleep(0)  # a thread sends it now
            bench.step(b"bc")
            bench.delivery.cancel()
            bench.delivery.cancel()
            await bench.settle(0.05)
            assert [response["token_ids"] for response in bench.caller.responses] == [ord("a"), [*b"bc"]]
            assert bench.caller.failure == (Failure.CANCELLED, "the caller cancelled it")

        run(test)


class TestActivations:
    """Of a prompt of 3 tokens at 2 points of a model with 4 numbers, recorded by a test that plays the worker."""

    LAYOUT = Layout(rows=5, layers=2, hidden=4, dtype="bfloat16")

    def recording(self, folder: Path, choices: int = 1, capacity: int = 10_000) -> Recording:
        wanted = ActivationRequest((0, 1), Selection("all", 3, 3), self.LAYOUT)
        return Recording(wanted, choices, folder, "1", SlabPool(capacity))

    def writer(self, recording: Recording, index: int = 0) -> SlabWriter:
        told = ActivationRequest.of_extra_args(recording.extra_args(index))
        assert told is not None
        return SlabWriter(told[0], told[1].layout)

    def write(self, recording: Recording, positions: range, index: int = 0) -> torch.Tensor:
        rows = torch.randn(len(positions), 2, 4).to(torch.bfloat16)
        writer = self.writer(recording, index)
        writer.write(Run(positions[0], positions[0], len(positions)), rows)
        writer.close()
        return rows.transpose(0, 1)

    def test_come_with_the_last_response_of_their_choice(self, byte_table: TokenTable, tmp_path: Path) -> None:
        async def test() -> None:
            recording = self.recording(tmp_path, choices=2)
            assert await recording.open()
            bench = Bench(byte_table, Sampling(max_tokens=3, n=2), stream=True, recording=recording)
            bench.step(b"a")
            bench.step(b"b", index=1)
            await bench.settle(0.05)
            assert not any("activations" in response for response in bench.caller.responses)
            expected = self.write(recording, range(4))
            bench.step(b"c", finish_reason=FinishReason.LENGTH)
            await bench.settle(0.1)
            last = bench.caller.responses[-1]
            assert (last["index"], last["finish_reason"]) == (0, "length")
            assert last["activations"] == expected.tolist()
            assert last["activation_rows"] == [0, 1, 2, 3]
            self.write(recording, range(3), index=1)
            bench.step(b"", index=1, finish_reason=FinishReason.STOP)
            await bench.settle(0.1)
            assert (bench.caller.finals, bench.caller.responses[-1]["activation_rows"]) == (1, [0, 1, 2])
            recording.close()
            await bench.settle(0.1)
            assert files(tmp_path) == []

        run(test)

    def test_are_waited_for(self, byte_table: TokenTable, tmp_path: Path) -> None:
        async def test() -> None:
            recording = self.recording(tmp_path)
            await recording.open()
            bench = Bench(byte_table, Sampling(max_tokens=3), stream=False, recording=recording)
            bench.step(b"a", finish_reason=FinishReason.LENGTH)
            await bench.settle(0.1)
            assert bench.caller.finals == 0
            self.write(recording, range(3))
            await bench.settle(0.1)
            assert bench.caller.finals == 1
            assert bench.caller.failure is None

        run(test)

    def test_that_do_not_come_fail_the_request(
        self, byte_table: TokenTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("backends.llama_vllm.recording.ARRIVAL_SECONDS", 0.05)

        async def test() -> None:
            recording = self.recording(tmp_path)
            await recording.open()
            self.write(recording, range(2))
            bench = Bench(byte_table, Sampling(max_tokens=3), stream=False, recording=recording)
            bench.step(b"a", finish_reason=FinishReason.LENGTH)
            await bench.settle(0.2)
            assert bench.caller.failure == (Failure.INTERNAL, "the activations of position 2 did not arrive")
            assert bench.caller.responses == []

        run(test)

    def test_that_the_worker_gave_up_fail_the_request_at_once(self, byte_table: TokenTable, tmp_path: Path) -> None:
        async def test() -> None:
            recording = self.recording(tmp_path)
            await recording.open()
            self.write(recording, range(3))
            writer = self.writer(recording)
            writer.fail("broken")
            bench = Bench(byte_table, Sampling(max_tokens=3), stream=False, recording=recording)
            bench.step(b"a", finish_reason=FinishReason.LENGTH)
            await bench.settle(0.1)
            assert bench.caller.failure == (Failure.INTERNAL, "the activations could not be captured: broken")

        run(test)

    def test_that_are_large_come_in_parts(
        self, byte_table: TokenTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("backends.llama_vllm.recording.PART_BYTES", 2 * self.LAYOUT.row_bytes)

        async def test() -> None:
            recording = self.recording(tmp_path)
            await recording.open()
            expected = self.write(recording, range(5))
            bench = Bench(byte_table, Sampling(max_tokens=3), stream=False, recording=recording)
            bench.step(b"abc", finish_reason=FinishReason.LENGTH)
            await bench.settle(0.1)
            assert [response["activation_rows"] for response in bench.caller.responses] == [[0, 1], [2, 3], 4]
            assert [response.get("text") for response in bench.caller.responses] == [None, None, "abc"]
            parts = [torch.tensor(response["activations"]) for response in bench.caller.responses]
            assert torch.equal(torch.cat(parts, dim=1), expected.float())

        run(test)

    def test_hold_no_memory_for_a_caller_that_left_while_it_waited(self, tmp_path: Path) -> None:
        async def test() -> None:
            pool = SlabPool(self.LAYOUT.size)
            wanted = ActivationRequest((0, 1), Selection("all", 3, 3), self.LAYOUT)
            first, second = (Recording(wanted, 1, tmp_path, name, pool) for name in "ab")
            assert await first.open()
            waiting = asyncio.create_task(second.open())
            await asyncio.sleep(0)
            assert pool.waiting == 1
            second.close()
            assert await waiting is False
            third = asyncio.create_task(Recording(wanted, 1, tmp_path, "c", pool).open())
            await asyncio.sleep(0)
            first.close()
            first.close()
            assert await third is True
            assert (pool.used, pool.waiting, len(files(tmp_path))) == (self.LAYOUT.size, 0, 1)

        run(test)

    def test_take_no_memory_for_a_caller_that_left_before_its_turn(self, tmp_path: Path) -> None:
        async def test() -> None:
            recording = self.recording(tmp_path)
            recording.close()
            assert await recording.open() is False
            assert (recording._pool.used, files(tmp_path)) == (0, [])

        run(test)

    def test_hold_no_memory_for_a_caller_that_left_while_slabs_were_made(self, tmp_path: Path) -> None:
        async def test() -> None:
            recording = self.recording(tmp_path, choices=3)
            opening = asyncio.create_task(recording.open())
            await asyncio.sleep(0)
            recording.close()
            assert await opening is False
            await asyncio.sleep(0.1)
            assert (recording._pool.used, files(tmp_path)) == (0, [])

        run(test)

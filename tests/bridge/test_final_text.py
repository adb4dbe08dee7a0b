"""An offline answer's text, made at once, is what vLLM makes of it token by token."""

from __future__ import annotations

import json
import warnings
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE
from vllm.sampling_params import RequestOutputKind, SamplingParams

from weir_agent import sample_model
from weir_agent.vllm_bridge.final_text import FinalText

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@cache
def of_bytes() -> tuple[Tokenizer, int]:
    """One token a byte, as in GPT-2's and Llama 3's vocabularies; and the token of byte 0."""
    return Tokenizer.from_str(json.dumps(sample_model._tokenizer())), 0


@cache
def of_words() -> tuple[Tokenizer, int]:
    """Words that carry their space, and bytes for the rest, as in Llama 2's; and that of byte 0."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁the", "▁sea", "s", "▁", "é"]
    tokenizer = Tokenizer(BPE(vocab={word: n for n, word in enumerate(words)}, merges=[]))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    return tokenizer, 1


def ids(tokenizer: Tokenizer, *words: str) -> list[int]:
    found = [tokenizer.token_to_id(word) for word in words]
    return [token for token in found if token is not None]


TOKENIZERS = {"bytes": of_bytes, "words": of_words}


def token_by_token(tokenizer: Tokenizer, prompt: list[int], tokens: list[int]) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer
    request = SimpleNamespace(
        request_id="r", prompt_token_ids=prompt, sampling_params=SamplingParams(max_tokens=99)
    )
    found = FastIncrementalDetokenizer(SimpleNamespace(_tokenizer=tokenizer), request)
    found.update(tokens, stop_terminated=False)
    return str(found.output_text)


def at_once(
    tokenizer: Any,  # noqa: ANN401 - also one that counts
    prompt: list[int],
    tokens: list[int],
    finish_reason: str = "length",
    **params: Any,  # noqa: ANN401 - as SamplingParams has them
) -> str:
    sampling = SamplingParams(max_tokens=99, output_kind=RequestOutputKind.FINAL_ONLY, **params)
    final_text = FinalText(tokenizer)
    assert final_text.take_over(sampling)
    assert not sampling.detokenize
    choice = SimpleNamespace(token_ids=tokens, finish_reason=finish_reason, text="")
    final_text.fill_in(SimpleNamespace(prompt_token_ids=prompt, outputs=[choice]), sampling)
    return str(choice.text)


TEXTS = st.text(st.sampled_from("a é水🌊\n"), max_size=12)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(before=TEXTS, text=TEXTS, cut=st.integers(0, 3))
def test_it_is_the_text_of_token_by_token(kind: str, before: str, text: str, cut: int) -> None:
    """Also of answers that end in the middle of a character."""
    tokenizer, first = TOKENIZERS[kind]()
    prompt = [first + byte for byte in f"{before}a".encode()]
    tokens = [first + byte for byte in text.encode()]
    tokens = tokens[: len(tokens) - cut]
    assert at_once(tokenizer, prompt, tokens) == token_by_token(tokenizer, prompt, tokens)


@given(st.lists(st.integers(0, 400), max_size=40), st.lists(st.integers(0, 400), max_size=40))
def test_it_is_so_of_any_tokens_of_bytes(prompt: list[int], tokens: list[int]) -> None:
    tokenizer, _ = of_bytes()
    prompt = [*prompt, *b"a"]
    assert at_once(tokenizer, prompt, tokens) == token_by_token(tokenizer, prompt, tokens)


def test_the_first_space_of_an_answer_stays() -> None:
    words, _ = of_words()
    the, sea, end = ids(words, "▁the", "▁sea", "</s>")
    assert at_once(words, [the], [sea, the]) == " sea the"
    assert at_once(words, [the, *[end] * 9], [sea]) == " sea"  # looked for beyond what has no text
    assert at_once(words, [end] * 99, [sea]) == "sea"  # as at the beginning of a text


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("before", ["", "ab é"])
def test_a_character_that_the_prompt_begins_and_the_answer_completes_is_of_the_answer(
    kind: str, before: str
) -> None:
    """Online vLLM repeats the whole prompt before it then: that is no part of the answer."""
    tokenizer, first = TOKENIZERS[kind]()
    begun, rest = [*before.encode(), *"€".encode()[:2]], [*"€".encode()[2:], *b"d"]
    answer = at_once(tokenizer, [first + byte for byte in begun], [first + byte for byte in rest])
    assert answer == "€d"


def test_what_the_prompt_ends_with_is_no_part_of_the_answer() -> None:
    """Neither the sign for what is no character nor half of one that nothing completes."""
    assert at_once(of_bytes()[0], [*"ab\N{REPLACEMENT CHARACTER}".encode()], [*b"cd"]) == "cd"
    assert at_once(of_bytes()[0], [*b"ab", *"€".encode()[:2]], [*b"cd"]) == "cd"


def test_the_token_that_stopped_an_answer_is_no_text_unless_it_was_asked_for() -> None:
    hello = list(b"hello.")
    assert at_once(of_bytes()[0], [1], hello, "stop") == "hello"
    assert at_once(of_bytes()[0], [1], hello, "length") == "hello."
    assert at_once(of_bytes()[0], [1], hello, "stop", include_stop_str_in_output=True) == "hello."
    assert at_once(of_bytes()[0], [1], [], "stop") == ""


def test_special_tokens_are_left_out_unless_they_were_asked_for() -> None:
    (end,) = ids(of_bytes()[0], sample_model.END)
    assert at_once(of_bytes()[0], [1], [*b"a", end, *b"b"]) == "ab"
    assert at_once(of_bytes()[0], [1], [*b"a", end], skip_special_tokens=False) == "a<|end|>"


class Counting:
    """A tokenizer that counts what it decodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.decoded = 0

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        self.decoded += len(tokens)
        return self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("token", [0xC3, 258, 400])
def test_tokens_that_come_to_no_text_cost_no_more_than_others(token: int) -> None:
    """Token by token the prompt would be decoded a thousand times, while online requests wait."""
    counting = Counting(of_bytes()[0])
    assert at_once(counting, [97] * 10_000, [token] * 1_000) == ""
    assert counting.decoded < 6_000  # five times, with a little of the prompt


@pytest.mark.parametrize(
    "params",
    [
        {"stop": ["x"]},
        {"logprobs": 1},
        {"prompt_logprobs": 1},
        {"output_kind": RequestOutputKind.DELTA},
        {"detokenize": False},
        {"skip_special_tokens": False, "spaces_between_special_tokens": False},
    ],
)
def test_requests_whose_text_somebody_needs_on_the_way_are_left_to_vllm(
    params: dict[str, Any],
) -> None:
    asked = SamplingParams(**{"output_kind": RequestOutputKind.FINAL_ONLY, **params})
    before = asked.detokenize
    assert not FinalText(of_bytes()[0]).take_over(asked)
    assert asked.detokenize is before


def test_a_tokenizer_of_another_kind_is_left_to_vllm() -> None:
    asked = SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY)
    assert not FinalText(None).take_over(asked)
    assert asked.detokenize


def test_every_token_of_a_model_without_weights_is_a_text() -> None:
    """Else an engine with made-up weights spends its time on answers that come to no text."""
    shape = sample_model.SampleModelShape(vocabulary=400)
    tokenizer = Tokenizer.from_str(json.dumps(sample_model._tokenizer_of_texts(shape)))
    stream = tokenizers.decoders.DecodeStream(ids=list(b"prompt"), skip_special_tokens=True)
    assert all(stream.step(tokenizer, token) for token in range(400))
    prompt = "<|user|>What?\n#7<|end|>"
    ids = [260, *b"What?\n#7", 258]
    assert tokenizer.encode(prompt).ids == ids
    assert tokenizer.decode(ids) == prompt

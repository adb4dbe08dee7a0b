"""The text of an offline answer, made once of all its tokens: nobody reads along.

vLLM makes text token by token in the process that serves online requests, 6 us each. Where tokens
end no text (half characters, special tokens that are left out), it decodes the prompt and all of
them again for every one: 0.7 ms after 6,000 tokens, for as long as that goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, Final

from vllm.sampling_params import RequestOutputKind

_CONTEXT_TOKENS: Final = (8, 64)
_BYTES_OF_A_CHARACTER: Final = 4
_HALF: Final = "\N{REPLACEMENT CHARACTER}"


class FinalText:
    """Takes the text of offline requests over from vLLM.

    Stop strings are looked for in the text as it grows, and logprobs have texts of their own: such
    requests are left alone, and so are those that write special tokens without spaces between.
    """

    def __init__(self, tokenizer: Any) -> None:
        """``tokenizer`` is of Hugging Face's library; None: nothing is taken over."""
        self._tokenizer = tokenizer

    def take_over(self, params: Any) -> bool:
        """Whether the request's text is made here; if so, ``params`` tell vLLM to make none."""
        if (
            self._tokenizer is None
            or not params.detokenize
            or params.output_kind is not RequestOutputKind.FINAL_ONLY
            or params.stop
            or params.logprobs is not None
            or params.prompt_logprobs is not None
            or not (params.skip_special_tokens or params.spaces_between_special_tokens)
        ):
            return False
        params.detokenize = False
        return True

    def fill_in(self, output: Any, params: Any) -> None:
        """Gives each choice of an output the text that vLLM would have given it.

        The token that stopped an answer has none unless that was asked for, and neither has half a
        character at the end.
        """
        for choice in output.outputs:
            tokens = list(choice.token_ids)
            if choice.finish_reason == "stop" and not params.include_stop_str_in_output:
                tokens = tokens[:-1]
            choice.text = self._text(
                output.prompt_token_ids, tokens, skip_special=params.skip_special_tokens
            )

    def _text(self, prompt: Sequence[int], tokens: Sequence[int], *, skip_special: bool) -> str:
        """Without what has begun a character: some decoders spoil the whole ones before it."""
        for cut in range(_BYTES_OF_A_CHARACTER):
            kept = tokens[: len(tokens) - cut]
            text = self._continued(prompt, kept, skip_special=skip_special)
            if not text.endswith(_HALF):
                return text
        return self._continued(prompt, tokens, skip_special=skip_special).rstrip(_HALF)

    def _continued(
        self, prompt: Sequence[int], tokens: Sequence[int], *, skip_special: bool
    ) -> str:
        """What the tokens add to the prompt's end: some decoders drop a text's first space.

        A character that a prompt of token ids begins and they complete is theirs.
        """
        for count, cut in product(_CONTEXT_TOKENS, range(_BYTES_OF_A_CHARACTER)):
            end = list(prompt[-count:])
            whole_characters = end[: len(end) - cut]
            before = self._decoded(whole_characters, skip_special=skip_special)
            if before.endswith(_HALF) or not (before or cut == len(prompt)):
                continue
            text = self._decoded([*end, *tokens], skip_special=skip_special)
            for known in (self._decoded(end, skip_special=skip_special), before):
                if text.startswith(known):
                    return text[len(known) :]
        return self._decoded(tokens, skip_special=skip_special)

    def _decoded(self, tokens: Sequence[int], *, skip_special: bool) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=skip_special))

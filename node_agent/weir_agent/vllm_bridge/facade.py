"""Two views of one vLLM engine client: the class of a request is the view's, never the client's.

vLLM trusts ``X-Vllm-Priority``, ``priority`` and ``vllm_xargs`` of any HTTP client; both views
overwrite what those set. The online view belongs to the HTTP server, the offline one to the agent.
"""

from __future__ import annotations

import contextvars
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from weir_agent.engine import OfflineLine
from weir_agent.latency import TOKENS, TokenCount
from weir_agent.vllm_bridge.final_text import FinalText
from weir_agent.vllm_bridge.grammar_check import GrammarCheck
from weir_agent.vllm_bridge.messages import ONLINE_TAG, RequestTag
from weir_agent.vllm_bridge.render_turn import RenderTurn

ONLINE_PRIORITY, OFFLINE_PRIORITY = 0, 1


@dataclass(kw_only=True, slots=True)
class Submission:
    """The offline line on whose behalf the current task calls the engine, and what came of it.

    ``aborted``: the engine cut an output of it off. In the answer a tool call may hide that.
    ``cut``: an output ended at the line's ``most_tokens``, where more had been asked for.
    ``refused``: why the engine ended a request of it with an error, where it says so.
    ``turn`` is over when the engine has the first of its prompts: all are rendered by then.
    """

    line: OfflineLine
    turn: RenderTurn
    cached_tokens: int = 0
    aborted: bool = False
    cut: bool = False
    refused: str | None = None


CURRENT: contextvars.ContextVar[Submission | None] = contextvars.ContextVar(
    "weir_submission", default=None
)


class _View:
    """Everything of the engine client as it is, except how requests enter."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def add_request(self, *_: object, **__: object) -> None:
        """Not offered: requests enter by ``generate``.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("requests enter by generate")

    def _enter(
        self, prompt: object, params: Any, request_id: str, tag: RequestTag, **options: Any
    ) -> AsyncGenerator[Any, None]:
        if isinstance(prompt, AsyncGenerator) or hasattr(prompt, "sampling_params"):
            raise NotImplementedError(  # both carry sampling parameters of their own
                "streamed and pre-processed prompts are not supported under Weir"
            )
        if not hasattr(params, "extra_args"):
            raise NotImplementedError("beam search is not supported under Weir")
        params.extra_args = {**(params.extra_args or {}), **tag.as_extra_args()}
        generation: AsyncGenerator[Any, None] = self._client.generate(
            prompt, params, request_id, **options
        )
        return generation


class OnlineView(_View):
    """What the HTTP server holds: whatever a client claims, its requests are online."""

    def generate(
        self,
        prompt: object,
        sampling_params: Any,
        request_id: str,
        **options: Any,
    ) -> AsyncGenerator[Any, None]:
        """Outputs of an online request.

        Raises:
            NotImplementedError: a kind of request that could carry a class of its own.
        """
        options["priority"] = ONLINE_PRIORITY
        generation = self._enter(prompt, sampling_params, request_id, ONLINE_TAG, **options)
        tokens = TOKENS.get()
        if tokens is None:
            return generation
        return _counted(generation, tokens, first_choice=tokens.prompt(sampling_params.n))

    def encode(self, *args: Any, **options: Any) -> AsyncGenerator[Any, None]:
        """Outputs of a pooling request, which has no class but online."""
        options["priority"] = ONLINE_PRIORITY
        generation: AsyncGenerator[Any, None] = self._client.encode(*args, **options)
        return generation


class OfflineView(_View):
    """What runs batch lines; every call happens on behalf of the line in ``CURRENT``."""

    def __init__(
        self, client: Any, final_text: FinalText, grammars: GrammarCheck | None = None
    ) -> None:
        """``grammars`` is asked before vLLM reads a line's grammar; None: nobody is."""
        super().__init__(client)
        self._final_text = final_text
        self._grammars = grammars

    async def generate(
        self,
        prompt: object,
        sampling_params: Any,
        request_id: str,
        **options: Any,
    ) -> AsyncGenerator[Any, None]:
        """Outputs of an offline request.

        Raises:
            PermissionError: no line is being executed.
            NotImplementedError: a kind of request that could carry a class of its own.
            VLLMValidationError: its grammar takes too long to read.
        """
        submission = CURRENT.get()
        if submission is None:
            raise PermissionError("the offline view was called outside an offline line")
        submission.turn.over()
        if self._grammars is not None:
            await self._grammars.check(sampling_params)
        options["priority"] = OFFLINE_PRIORITY
        most = submission.line.most_tokens
        shortened = most is not None and sampling_params.max_tokens > most
        if shortened:
            sampling_params.max_tokens = most
            # Parameters that contradict each other end the thread in which the engine's process
            # takes in requests: online ones would wait until it is found to hang.
            sampling_params.min_tokens = min(sampling_params.min_tokens, most)
        without_text = self._final_text.take_over(sampling_params)
        generation = self._enter(
            prompt, sampling_params, request_id, offline_tag(submission.line), **options
        )
        cached = 0  # of this prompt: a line may have several
        async with aclosing(generation):
            async for output in generation:
                found = getattr(output, "num_cached_tokens", None) or 0
                if found > cached:
                    submission.cached_tokens += found - cached
                    cached = found
                for choice in output.outputs:
                    submission.aborted |= choice.finish_reason == "abort"
                    if choice.finish_reason == "error":
                        submission.refused = choice.stop_reason
                    submission.cut |= shortened and choice.finish_reason == "length"
                if without_text:
                    self._final_text.fill_in(output, sampling_params)
                yield output


async def _counted(
    generation: AsyncGenerator[Any, None], tokens: TokenCount, *, first_choice: int
) -> AsyncGenerator[Any, None]:
    """The same outputs; their tokens are counted before an event of the response has them."""
    async with aclosing(generation):
        async for output in generation:
            for choice in output.outputs:
                tokens.add(first_choice + choice.index, len(choice.token_ids))
            yield output


def offline_tag(line: OfflineLine) -> RequestTag:
    """What the scheduler learns of a line."""
    return RequestTag.model_validate(
        {
            "class": "offline",
            "tenant": line.tenant,
            "group": line.group,
            "deadline_s": line.deadline_s,
            "expected_output_tokens": line.expected_output_tokens,
            "solo": line.solo,
        }
    )

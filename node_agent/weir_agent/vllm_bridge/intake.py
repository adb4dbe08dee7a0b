"""Requests as they enter the engine: their class, and Weir's record of each.

Requests that wait for a compiled grammar are kept back here until it is ready.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import FinishReason
from vllm.v1.request import RequestStatus

from weir_agent.vllm_bridge.base import VllmScheduler
from weir_agent.vllm_bridge.bundles import Bundles
from weir_agent.vllm_bridge.grammars import GrammarCompiler
from weir_agent.vllm_bridge.messages import ONLINE_TAG, read_tag
from weir_engine.errors import ConfigError
from weir_engine.ids import RequestClass, RequestId
from weir_engine.request import Request

_log = structlog.get_logger(__name__)

NOT_COMPILED: Final = (
    "the grammar of the structured output cannot be compiled: make it simpler, and look in the "
    "engine's log for what the compiler says"
)
NOTHING_FITS: Final = (
    "the grammar of the structured output allows no token here: nothing may satisfy it, as where a "
    "part is made of itself alone, or allowed_token_ids, bad_words or stop_token_ids rule out what "
    "it needs"
)


class Intake:
    """Every request in the engine, by id.

    ``online`` counts the online ones, ``streams`` are those of them whose tokens are handed out as
    they come, and ``bundles`` has the tokens of offline ones; ``blocked`` wait for their grammar
    and are not the planner's yet. ``wall`` is the clock that vLLM stamps arrivals with.
    """

    def __init__(
        self,
        vllm: VllmScheduler,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self._vllm = vllm
        self._clock = clock
        self._wall = wall
        self._grammars = grammars
        self._refused: dict[str, str] = {}
        self.known: dict[str, Request] = {}
        self.blocked: dict[str, Any] = {}
        self.streams: set[str] = set()
        self.bundles = Bundles()
        self.online = 0

    def is_online(self, request_id: str) -> bool:
        """True unless the agent said that it is offline."""
        request = self.known.get(request_id)
        return request is None or request.is_online

    def tokens(self, request_id: str, first: int, end: int) -> Sequence[int]:
        """Ids of a request's tokens; none of one whose prompt is not made of ids alone."""
        request = self._vllm.requests.get(request_id)
        if request is None or request.prompt_embeds is not None:
            return ()
        ids: Sequence[int] = request.all_token_ids[first:end]
        return ids

    def register(self, request: Any) -> None:
        """Make Weir's record of a vLLM request; a tag that cannot be read ends it with an error."""
        params = request.sampling_params
        tag = ONLINE_TAG
        try:
            tag = read_tag(None if params is None else params.extra_args)
        except ConfigError as error:
            self._refuse(request, str(error))
        if request.resumable:
            self._refuse(request, "streaming input is not supported under Weir")
        klass = tag.request_class
        request.priority = int(klass)  # the class alone decides, whatever the client asked for
        waited_s = max(0.0, self._wall() - request.arrival_time)
        room = self._vllm.max_model_len - request.num_prompt_tokens
        most = max(1, min(request.max_tokens, room))
        expected = tag.expected_output_tokens
        self.known[request.request_id] = Request(
            id=RequestId(request.request_id),
            klass=klass,
            arrival_s=self._clock() - waited_s,
            prompt_tokens=request.num_prompt_tokens,
            max_output_tokens=most,
            block_hashes=request.block_hashes,  # the same list: vLLM appends as tokens come
            tenant=tag.tenant,
            group=tag.group,
            deadline_s=tag.deadline_s,
            expected_output_tokens=None if expected is None else min(expected, most),
            solo=tag.solo,
        )
        if klass is RequestClass.ONLINE:
            self.online += 1
            if params is not None and params.output_kind is not RequestOutputKind.FINAL_ONLY:
                self.streams.add(request.request_id)
        else:
            self.bundles.expect(request.request_id, params)

    def is_ready(self, request: Any) -> bool:
        """True when it can be planned at once; else it is kept back until it can."""
        if request.status == RequestStatus.WAITING:
            return True
        self.blocked[request.request_id] = request
        return False

    def unblock(self) -> list[Any]:
        """Requests whose grammar has been compiled since the last call."""
        late = {} if self._grammars is None else self._grammars.give_up()
        for request_id in late.keys() & self.blocked.keys():
            self._refuse(self.blocked[request_id], late[request_id])
        ready = []
        for request in self.blocked.values():
            if self._vllm._handle_blocked_waiting_request(request):  # noqa: SLF001 - vLLM's own test
                ready.append(request)
            elif request.request_id in self._vllm.grammar_compile_error_reqs:
                self._refused.setdefault(request.request_id, NOT_COMPILED)
        for request in ready:
            del self.blocked[request.request_id]
            self._vllm.deferred_waiting.discard(request)
        return ready

    def is_waiting_for_grammar(self, request_id: str) -> bool:
        """True while the planner does not know it."""
        return request_id in self.blocked

    def forget(self, request_id: str) -> None:
        """It has ended."""
        if self.blocked.pop(request_id, None) is not None and self._grammars is not None:
            self._grammars.forget(request_id)
        self.streams.discard(request_id)
        self.bundles.forget(request_id)
        request = self.known.pop(request_id, None)
        if request is not None:
            self.online -= request.is_online

    def explain(self, outputs: Mapping[int, Any]) -> None:
        """Write into the last outputs of what ends with an error why; the agent reads it there."""
        for batch in outputs.values():
            for output in batch.outputs:
                if output.finish_reason is not FinishReason.ERROR:
                    continue
                if output.request_id in self._refused:
                    output.stop_reason = self._refused[output.request_id]
                elif output.new_token_ids:  # vLLM ends with such a token for nothing else
                    output.stop_reason = NOTHING_FITS
        self._refused.clear()  # whoever is not among them had ended before

    def _refuse(self, request: Any, reason: str) -> None:
        """End the request with an error in the next step; raising here would end the engine."""
        _log.warning("weir.request_refused", request_id=request.request_id, reason=reason)
        self._vllm.grammar_compile_error_reqs.add(request.request_id)
        self._refused[request.request_id] = reason

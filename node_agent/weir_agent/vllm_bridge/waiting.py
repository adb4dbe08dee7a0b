"""vLLM's waiting queue, which shows exactly the admissions of the current plan.

It decides nothing: the plan does. All waiting requests are kept, in order of arrival.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from typing_extensions import override
from vllm.v1.core.sched.request_queue import RequestQueue

# vLLM's Request; typed as Any because vLLM is not analysed.
VllmRequest = Any


class PlannedQueue(RequestQueue):  # type: ignore[misc]  # vLLM is not analysed
    """Waiting requests; truth value, ``peek`` and ``pop`` see only those that ``show`` named.

    ``len`` and iteration see all: vLLM counts with them.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, VllmRequest] = {}
        self._shown: deque[VllmRequest] = deque()

    def show(self, requests: Iterable[VllmRequest]) -> None:
        """Let the next scheduling pass see these requests, in this order."""
        self._shown = deque(requests)

    def hide(self) -> None:
        """Show nothing any more."""
        self._shown.clear()

    @override
    def add_request(self, request: VllmRequest) -> None:
        """It waits from now on."""
        self._waiting[request.request_id] = request

    @override
    def pop_request(self) -> VllmRequest:
        """Take the first request shown.

        Raises:
            IndexError: none is shown.
        """
        request = self._shown.popleft()
        del self._waiting[request.request_id]
        return request

    @override
    def peek_request(self) -> VllmRequest:
        """The first request shown.

        Raises:
            IndexError: none is shown.
        """
        return self._shown[0]

    @override
    def prepend_request(self, request: VllmRequest) -> None:
        """It waits from now on; the plan decides when it comes back."""
        self._waiting[request.request_id] = request

    @override
    def prepend_requests(self, requests: Iterable[VllmRequest]) -> None:
        """They wait from now on."""
        for request in requests:
            self._waiting[request.request_id] = request

    @override
    def remove_request(self, request: VllmRequest) -> None:
        """It waits no more.

        Raises:
            KeyError: it did not wait.
        """
        del self._waiting[request.request_id]
        if request in self._shown:
            self._shown.remove(request)

    @override
    def remove_requests(self, requests: Iterable[VllmRequest]) -> None:
        """They wait no more; those that did not are no error."""
        for request in requests:
            if self._waiting.pop(request.request_id, None) is not None and request in self._shown:
                self._shown.remove(request)

    @override
    def __bool__(self) -> bool:
        return bool(self._shown)

    @override
    def __len__(self) -> int:
        return len(self._waiting)

    @override
    def __iter__(self) -> Iterator[VllmRequest]:
        return iter(self._waiting.values())

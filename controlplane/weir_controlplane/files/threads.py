"""The threads in which the file store is waited for, apart from all others.

A store that hangs keeps them all; names are resolved in the event loop's own, for the database too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

_THREADS = ThreadPoolExecutor(thread_name_prefix="files")
_T = TypeVar("_T")


async def in_thread(work: Callable[..., _T], *arguments: Any) -> _T:  # noqa: ANN401
    """What ``work`` returns, once one of the threads has done it."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work, *arguments)


def end_threads(*others: ThreadPoolExecutor, within_s: float) -> bool:
    """Ends them and ``others``, which take no more work; whether they ended in time.

    For the end of the process: nothing can be read or stored afterwards.
    """

    def shut_down() -> None:
        for pool in (*others, _THREADS):
            pool.shutdown(cancel_futures=True)

    ending = threading.Thread(target=shut_down, daemon=True)
    ending.start()
    ending.join(within_s)
    return not ending.is_alive()

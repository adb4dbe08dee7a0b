"""`weir batch`: submit, follow, cancel and fetch batches over the OpenAI surface."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from weir_cli.api import Api
from weir_cli.console import err, out, reader_may_go, show_table, transfer_bar
from weir_cli.errors import CliError, ExitStatus, RefusedError
from weir_cli.input_file import endpoint_of_first_line, name_of, opened, unchanging
from weir_cli.models import Batch
from weir_cli.settings import client_settings
from weir_cli.watch import follow, summary

batch_app = typer.Typer(no_args_is_help=True, help="Submit batches and fetch their results.")

Url = Annotated[str | None, typer.Option("--url", help="Control plane (else WEIR_URL).")]
Key = Annotated[str | None, typer.Option("--api-key", help="API key (else WEIR_API_KEY).")]
BatchId = Annotated[str, typer.Argument(help="The batch's id (batch_...).", metavar="BATCH_ID")]


@contextmanager
def connected(url: str | None, api_key: str | None) -> Iterator[Api]:
    """The control plane that flags and environment name."""
    api = Api(client_settings(url, api_key))
    try:
        yield api
    finally:
        api.close()


@batch_app.command()
def submit(  # noqa: PLR0913 - flags are arguments
    file: Annotated[
        Path, typer.Argument(help="JSONL file, one request a line; - reads standard input.")
    ],
    endpoint: Annotated[
        str | None, typer.Option(help="The lines' endpoint; read from the first line by default.")
    ] = None,
    window: Annotated[str, typer.Option(help="Completion window.")] = "24h",
    metadata: Annotated[list[str] | None, typer.Option(help="KEY=VALUE, repeatable.")] = None,
    wait: Annotated[bool, typer.Option(help="Follow the batch until it ends.")] = False,  # noqa: FBT002
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Upload a JSONL file and start a batch; prints the batch's id."""
    pairs = dict(_pair(item) for item in metadata or [])
    with connected(url, api_key) as api:
        with opened(file) as content, transfer_bar() as bar:
            first_endpoint = endpoint or endpoint_of_first_line(file, content)
            size = os.fstat(content.fileno()).st_size
            with bar.wrap_file(content, total=size, description="uploading") as counted:
                file_id = api.upload(name_of(file), unchanging(file, counted, size))
        batch = _created(api, file_id, first_endpoint, window, pairs)
        out.print(batch.id, markup=False)
        if wait:
            _finish(follow(api, batch), f"what is finished: weir batch results {batch.id}")


@batch_app.command()
def status(
    batch_id: Annotated[
        str | None, typer.Argument(help="The batch; without it, the newest ones.")
    ] = None,
    watch: Annotated[bool, typer.Option(help="Follow the batch until it ends.")] = False,  # noqa: FBT002
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Show one batch, or list the newest."""
    _check_watched(batch_id, watch=watch)
    with connected(url, api_key) as api:
        if batch_id is None:
            _list(api.batches(20))
            return
        batch = api.batch(batch_id)
        if watch:
            batch = follow(api, batch)
        out.print(summary(batch), markup=False)
        _show_content_errors(batch)


def _check_watched(batch_id: str | None, *, watch: bool) -> None:
    """Without an id there is no end to follow a batch to.

    Raises:
        CliError: ``--watch`` and no id.
    """
    if watch and batch_id is None:
        raise CliError(
            "--watch: it follows one batch, and none is named",
            remedy="weir batch status --watch BATCH_ID",
            status=ExitStatus.USAGE,
        )


@batch_app.command()
def cancel(batch_id: BatchId, url: Url = None, api_key: Key = None) -> None:
    """Stop a batch; finished lines are kept."""
    with connected(url, api_key) as api:
        out.print(summary(api.cancel(batch_id)), markup=False)


@batch_app.command()
def results(
    batch_id: BatchId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to; stdout by default.")
    ] = None,
    errors: Annotated[
        Path | None, typer.Option("--errors", help="Where the lines with errors go.")
    ] = None,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Fetch the results of a batch, and the lines that failed."""
    _check_places(output, errors)
    with connected(url, api_key) as api:
        batch = _ended(api.batch(batch_id))
        if batch.output_file_id:
            _fetch(api, batch.output_file_id, output)
        if batch.error_file_id and errors:
            _fetch(api, batch.error_file_id, errors)
        elif batch.error_file_id:
            err.print(
                f"{batch.counts.failed} lines have errors: fetch them with --errors FILE",
                markup=False,
            )
        which = "the lines without a result" if batch.output_file_id else "it"
        _finish(batch, f"submit {which} again")


def _check_places(output: Path | None, errors: Path | None) -> None:
    """Results need one, and lines with errors another: both are written whole.

    Raises:
        CliError: standard output is closed, or both go to the same file.
    """
    if output is None and sys.stdout is None:
        raise CliError(
            "standard output is closed",
            remedy="name a file: weir batch results BATCH_ID -o FILE",
            status=ExitStatus.USAGE,
        )
    if output is None or errors is None or _stays_itself(output):
        return
    if os.path.realpath(output) == os.path.realpath(errors):
        raise CliError(
            f"--output and --errors are the same file, {output}: the errors would replace the "
            "results",
            remedy="name two files",
            status=ExitStatus.USAGE,
        )


def _stays_itself(target: Path) -> bool:
    """Whether it is a device or a pipe, which takes one thing after another, or a folder."""
    return target.exists() and not target.is_file()


def _created(
    api: Api, file_id: str, endpoint: str, window: str, metadata: Mapping[str, str]
) -> Batch:
    """The batch of an uploaded file.

    Raises:
        RefusedError: there will be none; the file has gone again.
    """
    try:
        return api.create_batch(file_id, endpoint, window, metadata)
    except RefusedError:
        with suppress(CliError):
            api.delete_file(file_id)
        raise


def _ended(batch: Batch) -> Batch:
    if batch.terminal:
        return batch
    raise CliError(
        f"{batch.id} is still {batch.status}",
        remedy=f"wait for it: weir batch status --watch {batch.id}",
    )


def _pair(item: str) -> tuple[str, str]:
    key, separator, value = item.partition("=")
    if not separator or not key:
        raise CliError(
            f"--metadata: {item!r} is not KEY=VALUE",
            remedy="write it like --metadata team=search",
            status=ExitStatus.USAGE,
        )
    return key, value


def _list(batches: list[Batch]) -> None:
    if not out.is_terminal:
        for batch in batches:
            out.print(summary(batch), markup=False)
        return
    rows = [
        (
            batch.id,
            batch.state,
            str(batch.counts.completed),
            str(batch.counts.failed),
            str(batch.counts.total),
            f"{datetime.fromtimestamp(batch.created_at, UTC):%Y-%m-%d %H:%M} UTC",
        )
        for batch in batches
    ]
    show_table(("id", "status", "done", "errors", "total", "created"), rows)


def _show_content_errors(batch: Batch) -> None:
    for error in batch.errors.data if batch.errors else []:
        place = f"line {error.line}: " if error.line is not None else ""
        err.print(f"  {place}{error.message} ({error.code})", markup=False)


def _finish(batch: Batch, remedy: str) -> None:
    """Reports a final state; ``remedy`` where the batch names no errors.

    Raises:
        CliError: it is not `completed`.
    """
    if batch.status == "completed":
        return
    _show_content_errors(batch)
    raise CliError(
        f"{batch.id} ended as {batch.status}",
        remedy="correct what is named above and submit again" if batch.errors else remedy,
    )


def _fetch(api: Api, file_id: str, target: Path | None) -> None:
    with api.file_content(file_id) as (size, pieces):
        if target is None:
            with reader_may_go():
                for piece in pieces:
                    sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
            return
        with transfer_bar() as bar, _replacing(target) as content:
            task = bar.add_task(target.name, total=size)
            for piece in pieces:
                content.write(piece)
                bar.update(task, advance=len(piece))


@contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name only when it is whole; devices and pipes stay themselves.

    Raises:
        CliError: it cannot be written.
    """
    unfinished = None
    try:
        if _stays_itself(target):
            opened: BinaryIO = target.open("wb")
        else:
            target = Path(os.path.realpath(target))  # a link is followed, as by a shell
            unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
            opened = unfinished.open("xb")
    except OSError as error:
        raise CliError(
            f"{target}: {error.strerror}", remedy="name another place", status=ExitStatus.USAGE
        ) from error
    try:
        with opened as content:
            if unfinished and target.exists():
                os.fchmod(content.fileno(), stat.S_IMODE(target.stat().st_mode))
            yield content
        if unfinished:
            unfinished.replace(target)
    except OSError as error:
        raise CliError(
            f"{target}: {error.strerror}", remedy="free some space or name another place"
        ) from error
    finally:
        if unfinished:
            unfinished.unlink(missing_ok=True)

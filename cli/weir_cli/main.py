"""The `weir` command: puts the subcommands together and turns every error into a sentence."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

import typer

from weir_cli.console import err, show_error
from weir_cli.errors import CliError, ExitStatus

# Where each command is: a Typer application or a function. The simulator alone takes half a second
# to import, so a command line loads only the command that it names.
COMMANDS = {
    "batch": "weir_cli.batch:batch_app",
    "queue": "weir_cli.queue:queue",
    "keys": "weir_cli.admin:keys_app",
    "tenants": "weir_cli.admin:tenants_app",
    "serve": "weir_cli.serve:serve_app",
    "demo": "weir_cli.demo.command:demo",
}
if find_spec("weir_engine") is not None:  # the operator's image has no engine to simulate
    COMMANDS |= {
        "sim": "weir_cli.sim.command:sim",
        "plan": "weir_cli.sim.plan:plan",
        "profile": "weir_cli.sim.profile:profile",
    }

# Of a file that has no name, as standard output: its disk is full, over its quota or broken.
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def make_app(command: str | None = None) -> typer.Typer:
    """The command line with this command alone, or with all when it is none of them."""
    app = typer.Typer(
        name="weir",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Online and batch LLM requests on the same GPUs, with online latency held at its SLO.",
    )
    app.callback()(_weir)
    for name in [command] if command in COMMANDS else COMMANDS:
        module, _, attribute = COMMANDS[name].partition(":")
        found = getattr(import_module(module), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def _weir() -> None:
    """Keeps the command's name in the command line when there is one command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status of one command line; a stack trace reaches nobody."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _check_encoding(given)
        make_app(given[0] if given else None)(args=given, prog_name="weir")
    except SystemExit as ending:  # how typer returns
        return ending.code if isinstance(ending.code, int) else ExitStatus.OK
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except BrokenPipeError:  # `weir … | head`: the reader has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.OK
    except Exception as error:  # noqa: BLE001 - the last resort of a command line
        known = _known(error)
        show_error(known)
        if known.status == ExitStatus.INTERNAL and sys.flags.dev_mode:
            err.print_exception()
        return known.status
    return ExitStatus.OK


def _known(error: Exception) -> CliError:
    """What a user is told of an error."""
    if isinstance(error, CliError):
        return error
    if isinstance(error, OSError) and error.filename is None and error.errno in UNWRITABLE:
        return CliError(
            f"the output cannot be written: {error.strerror}",
            remedy="free some space, or write it elsewhere",
        )
    return CliError(
        f"internal error: {type(error).__name__}: {error}",
        remedy="this is a defect in weir; `python -X dev -m weir_cli` shows where",
        status=ExitStatus.INTERNAL,
    )


def _check_encoding(given: Sequence[str]) -> None:
    """What goes into requests must be text; names of files may have any bytes.

    Raises:
        CliError: an argument that names no file is not UTF-8.
    """
    for at, argument in enumerate(given, start=1):
        text = argument.encode(errors="ignore").decode()
        if text != argument and not os.path.lexists(argument):
            raise CliError(
                f"argument {at}, {argument!r}: it is not UTF-8",
                remedy="type it in a UTF-8 locale",
                status=ExitStatus.USAGE,
            )


def run() -> None:
    """Entry point of the installed command."""
    if sys.argv[1:2] == ["serve"]:
        # Components take seconds to import, and process 1 of a container gets no signal that it has
        # no handler for: its pod would be waited for in vain. There is nothing to end in order yet.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _frame: os._exit(128 + number))
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A locale may lack the characters of a name: shown as \\u00e9 it is better than not at all.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())

"""The `weir` command: puts the subcommands together and turns every error into a sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import typer

from weir_cli.admin import keys_app, tenants_app
from weir_cli.batch import batch_app
from weir_cli.console import err, show_error
from weir_cli.demo.command import demo
from weir_cli.errors import CliError, ExitStatus
from weir_cli.serve import serve_app

app = typer.Typer(
    name="weir",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Online and batch LLM requests on the same GPUs, with online latency held at its SLO.",
)
app.add_typer(batch_app, name="batch")
app.add_typer(keys_app, name="keys")
app.add_typer(tenants_app, name="tenants")
app.add_typer(serve_app, name="serve")
app.command()(demo)
if find_spec("weir_engine") is not None:  # the operator's image has no engine to simulate
    from weir_cli.sim.command import sim
    from weir_cli.sim.plan import plan
    from weir_cli.sim.profile import profile

    app.command()(sim)
    app.command()(plan)
    app.command()(profile)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status of one command line; a stack trace reaches nobody."""
    try:
        app(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="weir")
    except CliError as error:
        show_error(error)
        return error.status
    except SystemExit as ending:  # how typer returns
        return ending.code if isinstance(ending.code, int) else ExitStatus.OK
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except BrokenPipeError:  # `weir … | head`: the reader has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.OK
    except Exception as error:  # noqa: BLE001 - the last resort of a command line
        show_error(
            CliError(
                f"internal error: {type(error).__name__}: {error}",
                remedy="this is a defect in weir; `python -X dev -m weir_cli` shows where",
                status=ExitStatus.INTERNAL,
            )
        )
        if sys.flags.dev_mode:
            err.print_exception()
        return ExitStatus.INTERNAL
    return ExitStatus.OK


def run() -> None:
    """Entry point of the installed command."""
    sys.exit(main())

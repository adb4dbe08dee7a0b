"""`weir serve`: runs one component in this process; its settings come from the environment.

Only here does the command line know that components exist, and only when one is asked for: the
other commands work without their extras.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import typer
from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsError

from weir_cli.errors import CliError, ExitStatus

Settings = TypeVar("Settings", bound=BaseSettings)

serve_app = typer.Typer(no_args_is_help=True, help="Run one component (settings: WEIR_*).")


@serve_app.command()
def controlplane() -> None:
    """Run the control plane: files, batches and dispatch over HTTP."""
    with _extra("controlplane"):
        from weir_controlplane.settings import Settings  # noqa: PLC0415 - an optional extra
    settings = _from_environment(Settings)
    with _extra("controlplane"):
        from weir_controlplane.main import run  # noqa: PLC0415
    run(settings)


@serve_app.command()
def agent() -> None:
    """Run a node agent: an OpenAI endpoint and its engine under Weir's scheduler."""
    with _extra("agent"):
        from weir_agent.settings import AgentSettings  # noqa: PLC0415 - an optional extra
    settings = _from_environment(AgentSettings)
    with _extra("agent"):
        from weir_agent.main import run  # noqa: PLC0415
    run(settings)


@serve_app.command()
def operator() -> None:
    """Run the Kubernetes operator: LLMServices and BatchJobs become pods and batches."""
    with _extra("operator"):
        from weir_operator.settings import OperatorSettings  # noqa: PLC0415 - an optional extra
    settings = _from_environment(OperatorSettings, page="operator")
    with _extra("operator"):
        from weir_operator.main import run  # noqa: PLC0415
    run(settings)


@contextmanager
def _extra(name: str) -> Iterator[None]:
    gc.disable()  # what is imported stays, and looking through it takes a tenth of a start
    try:
        yield
    except ModuleNotFoundError as error:
        raise CliError(
            f"{error.name} is not installed",
            remedy=f"install the extra: pip install 'weir[{name}]'",
            status=ExitStatus.USAGE,
        ) from error
    finally:
        gc.enable()


def _from_environment(settings: type[Settings], page: str = "operations") -> Settings:
    remedy = f"correct the environment; docs/{page}.md lists every setting"
    try:
        return settings()
    except ValidationError as error:
        prefix = str(settings.model_config.get("env_prefix", "WEIR_"))
        raise CliError(_describe(error, prefix), remedy=remedy, status=ExitStatus.USAGE) from None
    except SettingsError as error:  # a list or an object that is not JSON
        raise CliError(str(error), remedy=remedy, status=ExitStatus.USAGE) from None


def _describe(error: ValidationError, prefix: str) -> str:
    """Every wrong setting by the name of its variable."""
    wrong = []
    for item in error.errors(include_url=False, include_input=False):
        place = [str(part) for part in item["loc"]]
        variable = f"{prefix}{place[0].upper()}: " if place else ""
        inside = f"{'.'.join(place[1:])}: " if place[1:] else ""
        wrong.append(f"{variable}{inside}{item['msg'].removeprefix('Value error, ')}")
    return "; ".join(wrong)

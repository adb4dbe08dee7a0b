"""The command line of vLLM, with what Weir needs set. Nothing is started here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NoReturn

import vllm
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser

from weir_agent.settings import AgentSettings, SettingsError
from weir_agent.vllm_bridge import SCHEDULER_CLS
from weir_agent.vllm_bridge.messages import WEIR_KEY, read_settings
from weir_engine.errors import ConfigError


def parse(settings: AgentSettings, engine_args: Sequence[str]) -> Any:
    """The parsed arguments of vLLM (a ``Namespace``) with Weir's scheduler set.

    Raises:
        SettingsError: an argument is unknown, wrong, or contradicts what Weir needs.
    """
    parser = make_arg_parser(FlexibleArgumentParser())

    def refuse(message: str) -> NoReturn:
        raise SettingsError(f"engine_args: {message} (set WEIR_ENGINE_ARGS)")

    parser.error = refuse
    args = parser.parse_args(list(engine_args))
    try:
        validate_parsed_serve_args(args)
    except (ValueError, TypeError, KeyError) as error:
        refuse(str(error))
    for option, wanted in (("scheduling_policy", "priority"), ("scheduler_cls", SCHEDULER_CLS)):
        flag = "--" + option.replace("_", "-")
        if flag in engine_args and getattr(args, option) != wanted:
            refuse(f"{flag} {getattr(args, option)} contradicts Weir's scheduler: leave it out")
        setattr(args, option, wanted)
    args.host, args.port = settings.host, settings.port
    args.additional_config = {**(args.additional_config or {}), WEIR_KEY: _bridge(settings)}
    try:
        read_settings(args.additional_config)
    except ConfigError as error:
        refuse(str(error))
    return args


def identity(args: Any) -> str:
    """Names what steps cost on: vLLM's version, its arguments and the device."""
    given = {
        name: value
        for name, value in vars(args).items()
        if name not in {"host", "port", "additional_config"}
    }
    parts = (vllm.__version__, current_platform.get_device_name(), given)
    return sha256(json.dumps(parts, default=str, sort_keys=True).encode()).hexdigest()


def warm(args: Any, profile: Mapping[str, Any] | None) -> None:
    """Gives the scheduler a profile of an earlier start, unless the settings name one."""
    bridge = args.additional_config[WEIR_KEY]
    if bridge["profile"] is None and profile is not None:
        bridge["profile"] = dict(profile)


def _bridge(settings: AgentSettings) -> dict[str, Any]:
    profile = None
    if settings.latency_profile is not None:
        try:
            profile = json.loads(settings.latency_profile.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"latency_profile: {settings.latency_profile} cannot be read: {error} "
                "(set WEIR_LATENCY_PROFILE to a saved profile, or leave it out)"
            ) from None
    return {
        "preset": settings.preset,
        "slos": [slo.model_dump() for slo in settings.slo],
        "strict": settings.strict_plan,
        "profile": profile,
        "step_file": None if settings.step_file is None else str(settings.step_file),
    }

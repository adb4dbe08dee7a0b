"""The command line of vLLM, with what Weir needs set. Nothing is started here."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import torch
import vllm
import yaml
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.launchers.launcher import validate_api_server_args
from vllm.exceptions import VLLMError
from vllm.platforms import current_platform
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser

from weir_agent.kept_profile import check_model
from weir_agent.settings import AgentSettings, SettingsError
from weir_agent.vllm_bridge import SCHEDULER_CLS
from weir_agent.vllm_bridge.messages import WEIR_KEY, BridgeSettings, KeptFile, read_settings
from weir_agent.vllm_bridge.planner import build_planner
from weir_engine.config import EngineShape
from weir_engine.errors import ConfigError
from weir_engine.kv.manager import KvManager
from weir_engine.latency import models

_TRIAL = EngineShape(
    block_size_tokens=16,
    total_blocks=64,
    max_batched_tokens=512,
    max_seqs=16,
    max_model_len_tokens=512,
)
_PLAIN = "the agent serves plain HTTP: end TLS in front of it, and leave this out"
_ONE_SERVER = "the agent serves HTTP on WEIR_HOST and WEIR_PORT, and nothing else: leave this out"
# What `vllm serve` does with its own server. Ignored, some of it would be missed by nobody in time.
_WITHOUT_EFFECT = {
    **dict.fromkeys(("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_ciphers"), _PLAIN),
    **dict.fromkeys(("ssl_cert_reqs", "enable_ssl_refresh"), _PLAIN),
    **dict.fromkeys(("uds", "grpc", "headless"), _ONE_SERVER),
}
# VLLM's words for an argument that should be JSON; a shell's rules take its double quotes away.
_NO_JSON = re.compile(r"cannot be converted to <function loads at \w+>|Invalid JSON(?=:)")


def parse(settings: AgentSettings, engine_args: Sequence[str]) -> Any:
    """The parsed arguments of vLLM (a ``Namespace``) with Weir's scheduler set.

    Raises:
        SettingsError: an argument is unknown, wrong, or contradicts what Weir needs.
    """
    parser = make_arg_parser(FlexibleArgumentParser())

    def refuse(message: str) -> NoReturn:
        said, found = _NO_JSON.subn("is not JSON", message)
        quotes = ", JSON in single quotes" if found else ""
        raise SettingsError(f"engine_args: {said} (set WEIR_ENGINE_ARGS{quotes})")

    parser.error = refuse
    try:
        args = parser.parse_args(list(engine_args))
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        refuse(f"--config names no file of options: {error}")
    if args.model_tag is not None:  # `vllm serve` would take it for the model
        refuse(f"{args.model_tag!r} belongs to no option: leave it out or quote what it is of")
    try:
        validate_parsed_serve_args(args)
        _load_parsers(args)
    except (ValueError, TypeError, KeyError, VLLMError) as error:
        refuse(str(error.args[0] if error.args else error))
    for option, remedy in _WITHOUT_EFFECT.items():
        if getattr(args, option) != parser.get_default(option):
            refuse(f"--{option.replace('_', '-')} has no effect: {remedy}")
    for option, wanted, reason in (
        ("scheduling_policy", "priority", "contradicts Weir's scheduler: leave it out"),
        ("scheduler_cls", SCHEDULER_CLS, "contradicts Weir's scheduler: leave it out"),
        ("host", settings.host, f"has no effect: {_ONE_SERVER}"),
        ("port", settings.port, f"has no effect: {_ONE_SERVER}"),
    ):
        flag, given = "--" + option.replace("_", "-"), getattr(args, option)
        named = _names(engine_args, flag) or given != parser.get_default(option)
        if named and given != wanted:
            refuse(f"{flag} {given} {reason}")
        setattr(args, option, wanted)
    args.additional_config = {**(args.additional_config or {}), WEIR_KEY: _bridge(settings)}
    try:
        _try_scheduler(settings, read_settings(args.additional_config))
    except ConfigError as error:
        refuse(str(error))
    return args


def _names(engine_args: Sequence[str], flag: str) -> bool:
    """True when the flag is given, in either of the ways that it may be written."""
    return any(part.split("=")[0].replace("_", "-") == flag for part in engine_args)


def _load_parsers(args: Any) -> None:
    """Imports the parsers that the arguments bring, and looks for those that they name.

    Raises:
        KeyError: one is not known; its application would fail once the engine has started.
        ValueError: the same, of reasoning.
    """
    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    if args.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
    validate_api_server_args(args)
    known = ReasoningParserManager.list_registered()
    if args.reasoning_parser and args.reasoning_parser not in known:
        raise ValueError(
            f"invalid reasoning parser: {args.reasoning_parser} (choose from {', '.join(known)})"
        )


def _try_scheduler(settings: AgentSettings, bridge: BridgeSettings) -> None:
    """Makes the scheduler once, over nothing: the engine's process would refuse with a stack trace.

    Raises:
        SettingsError: the saved profile, or the preset with these objectives, is of no use.
    """
    try:
        if bridge.profile is not None:
            check_model(models.create(str(bridge.profile.get("model", "")), bridge.profile))
    except (ConfigError, ValueError) as error:
        raise SettingsError(
            f"latency_profile: {settings.latency_profile}: {error} "
            "(set WEIR_LATENCY_PROFILE to a saved profile, or leave it out)"
        ) from None
    kv = KvManager(total_blocks=_TRIAL.total_blocks, block_size_tokens=_TRIAL.block_size_tokens)
    try:
        build_planner(bridge, _TRIAL, kv)
    except ConfigError as error:
        raise SettingsError(
            f"preset {settings.preset}: {error} (set WEIR_PRESET, and what it needs: WEIR_SLO, "
            "WEIR_STATIC_BUDGET_S)"
        ) from None


def identity(args: Any) -> str:
    """Names what steps cost on: vLLM's version, its arguments, the model's shape, the device."""
    given = {
        name: value
        for name, value in vars(args).items()
        if name not in {"host", "port", "api_key", "additional_config"}
    }
    parts = (vllm.__version__, _device(), _model_shape(args), given)
    return sha256(json.dumps(parts, default=str, sort_keys=True).encode()).hexdigest()


def _device() -> object:
    """The accelerator's name; of processors also the kind, and how many may be used."""
    name = current_platform.get_device_name()
    if not current_platform.is_cpu():
        return name
    kind, quota = "", ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        kind = next((line for line in lines if line.startswith("model name")), "")
    with suppress(OSError):
        quota = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8")
    return name, kind, len(os.sched_getaffinity(0)), torch.get_num_threads(), quota


def _model_shape(args: Any) -> str:
    """Another model may have come to the same path."""
    with suppress(OSError, ValueError):
        return (Path(args.model) / "config.json").read_text(encoding="utf-8")
    return ""


def warm(args: Any, data_dir: Path, identity: str) -> None:
    """Tells the scheduler where an earlier start of the same engine left its latency profile."""
    kept = KeptFile(folder=data_dir.absolute(), identity=identity)
    args.additional_config[WEIR_KEY]["kept"] = kept.model_dump(mode="json")


def _bridge(settings: AgentSettings) -> dict[str, Any]:
    profile = None
    if settings.latency_profile is not None:
        try:
            profile = json.loads(settings.latency_profile.read_text(encoding="utf-8"))
            if not isinstance(profile, dict):
                raise TypeError("it is no JSON object")  # noqa: TRY301 - one message for all
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise SettingsError(
                f"latency_profile: {settings.latency_profile} cannot be read: {error} "
                "(set WEIR_LATENCY_PROFILE to a saved profile, or leave it out)"
            ) from None
    return {
        "preset": settings.preset,
        "slos": [slo.model_dump() for slo in settings.slo],
        "strict": settings.strict_plan,
        "profile": profile,
        "static_budget_s": settings.static_budget_s,
        "partial_hits": settings.partial_hits,
        "grammar_timeout_s": settings.grammar_timeout_s,
        "step_file": None if settings.step_file is None else str(settings.step_file),
    }

"""What `vllm serve` would do and the agent cannot is said before an engine starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from weir_agent.sample_model import SampleModelShape, write_sample_model
from weir_cli.loadlab.processor import native_dtype

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

SMALL = SampleModelShape(layers=1, hidden_size=64, intermediate_size=64, heads=2, kv_heads=1)
ANSWER = "said: "  # among what vLLM prints
Parse = Callable[[list[list[str]]], list[str | None]]
PARSES = """
import json, sys
from weir_agent.vllm_bridge.environment import prepare_environment
prepare_environment()
from weir_agent.settings import SettingsError, load_settings
from weir_agent.vllm_bridge import arguments

for asked in sys.stdin:
    said = []
    for given in json.loads(asked):
        try:
            arguments.parse(load_settings(), ["--model", "/nowhere", *given])
        except SettingsError as error:
            said.append(str(error))
        else:
            said.append(None)
    print(sys.argv[1] + json.dumps(said), flush=True)
"""
PARSER = """
from vllm.tool_parsers import ToolParserManager
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

ToolParserManager.register_module("ours", True, Hermes2ProToolParser)
"""


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path), "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def parse() -> Iterator[Parse]:
    """What the agent says of arguments, None where it takes them: in one process with vLLM."""
    with subprocess.Popen(
        [sys.executable, "-c", PARSES, ANSWER],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asks, answers = process.stdin, process.stdout

        def parsed(cases: list[list[str]]) -> list[str | None]:
            asks.write(json.dumps(cases) + "\n")
            asks.flush()
            told = next(each for each in answers if each.startswith(ANSWER))
            said: list[str | None] = json.loads(told.removeprefix(ANSWER))
            return said

        yield parsed


def test_arguments_that_the_agent_cannot_follow_are_refused(parse: Parse, tmp_path: Path) -> None:
    """TLS that is left out without a word sends prompts in clear text."""
    plugin = tmp_path / "ours.py"
    plugin.write_text(PARSER)
    empty, torn = tmp_path / "empty.yaml", tmp_path / "torn.yaml"
    empty.touch()
    torn.write_text("a: [")
    tools = ["--enable-auto-tool-choice", "--tool-call-parser", "ours"]
    cases: list[tuple[list[str], str | None]] = [
        ([], None),
        (["--ssl-certfile", "/a", "--ssl-keyfile", "/b"], "--ssl-keyfile has no effect: the agent"),
        (["--enable-ssl-refresh"], "--enable-ssl-refresh has no effect: the agent serves plain"),
        (["--uds", "/a"], "--uds has no effect: the agent serves HTTP on WEIR_HOST and WEIR_PORT"),
        (["--port", "9000"], "--port 9000 has no effect: the agent serves HTTP on WEIR_HOST and"),
        (["--host=0.0.0.0"], "--host 0.0.0.0 has no effect: the agent serves HTTP on WEIR_HOST"),
        (["--port", "8000"], None),  # what it is anyway
        (["--scheduling-policy", "fcfs"], "--scheduling-policy fcfs contradicts Weir's scheduler"),
        (["--scheduling_policy=fcfs"], "--scheduling-policy fcfs contradicts Weir's scheduler"),
        (["--scheduling-policy", "priority"], None),
        (tools, "invalid tool call parser: ours"),
        (
            ["--chat-template", "/no/such.jinja"],
            "The supplied chat template string (/no/such.jinja",
        ),
        (["--reasoning-parser", "none"], "invalid reasoning parser: none"),
        ([*tools, "--tool-parser-plugin", str(plugin)], None),  # registered from here on
        (
            ["--enable-prefix-caching", "true"],
            "'true' belongs to no option: leave it out or quote",
        ),
        (["--config", "/nowhere.yaml"], "--config names no file of options: [Errno 2] No such"),
        (["--config", "/nowhere"], "--config names no file of options: Config file must be of"),
        (["--config", str(empty)], "--config names no file of options: 'NoneType' object"),
        (["--config", str(torn)], "--config names no file of options: while parsing a flow node"),
    ]
    said = parse([given for given, _ in cases])
    for (given, wanted), message in zip(cases, said, strict=True):
        if wanted is None:
            assert message is None, given
        else:
            assert message is not None
            assert message.startswith(f"engine_args: {wanted}")
            assert message.endswith("(set WEIR_ENGINE_ARGS)")


def test_json_that_lost_its_quotes_is_recognised(parse: Parse) -> None:
    """The setting is split as a shell would split it; vLLM speaks of a function's address."""
    options = ("--override-generation-config", "--compilation-config")
    said = parse([[option, "{level:", "3}"] for option in options])
    for option, message in zip(options, said, strict=True):
        assert message is not None
        assert message.startswith(f"engine_args: argument {option}")
        assert "is not JSON" in message
        assert message.endswith("(set WEIR_ENGINE_ARGS, JSON in single quotes)")


def start(data_dir: Path, engine_args: str) -> subprocess.CompletedProcess[str]:
    """An agent that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "weir_cli", "serve", "agent"],
        env={
            **environment(),
            "WEIR_PORT": "0",
            "WEIR_DATA_DIR": str(data_dir),
            "WEIR_ENGINE_ARGS": f"{engine_args} --enforce-eager --dtype {native_dtype()} "
            "--max-model-len 256",
            "VLLM_CPU_KVCACHE_SPACE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def start_failure(done: subprocess.CompletedProcess[str]) -> str:
    """The reason in the log of a start that failed."""
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    (failed,) = [line for line in lines if line["event"] == "engine.start_failed"]
    return str(failed["reason"])


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    """The log tells of errors by place alone once requests may have come, not before."""
    model = tmp_path / "model"
    write_sample_model(model, SMALL)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()
    done = start(tmp_path / "data", f"--model {model}")
    assert done.returncode == 1
    assert "tokenizer" in start_failure(done)
    assert start_failure(done).endswith("(see WEIR_ENGINE_ARGS)")


def test_what_ends_an_engine_at_its_start_is_told(tmp_path: Path) -> None:
    """VLLM's client knows only that the process ended, and where its log is."""
    model = tmp_path / "model"
    write_sample_model(model, SMALL)
    done = start(tmp_path / "data", f"--model {model} --block-size 8")
    assert done.returncode == 1
    assert "the engine did not start: ValueError: No common block size for 8" in start_failure(done)
    assert "WEIR_ENGINE_ARGS" in start_failure(done)

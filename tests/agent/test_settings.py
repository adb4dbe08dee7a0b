"""Settings fail loudly and say what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from weir_agent.sample_model import SampleModelShape, write_sample_model
from weir_agent.settings import AgentSettings, SettingsError, load_settings


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("WEIR_PORT", "70000"),
        ("WEIR_CONTROL_PLANE_URL", "ftp://x"),
        ("WEIR_SLO", '[{"metric": "tbt", "statistic": "p30", "threshold_s": 1}]'),
        ("WEIR_AGENT_ID", "../x"),
        ("WEIR_RESULT_MAX_BYTES", "10"),
        ("WEIR_HANG_AFTER_S", "2.9"),  # a healthy engine would be killed
    ],
)
def test_a_wrong_value_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=f"set {variable}"):
        load_settings()


def test_a_key_and_an_address_lose_the_end_of_the_line_they_were_read_from() -> None:
    """`kubectl create secret --from-file` keeps it; in a header it would be refused, and logged."""
    settings = load_settings(control_plane_key="wk_secret\n", control_plane_url="http://cp:8080\n")
    assert settings.control_plane_key is not None
    assert settings.control_plane_key.get_secret_value() == "wk_secret"
    assert settings.control_plane_url == "http://cp:8080"


@pytest.mark.parametrize("key", ["wk_one\nwk_two", "wk_sécret", "Bearer wk_secret"])
def test_a_key_that_fits_no_header_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(SettingsError, match=r"\(set WEIR_CONTROL_PLANE_KEY\)") as refused:
        load_settings(control_plane_key=key)
    assert "wk_" not in str(refused.value)


def test_an_address_of_two_lines_is_refused() -> None:
    with pytest.raises(SettingsError, match="must be one line"):
        load_settings(control_plane_url="http://cp:8080\nhttp://other")


def test_a_spool_that_could_never_take_a_chunk_is_refused() -> None:
    said = r"spool_max_bytes: .* 8388608 bytes.*WEIR_RESULT_MAX_BYTES.*\(set WEIR_SPOOL_MAX_BYTES\)"
    with pytest.raises(SettingsError, match=said):
        load_settings(spool_max_bytes=(8 << 20) - 1)
    assert load_settings(spool_max_bytes=8 << 20).spool_max_bytes == 8 << 20
    small = load_settings(spool_max_bytes=1 << 20, result_max_bytes=32 << 10)
    assert small.spool_max_bytes == 1 << 20


def test_engine_args_are_split_as_a_shell_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_ENGINE_ARGS", "--model '/a b' --max-num-seqs 4")
    assert load_settings().engine_args == ("--model", "/a b", "--max-num-seqs", "4")


def test_slos_come_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_SLO", '[{"metric": "tbt", "statistic": "p99", "threshold_s": 0.1}]')
    (slo,) = load_settings().slo
    assert (slo.metric, slo.statistic, slo.threshold_s) == ("tbt", "p99", 0.1)


def test_every_setting_is_described() -> None:
    assert [
        name for name, field in AgentSettings.model_fields.items() if not field.description
    ] == []


def test_a_sample_model_is_the_same_every_time(tmp_path: Path) -> None:
    shape = SampleModelShape(layers=1, hidden_size=64, intermediate_size=64, heads=2, kv_heads=1)
    for name in ("a", "b"):
        write_sample_model(tmp_path / name, shape)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize(
    ("sizes", "word"),
    [
        ({"hidden_size": 100, "heads": 3}, "hidden_size"),
        ({"heads": 8, "kv_heads": 3}, "kv_heads"),
        ({"vocabulary": 100}, "vocabulary"),
    ],
)
def test_a_shape_that_no_engine_loads_is_refused(sizes: dict[str, int], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        SampleModelShape(**sizes)

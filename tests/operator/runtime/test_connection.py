"""What an operator says that cannot read how to reach the API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weir_operator.cluster.connection import ConnectionSettingsError, client, configuration

WHOLE: dict[str, Any] = {
    "current-context": "here",
    "clusters": [{"name": "here", "cluster": {"server": "https://127.0.0.1:9"}}],
    "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    "users": [{"name": "me", "user": {"token": "t"}}],
}
NO_CERTIFICATE = {"server": "https://127.0.0.1:9", "certificate-authority-data": "bm90aGluZw=="}
BAD = {
    "missing": (None, "kubeconfig is no file"),
    "empty": ("", "not a whole kubeconfig"),
    "no YAML": ("{{{", "not a whole kubeconfig"),
    "a user that is not there": (json.dumps({**WHOLE, "users": []}), "not a whole kubeconfig"),
    "a certificate that is none": (
        json.dumps({**WHOLE, "clusters": [{"name": "here", "cluster": NO_CERTIFICATE}]}),
        "a certificate or its key",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_kubeconfig_that_cannot_be_used_is_named(name: str, tmp_path: Path) -> None:
    """Not as a defect of Weir, nor as an address of ours that cannot be listened on."""
    content, said = BAD[name]
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConnectionSettingsError, match=said) as raised:
        client(await configuration(path), user_agent="test")
    assert "set WEIR_OPERATOR_KUBECONFIG" in str(raised.value)

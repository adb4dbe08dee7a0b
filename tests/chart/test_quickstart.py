"""What the documentation says to type gets a BatchJob to its end."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.chart.chart import CHART, KUBERNETES, ROOT, Helm


def installation(page: str) -> list[str]:
    """The words of the first installation that a page shows."""
    text = (ROOT / page).read_text().replace("\\\n", " ")
    found = re.search(r"^helm install weir charts/weir (.*)$", text, re.MULTILINE)
    assert found is not None
    return shlex.split(found[1])


@pytest.mark.parametrize("page", ["README.md", "docs/kubernetes.md"])
def test_the_namespaces_of_the_quickstart_have_a_tenant(helm: Helm, page: str) -> None:
    """Else its BatchJob waits for an administrator for ever."""
    words = installation(page)
    assert "controlplane.settings.default_tenant=team" in words
    rendered = helm.run("template", "weir", CHART, *words, "--kube-version", KUBERNETES)
    assert "WEIR_DEFAULT_TENANT" in rendered


@pytest.mark.kubernetes
def test_who_names_no_tenant_is_told_that_namespaces_need_one(cluster_helm: Helm) -> None:
    told = "binds it to a tenant"
    dry = ("install", "weir", CHART, "--dry-run=client")
    assert told in cluster_helm.run(*dry)
    assert told not in cluster_helm.run(*dry, "--set", "controlplane.settings.default_tenant=team")

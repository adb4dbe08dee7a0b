"""The kinds and names that Weir uses in a cluster, in one place."""

from __future__ import annotations

from dataclasses import dataclass

GROUP = "weir.dev"
API_VERSION = f"{GROUP}/v1alpha1"

FIELD_MANAGER = "weir-operator"
FINALIZER = f"{GROUP}/batch"
"""On a BatchJob, only while its batch is live."""

SERVICE_LABEL = f"{GROUP}/llmservice"
"""On every child and pod of an LLMService: its name."""
MADE_BY = {"app.kubernetes.io/managed-by": "weir-operator"}
"""The label of every child and pod that says who made it."""

MANAGED_BY = "weir.dev/operator"
"""The value of ``spec.managedBy`` that this operator acts on."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind as the API server addresses it. ``optional``: the cluster may not have it."""

    api_version: str
    kind: str
    plural: str
    optional: bool = False

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The version within the group."""
        return self.api_version.rpartition("/")[2]


LLM_SERVICE = Kind(api_version=API_VERSION, kind="LLMService", plural="llmservices")
BATCH_JOB = Kind(api_version=API_VERSION, kind="BatchJob", plural="batchjobs")

SERVICE_ACCOUNT = Kind(api_version="v1", kind="ServiceAccount", plural="serviceaccounts")
SERVICE = Kind(api_version="v1", kind="Service", plural="services")
DEPLOYMENT = Kind(api_version="apps/v1", kind="Deployment", plural="deployments")
PDB = Kind(api_version="policy/v1", kind="PodDisruptionBudget", plural="poddisruptionbudgets")
NETWORK_POLICY = Kind(
    api_version="networking.k8s.io/v1", kind="NetworkPolicy", plural="networkpolicies"
)
HPA = Kind(
    api_version="autoscaling/v2",
    kind="HorizontalPodAutoscaler",
    plural="horizontalpodautoscalers",
)
POD_MONITOR = Kind(
    api_version="monitoring.coreos.com/v1", kind="PodMonitor", plural="podmonitors", optional=True
)
SCALED_OBJECT = Kind(
    api_version="keda.sh/v1alpha1", kind="ScaledObject", plural="scaledobjects", optional=True
)

CHILD_KINDS = (
    SERVICE_ACCOUNT,
    SERVICE,
    DEPLOYMENT,
    PDB,
    NETWORK_POLICY,
    HPA,
    POD_MONITOR,
    SCALED_OBJECT,
)
"""Every kind of child of an LLMService, in the order in which they are applied."""

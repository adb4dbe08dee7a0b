"""Whose child an object is: an LLMService's own, an orphan that it takes back, or somebody's."""

from __future__ import annotations

from weir_operator.planning.kinds import MADE_BY, SERVICE_LABEL
from weir_operator.planning.types import Manifest


def is_ours(live: Manifest, owner: Manifest) -> bool:
    """Whether an object is the owner's child, or an orphan of a namesake of the owner.

    An orphan has no controller and our labels (``kubectl delete --cascade=orphan``, a restored
    backup): as controllers of Kubernetes do, the next of its name takes it back. All children have
    their owner's name, so what somebody made of a copy under another name is not one.
    """
    metadata, service = live["metadata"], owner["metadata"]
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            return bool(reference.get("uid") == service["uid"])
    labels = metadata.get("labels") or {}
    named = bool(metadata["name"] == service["name"] == labels.get(SERVICE_LABEL))
    return named and MADE_BY.items() <= labels.items()

"""The objects that were seen, newest version of each, and which keys a change concerns.

Fed by the watches, by full lists and by the answers to our own writes; used in one loop only.
A relist after a lost watch says nothing of deletions, so `replace` compares with a full list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from weir_operator.planning.job_context import without_text
from weir_operator.planning.kinds import BATCH_JOB, FIELD_MANAGER, LLM_SERVICE, SERVICE_LABEL, Kind
from weir_operator.planning.types import Manifest, ObjectKey

ObjectName = tuple[str, str]
"""(namespace, name)"""

OWNED_BY_USERS = frozenset({LLM_SERVICE.kind, BATCH_JOB.kind})
POD = Kind(api_version="v1", kind="Pod", plural="pods")
_VOLATILE = ("resourceVersion", "managedFields", "generation")


class ObjectStore:
    """Newest known version of every watched object."""

    def __init__(self, enqueue: Callable[[ObjectKey], None]) -> None:
        """``enqueue`` gets the key of every object that a change concerns."""
        self._enqueue = enqueue
        self._objects: dict[str, dict[ObjectName, Manifest]] = {}
        self._by_service: dict[tuple[str, str, str], set[str]] = {}
        self._listed: dict[str, int] = {}
        self._buried: dict[str, int] = {}  # uid → version, of deletions since the last full list

    # --- reading ---------------------------------------------------------------------------

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """The newest known version of an object."""
        return self._objects.get(kind.kind, {}).get((namespace, name))

    def all(self, kind: Kind) -> Iterator[Manifest]:
        """Every known object of a kind; the store must not change meanwhile."""
        return iter(self._objects.get(kind.kind, {}).values())

    def shared(self, kind: Kind, item: Manifest) -> Manifest:
        """What is kept of an object: the known one if it is equal, so that there are not two."""
        item = kept(kind, item)
        known = self.get(kind, *_name(item))
        return known if known == item else item

    def of_service(self, kind: Kind, namespace: str, service: str) -> list[Manifest]:
        """The objects of a kind that carry the label of an LLMService, by name."""
        names = self._by_service.get((kind.kind, namespace, service), set())
        return [self._objects[kind.kind][namespace, name] for name in sorted(names)]

    def count(self, kind: Kind) -> int:
        """How many objects of a kind are known."""
        return len(self._objects.get(kind.kind, {}))

    # --- writing ---------------------------------------------------------------------------

    def seen(self, kind: Kind, item: Manifest, *, own_write: bool = False) -> None:
        """An object exists as given. Older versions than the known one change nothing.

        ``own_write``: the answer to a write of ours, which concerns nobody.
        """
        self._take(kind, item, own_write=own_write)

    def _take(
        self, kind: Kind, item: Manifest, *, listed_at: int = 0, own_write: bool = False
    ) -> None:
        """``listed_at``: the version of the list that has it, the truth of all up to it."""
        where = _name(item)
        known = self._objects.get(kind.kind, {}).get(where)
        if self._stale(kind, item, known, listed_at):
            return
        whole, item = item, kept(kind, item)
        self._put(kind, where, item)
        if own_write:
            return
        if _matters(kind, known, item):
            self._concern(kind, item)
            if known is not None and _service_of(known) != _service_of(item):
                self._concern(kind, known)  # somebody took it from its service by another label
        elif known is not None and _meddled(known, whole):
            self._enqueue(ObjectKey(kind=kind.kind, namespace=where[0], name=where[1]))

    def gone(self, kind: Kind, item: Manifest) -> None:
        """An object was deleted; a namesake made since stays."""
        where = _name(item)
        known = self._objects.get(kind.kind, {}).get(where)
        self._buried[_uid(item)] = _version(item["metadata"].get("resourceVersion"))
        if known is not None and _uid(known) == _uid(item):
            self._drop(kind, where)
            self._concern(kind, known)

    def replace(
        self, kind: Kind, items: Sequence[Manifest], resource_version: str, *, newest: int
    ) -> list[Manifest]:
        """Takes over a complete list; returns the objects that had gone unnoticed.

        What was seen in a version newer than the list's is kept: objects and deletions; nothing
        where it `went_back`. An older version of an object than the known one is taken where the
        list is newer than both: the store was restored, and its versions raised beyond all before.
        ``newest``: what `newest` said of the kind when the list was asked for.
        """
        if went_back(resource_version, newest=newest):
            self._forget_versions(kind)
        version = _version(resource_version)
        listed = {_name(item) for item in items}
        self._listed.pop(kind.kind, None)
        self._buried = {uid: at for uid, at in self._buried.items() if at > version}
        for item in items:
            self._take(kind, item, listed_at=version)
        lost = [
            known
            for where, known in list(self._objects.get(kind.kind, {}).items())
            if where not in listed and _version(known["metadata"].get("resourceVersion")) <= version
        ]
        for known in lost:
            self._drop(kind, _name(known))
            self._concern(kind, known)
        self._listed[kind.kind] = version
        return lost

    def newest(self, kind: Kind) -> int:
        """The newest version that is known of a kind, of its objects and its last full list."""
        versions = (_version(known["metadata"].get("resourceVersion")) for known in self.all(kind))
        return max(self._listed.get(kind.kind, 0), max(versions, default=0))

    def forget(self, kind: Kind) -> None:
        """The API server serves the kind no longer."""
        for known in list(self.all(kind)):
            self._drop(kind, _name(known))

    def user_keys(self) -> list[ObjectKey]:
        """The keys of all objects that users own."""
        return [
            ObjectKey(kind=kind.kind, namespace=namespace, name=name)
            for kind in (LLM_SERVICE, BATCH_JOB)
            for namespace, name in self._objects.get(kind.kind, {})
        ]

    def _forget_versions(self, kind: Kind) -> None:
        """What is known of a kind counts as older than anything that is told from now on."""
        objects = self._objects.get(kind.kind, {})
        for where, known in objects.items():
            objects[where] = {**known, "metadata": {**known["metadata"], "resourceVersion": "0"}}
        self._buried.clear()

    def _stale(self, kind: Kind, item: Manifest, known: Manifest | None, listed_at: int) -> bool:
        version = _version(item["metadata"].get("resourceVersion"))
        if known is None:  # a late word about an object that a list or a watch showed to be gone
            return version <= max(self._listed.get(kind.kind, 0), self._buried.get(_uid(item), 0))
        known_at = _version(known["metadata"].get("resourceVersion"))
        return item is known or (version <= known_at and known_at > listed_at)

    def _put(self, kind: Kind, where: ObjectName, item: Manifest) -> None:
        self._unindex(kind, where)
        self._objects.setdefault(kind.kind, {})[where] = item
        service = _service_of(item)
        if service:
            self._by_service.setdefault((kind.kind, where[0], service), set()).add(where[1])

    def _drop(self, kind: Kind, where: ObjectName) -> None:
        self._unindex(kind, where)
        self._objects.get(kind.kind, {}).pop(where, None)

    def _unindex(self, kind: Kind, where: ObjectName) -> None:
        known = self._objects.get(kind.kind, {}).get(where)
        service = _service_of(known) if known is not None else None
        if service:
            place = (kind.kind, where[0], service)
            names = self._by_service.get(place, set())
            names.discard(where[1])
            if not names:
                self._by_service.pop(place, None)

    def _concern(self, kind: Kind, item: Manifest) -> None:
        namespace, name = _name(item)
        if kind.kind in OWNED_BY_USERS:
            self._enqueue(ObjectKey(kind=kind.kind, namespace=namespace, name=name))
            if kind == LLM_SERVICE:
                self._concern_jobs(namespace, name)
            return
        service = _service_of(item)
        if service:
            self._enqueue(ObjectKey(kind=LLM_SERVICE.kind, namespace=namespace, name=service))

    def _concern_jobs(self, namespace: str, service: str) -> None:
        for (where, name), job in self._objects.get(BATCH_JOB.kind, {}).items():
            if where == namespace and job["spec"].get("serviceRef", {}).get("name") == service:
                self._enqueue(ObjectKey(kind=BATCH_JOB.kind, namespace=namespace, name=name))


def went_back(resource_version: str, *, newest: int) -> bool:
    """Whether the API server's store was restored: a list is older than what was seen before it."""
    return _version(resource_version) < newest


def _matters(kind: Kind, known: Manifest | None, item: Manifest) -> bool:
    """Whether anything changed that a plan may depend on.

    An object's own status is no reason: what differs there is our own write, or `_meddled`.
    """
    if known is None or _uid(known) != _uid(item):
        return True
    skip_status = kind.kind in OWNED_BY_USERS
    return _essence(known, skip_status=skip_status) != _essence(item, skip_status=skip_status)


def _meddled(known: Manifest, item: Manifest) -> bool:
    """Whether a status changed by a write that was not ours alone: it is to be put right."""
    if known.get("status") == item.get("status"):
        return False
    entries = item["metadata"].get("managedFields") or ()
    writers = {one.get("manager") for one in entries if one.get("subresource") == "status"}
    return writers != {FIELD_MANAGER}


def _essence(item: Manifest, *, skip_status: bool) -> Mapping[str, Any]:
    kept = {key: value for key, value in item.items() if not (skip_status and key == "status")}
    kept["metadata"] = {k: v for k, v in item["metadata"].items() if k not in _VOLATILE}
    return kept


def kept(kind: Kind, item: Manifest) -> Manifest:
    """An object without what nobody here reads, which may be most of it."""
    if kind.kind not in OWNED_BY_USERS and kind.kind != POD.kind:
        return item
    metadata = {k: v for k, v in item["metadata"].items() if k != "managedFields"}
    item = {**item, "metadata": metadata}
    return without_text(item) if kind == BATCH_JOB else item


def _name(item: Manifest) -> ObjectName:
    metadata = item["metadata"]
    return str(metadata.get("namespace") or ""), str(metadata["name"])


def _uid(item: Manifest) -> str:
    return str(item["metadata"].get("uid"))


def _service_of(item: Manifest) -> str | None:
    labels = item["metadata"].get("labels") or {}
    found = labels.get(SERVICE_LABEL)
    return str(found) if found else None


def _version(text: object) -> int:
    """A resourceVersion as a number, which they are; one that is not counts as new."""
    found = str(text or "")
    return int(found) if found.isdecimal() else 1 << 63

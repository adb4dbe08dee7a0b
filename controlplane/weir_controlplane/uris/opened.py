"""What a `file://` URI names, opened once: its tenant may put a link in its place at any moment.

Links within the prefix are followed first. What they led to is then opened name by name, following
none, and reached by its descriptor from there on (§8 Security).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import weakref
from collections.abc import Sequence
from pathlib import Path

from weir_controlplane.files.storage import Storage
from weir_controlplane.uris.rules import Uri, UriRefusedError

_DESCRIPTORS = "/proc/self/fd"
PLACE = "the place that the URI names"  # as errors call it: the file store is another
# These flags open nothing for reading: that takes rights, and waits at a pipe.
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_OBJECT = os.O_PATH | os.O_NOFOLLOW
_NAMES_NOTHING = frozenset((errno.ENOTDIR, errno.ENAMETOOLONG))


def opened_object(uri: Uri, prefix: Uri) -> tuple[Storage, str]:
    """A store that has the object, whatever becomes of its name, and its key there.

    Raises:
        UriRefusedError: a symbolic link leads out of the prefix.
        FileNotFoundError: there is no such file.
        OSError: something else was put in its place just now, or the file system fails.
    """
    root, path = _real(prefix), _real(uri)
    below = _below(root, path)
    _check_can_be(path)
    if not below:  # the prefix is the object itself
        root, below = root.parent, (root.name,)
    folder = _opened_folder(root, below[:-1])
    try:
        descriptor = os.open(below[-1], _OBJECT, dir_fd=folder)
    finally:
        os.close(folder)
    store = _held(descriptor, _DESCRIPTORS)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "became a link", str(path))
    if not stat.S_ISREG(mode):
        raise FileNotFoundError(errno.ENOENT, "is no file", str(path))
    return store, str(descriptor)


def opened_folder(uri: Uri, prefix: Uri) -> tuple[Storage, str]:
    """A store of the folder that the object is to be in, made if need be, and its key there.

    Raises:
        UriRefusedError: a symbolic link leads out of the prefix.
        OSError: something else was put in its place just now, or the file system fails.
    """
    root = _real(prefix)
    _below(root, _real(uri))
    folder = _real(uri.folder)
    if uri == prefix:
        root = folder
    below = _below(root, folder)
    root.mkdir(parents=True, exist_ok=True)
    descriptor = _opened_folder(root, below, make=True)
    return _held(descriptor, f"{_DESCRIPTORS}/{descriptor}"), uri.name


def _real(uri: Uri) -> Path:
    return Path(os.path.realpath("/" + "/".join(uri.segments)))


def _below(root: Path, path: Path) -> tuple[str, ...]:
    """The names from the prefix's folder to this path.

    Raises:
        UriRefusedError: it is not in there.
    """
    if not path.is_relative_to(root):
        raise UriRefusedError("a symbolic link leads out of its prefix")
    return path.relative_to(root).parts


def _check_can_be(path: Path) -> None:
    """Checks that something can have this path.

    Raises:
        FileNotFoundError: it goes on below a file, or a name is too long. Nothing will be there
            later either; a name that became a link just now looks the same when it is opened.
    """
    try:
        path.lstat()
    except OSError as error:
        if error.errno in _NAMES_NOTHING:
            raise FileNotFoundError(errno.ENOENT, "names nothing", str(path)) from error


def _opened_folder(root: Path, names: Sequence[str], *, make: bool = False) -> int:
    folder = os.open(root, _FOLDER)
    for name in names:
        above = folder
        try:
            folder = _child(above, name, make=make)
        finally:
            os.close(above)
    return folder


def _child(folder: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):  # another job's, or a link: that is found out now
        os.mkdir(name, dir_fd=folder)
    return os.open(name, _FOLDER, dir_fd=folder)


def _held(descriptor: int, folder: str) -> Storage:
    """A store of this folder, which closes the descriptor once nobody uses it, no thread either."""
    store = Storage(f"file://{folder}", called=PLACE)
    weakref.finalize(store, os.close, descriptor)
    return store

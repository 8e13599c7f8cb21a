"""The directory that LMCache's `local_disk` names, and its file system."""

import os
from pathlib import Path

from lmc_grouped.tools.doctor.findings import Finding, fail, note, ok, warn
from lmc_grouped.tools.doctor.questions import Reply, SettingsFacts
from lmc_grouped.tools.plan.sizes import format_size

MOUNTS = Path("/proc/self/mountinfo")
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "afs", "glusterfs")
"""File systems whose locks and checks of room are another machine's."""
FLEETING = {"tmpfs": "host memory, gone after a restart", "overlay": "gone with the container"}


def check_disk(settings: Reply | None, workers: int) -> list[Finding]:
    """Whether the directory can be written, how, and how much of it; none without one."""
    if not isinstance(settings, SettingsFacts):
        return []
    if settings.disk_root is None:
        return [note("disk", "off: local_disk is not set")]
    root = Path(settings.disk_root)
    existing = next(path for path in (root, *root.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        what = "cannot be written" if existing.is_dir() else "is no directory"
        return [
            fail(
                "disk",
                f"{root}: {existing} {what} (user {os.geteuid()})",
                "set local_disk to a directory that the server may write",
            )
        ]
    wanted = settings.disk_cap_bytes * workers
    return [
        _check_file_system(root, existing),
        _check_direct(root, existing),
        _check_room(root, existing, wanted),
    ]


def _check_file_system(root: Path, existing: Path) -> Finding:
    kind = file_system(existing)
    text = f"{root} on {kind}" + ("" if existing == root else ", to be made at start")
    if kind in REMOTE or kind.startswith("fuse"):
        return warn("disk", text, "put it on a local file system: locks are needed")
    if kind in FLEETING:
        return warn("disk", f"{text}: {FLEETING[kind]}", "name a directory on a real disk")
    return ok("disk", text)


def _check_direct(root: Path, existing: Path) -> Finding:
    if existing != root:
        return note("direct I/O", f"not tried: {root} is not there yet")
    from lmc_grouped.host.disk.fileio import takes_direct

    if takes_direct(root):
        return ok("direct I/O", "works")
    return note("direct I/O", "not taken by this file system: pages go through the page cache")


def _check_room(root: Path, existing: Path, wanted_bytes: int) -> Finding:
    found = os.statvfs(existing)
    free, stored = found.f_bavail * found.f_frsize, _allocated_bytes(root)
    text = f"{format_size(free)} free, {format_size(stored)} stored, up to "
    text += f"{format_size(wanted_bytes)} wanted"
    if free + stored < wanted_bytes:
        return warn(
            "disk room", text, "lower max_local_disk_size (GB per worker) or make room: pages "
            "that find none are not written",
        )  # fmt: skip
    return ok("disk room", text)


def file_system(path: Path) -> str:
    """The type of the file system that `path` is on, such as ``ext4``."""
    place = path.resolve()
    kind, longest = "unknown", -1
    for line in MOUNTS.read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].replace("\\040", " "))
        # The last one mounted on a place is the one that is seen there.
        if (point == place or point in place.parents) and len(point.parts) >= longest:
            kind, longest = after.split()[0], len(point.parts)
    return kind


def _allocated_bytes(root: Path) -> int:
    """Of all files below `root`."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                total += os.lstat(Path(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total

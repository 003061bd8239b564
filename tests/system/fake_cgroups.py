"""Cgroups as files in a folder of the test."""

from pathlib import Path

from ekya.system.host import Cgroups


class FakeCgroups:
    """Fake of ``/proc/self`` and of the cgroups that a process has mounted.

    Args:
        folder: empty, for all files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.groups = folder, Cgroups(folder / "proc")
        (folder / "proc").mkdir()
        self._lines = ["23 1 259:1 / / rw,relatime - ext4 /dev/vda rw"]
        self._write()

    def v2(self, path="/", root="/"):
        """Mounts the unified hierarchy and returns its folder; ``root`` is the group that the mount shows."""
        return self._mount("unified", root, "cgroup2 cgroup2 rw,nsdelegate", f"0::{path}")

    def v1(self, controller, path="/", root="/"):
        """Mounts the hierarchy of a controller and returns its folder."""
        options = f"cgroup cgroup rw,{controller},{controller}acct"
        return self._mount(controller, root, options, f"4:{controller},{controller}acct:{path}")

    def _mount(self, name, root, options, group):
        mount = self.folder / name
        mount.mkdir()
        self._lines.append(f"31 23 0:29 {root} {mount} rw,relatime shared:9 - {options}")
        with (self.folder / "proc" / "cgroup").open("a") as file:
            file.write(f"{group}\n")
        self._write()
        return mount

    def _write(self):
        (self.folder / "proc" / "mountinfo").write_text("\n".join(self._lines) + "\n")


def write_group(folder, **files):
    """Writes a group's files; in their names the first _ stands for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{text}\n")

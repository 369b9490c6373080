#!/usr/bin/env python3
"""Makes each system call of a save fail, or kills the process at it, and checks which files are left.

    faults.py STRACE SAVE_OVER DIRECTORY

In each case the file at the path is the complete old or new one. After a reported failure it is the old one, no other file
is left in the directory, and the message names the call that failed. strace injects the failures.
"""

import errno
import pathlib
import shutil
import subprocess
import sys

OLD = b"the old file, which is not lost"

# The calls of a save in order, and the errors of each when a disk, a quota or a file system is full or fails.
FAILURES = {
    "fallocate": ["ENOSPC", "EIO", "EDQUOT"],
    "writev": ["ENOSPC", "EIO"],
    "pwrite64": ["ENOSPC", "EIO"],
    "fchmod": ["EPERM"],
    "fsync": ["EIO", "ENOSPC"],
    "linkat": ["EIO", "EMLINK"],
    "renameat": ["EIO", "ENOSPC"],
}
# Each of the two ways to save makes one of these calls.
EITHER = {"writev", "pwrite64"}
# Failures after which the save retries or uses another call, and succeeds.
HARMLESS = {
    "writev": ["error=EINTR:when=1..3"],
    "pwrite64": ["error=EINTR:when=1..3"],
    "fallocate": ["error=EOPNOTSUPP", "error=EINTR:when=1"],
    "fchown": ["error=EPERM"],
    "openat": ["error=EOPNOTSUPP:when=%TMPFILE%"],
}


class Faults:
    def __init__(self, strace, program, directory):
        self.strace, self.program, self.directory = strace, program, directory
        self.target = directory / "m.safetensors"
        self.failed = 0
        self.checked = 0

    def check(self, condition, what):
        self.checked += 1
        if not condition:
            self.failed += 1
            print(f"FAILED: {what}")

    def save(self, how, inject=None):
        """Saves over the old file, with a fault; returns the process, and the calls that it made."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.target.write_bytes(OLD)
        log = self.directory.parent / "strace.log"
        command = [self.strace, "-f", "-qq", "-o", log, "-e", "signal=none"]
        if inject:
            command += ["-e", f"inject={inject}"]
        done = subprocess.run([*command, self.program, self.target, how], capture_output=True, text=True, check=False)
        return done, log.read_text().splitlines()

    def left(self):
        return sorted(path.name for path in self.directory.iterdir())

    def run(self, how):
        done, calls = self.save(how)
        self.check(done.returncode == 0 and self.left() == ["m.safetensors"], f"{how}: {done.stdout}{done.stderr}")
        new = self.target.read_bytes()
        self.check(new != OLD and len(new) > 20 << 20, f"{how}: nothing was saved")
        made = [call.split(maxsplit=1)[1].split("(")[0] for call in calls if "(" in call]
        count = {name: made.count(name) for name in set(made)}

        for name, errors in FAILURES.items():
            if name not in count:
                self.check(name in EITHER, f"{how}: {name} was not called, but {sorted(count)}")
                continue
            for error in errors:
                # The first of its kind and the last.
                for at in sorted({1, count[name]}):
                    if name == "linkat" and at == 1:
                        continue  # a first try to give the file its name at once, which something else has
                    if name == "fsync" and at == 2:
                        continue  # of the directory, when the new file is in place: below
                    done, _ = self.save(how, f"{name}:error={error}:when={at}")
                    what = f"{how}: {name} {at} fails by {error}: {done.stdout.strip()}"
                    self.check(done.returncode == 1, f"{what}: exit {done.returncode}")
                    full = error in ("ENOSPC", "EDQUOT")
                    self.check(done.stdout.startswith("SA_ERR_NO_SPACE" if full else "SA_ERR_IO"), what)
                    self.check(str(getattr(errno, error)) in done.stdout, f"{what}: no number")
                    self.check(self.target.read_bytes() == OLD, f"{what}: the old file is gone")
                    self.check(self.left() == ["m.safetensors"], f"{what}: left {self.left()}")
            self.kill(how, name, count[name], new)

        # The directory cannot be synced: this is reported, and the new file is in place.
        done, _ = self.save(how, "fsync:error=EIO:when=2")
        self.check(done.returncode == 1 and "in place" in done.stdout, f"{how}: directory: {done.stdout}")
        self.check(self.target.read_bytes() == new, f"{how}: directory: not the new file")

        unnamed = next(at for at, call in enumerate([c for c in calls if " openat(" in c], 1) if "O_TMPFILE" in call)
        for name, faults in HARMLESS.items():
            for fault in faults:
                fault = fault.replace("%TMPFILE%", str(unnamed))
                done, calls_then = self.save(how, f"{name}:{fault}")
                what = f"{how}: {name} {fault}: {done.stdout.strip()}"
                self.check(done.returncode == 0 and self.target.read_bytes() == new, what)
                self.check(self.left() == ["m.safetensors"], f"{what}: left {self.left()}")
                if name in count or name == "openat":
                    self.check(any("INJECTED" in call for call in calls_then), f"{what}: nothing was injected")

    def kill(self, how, name, count, new):
        for at in sorted({1, (count + 1) // 2, count}):
            done, _ = self.save(how, f"{name}:signal=KILL:when={at}")
            what = f"{how}: killed at {name} {at} of {count}"
            self.check(done.returncode != 0, what)
            self.check(self.target.read_bytes() in (OLD, new), f"{what}: neither the old file nor the new one")
            # The temporary file has a name only between its link and its rename.
            if name not in ("linkat", "renameat"):
                self.check(self.left() == ["m.safetensors"], f"{what}: left {self.left()}")


def main():
    strace, program, directory = sys.argv[1:4]
    faults = Faults(strace, program, pathlib.Path(directory) / "files")
    for how in ("one-call", "in-pieces"):
        faults.run(how)
    print(f"{faults.checked} checks, {faults.failed} failed")
    sys.exit(1 if faults.failed else 0)


if __name__ == "__main__":
    main()

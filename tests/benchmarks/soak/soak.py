#!/usr/bin/env python3
"""Trains resnet20 on 2 ranks under faults for a given time.

    soak.py DATA --fusor build/bin/fusor [--hours H] [--steps N] [--seed N]
            [--json FILE]

A round trains N steps without a fault, then the same steps under faults, with
--resume auto after each end. The weights must be bit-identical. Rounds repeat
with other faults until the time is over. Faults:

  kill      SIGKILL of one rank or of the launcher
  freeze    SIGSTOP of one rank, for less or for longer than --comm-timeout
  stop      SIGTERM of the launcher: saves and ends
  damage    a byte of the newest checkpoint changes, or its file is cut
  disk      the workspace's files cannot exceed a limit (RLIMIT_FSIZE)
  reader    nobody reads the pipe of stdout for a while
  clock     the clock jumps by up to a day (needs faketime)

Also fails if memory or open files of a rank grow over a round, if a run ends
with an undocumented exit code, or if a run makes no progress. Prints one line
per event and a summary at the end. --json writes all of it. Exits with 1 if
anything failed.
"""

import argparse
import collections
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

# Permitted exit codes under each fault, besides 0. 75: a rank or the network
# was lost. 5: a checkpoint could not be written.
LOST = {75, 137}
ENDINGS = {
    "kill": LOST | {-9},
    "freeze": LOST,
    "stop": {143, -15},
    "damage": LOST,
    "disk": {2, 5, 75},
    "reader": set(),
    "clock": set(),
}
COMM_TIMEOUT = 20
# Seconds without output after which a run counts as stuck.
STUCK = 300
MIB = 1 << 20


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, metavar="DATA",
                        help="image folder: train/CLASS/*, val/CLASS/*")
    parser.add_argument("--fusor", type=pathlib.Path, required=True)
    parser.add_argument("--hours", type=float, default=2)
    parser.add_argument("--steps", type=int, default=300,
                        help="steps of a round")
    parser.add_argument("--seed", type=int, default=None,
                        help="of faults (a new one each run)")
    parser.add_argument("--faults", default=",".join(ENDINGS),
                        help="which ones, separated by commas")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1 << 32)
    args.faults = args.faults.split(",")
    unknown = set(args.faults) - set(ENDINGS)
    if unknown:
        parser.error(f"--faults: unknown {', '.join(sorted(unknown))}")
    if "clock" in args.faults and not shutil.which("faketime"):
        args.faults.remove("clock")
        print("faketime is not installed: no clock jumps", file=sys.stderr)
    return args


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def children(pid):
    """Returns the processes below `pid`, including its ranks."""
    found = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for task in tasks:
        try:
            text = pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text()
        except OSError:
            continue
        for child in map(int, text.split()):
            found += [child, *children(child)]
    return found


def usage(pid):
    """Returns resident MiB and open files of a process, or None if it has
    ended."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        files = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024, files
    return None


@dataclasses.dataclass
class Ending:
    code: int
    seconds: float
    tail: str
    stuck: bool = False


class Run:
    """Starts the training and watches it until it ends."""

    def __init__(self, soak, workspace, limit=None, offset=None):
        self.samples = collections.defaultdict(list)
        command = [soak.args.fusor, "launch", "--nproc-per-node", "2",
                   "--master-port", str(free_port()), "--", "train",
                   soak.args.data, "--arch", "resnet20-cifar", "-b", "16",
                   "--threads", "1", "--iterations", str(soak.args.steps),
                   "--epochs", "1000", "--evaluate-every", "0",
                   "--checkpoint-every", "10", "--workspace", workspace,
                   "--resume", "auto", "--deterministic", "--print-freq", "5",
                   "--comm-timeout", str(COMM_TIMEOUT)]
        if offset:
            command = ["faketime", "-f", offset, *command]
        self.start = time.monotonic()
        self.process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
            preexec_fn=limit)
        self.lines = collections.deque(maxlen=30)
        self.last = time.monotonic()
        self.reading = threading.Event()
        self.reading.set()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.reading.wait()
            self.lines.append(line.rstrip())
            self.last = time.monotonic()

    def ranks(self):
        return [pid for pid in children(self.process.pid)
                if self.is_training(pid)]

    @staticmethod
    def is_training(pid):
        try:
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return b"train" in words and b"launch" not in words

    def sample(self):
        for pid in self.ranks():
            measured = usage(pid)
            if measured:
                self.samples[pid].append(measured)

    def signal(self, pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def wait(self, until=None):
        """Returns an Ending, or None if `until` happens first."""
        while self.process.poll() is None:
            now = time.monotonic()
            if until is not None and now >= until:
                return None
            if now - self.last > STUCK and self.reading.is_set():
                self.end()
                return Ending(-1, now - self.start, "\n".join(self.lines), True)
            self.sample()
            time.sleep(0.2)
        self.reading.set()
        self.reader.join(timeout=10)
        return Ending(self.process.returncode, time.monotonic() - self.start,
                      "\n".join(self.lines))

    def end(self):
        """Kills the run's own session, including frozen processes."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def growth(self):
        """Returns how much a rank grew at most from its first to its last
        third."""
        memory = files = 0
        for series in self.samples.values():
            if len(series) < 30:
                continue
            third = len(series) // 3
            first, last = series[third:2 * third], series[-third:]
            memory = max(memory, max(m for m, _ in last)
                         - max(m for m, _ in first))
            files = max(files, max(f for _, f in last)
                        - max(f for _, f in first))
        return memory, files


def weights_hash(workspace):
    # The header's order of names differs between files of equal weights.
    return hashlib.sha256(
        (workspace / "model.safetensors").read_bytes()).hexdigest()


def damage_newest(workspace, choice):
    """Changes a byte of the newest checkpoint's largest file, or truncates
    it."""
    folders = sorted(workspace.glob("checkpoints/step-*"))
    if len(folders) < 2:
        return None
    path = max((f for f in folders[-1].iterdir() if f.is_file()),
               key=lambda f: f.stat().st_size)
    size = path.stat().st_size
    if choice.random() < 0.5:
        os.truncate(path, choice.randrange(size))
    else:
        with path.open("r+b") as file:
            file.seek(choice.randrange(size))
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
    return path.name


class Soak:

    def __init__(self, args):
        self.args = args
        self.choice = random.Random(args.seed)
        self.deadline = time.monotonic() + 3600 * args.hours
        self.events = []
        self.failures = []

    def note(self, text, **more):
        minutes = (time.monotonic() - self.deadline + 3600 * self.args.hours) / 60
        self.events.append({"minutes": round(minutes, 2), "event": text, **more})
        print(f"{minutes:7.1f} min  {text}", flush=True)

    def fail(self, text, tail=""):
        self.failures.append(text)
        self.note(f"FAILED {text}", tail=tail)
        if tail:
            print(tail, file=sys.stderr)

    def undisturbed(self, root):
        workspace = root / "undisturbed"
        run = Run(self, workspace)
        ending = run.wait()
        if ending.code != 0 or ending.stuck:
            self.fail(f"undisturbed run ended with {ending.code}", ending.tail)
            return None, ending.seconds
        memory, files = run.growth()
        self.note(f"undisturbed: {ending.seconds:.0f} s, grew by "
                  f"{memory:.1f} MiB and {files} files",
                  seconds=ending.seconds, memory_mib=memory, files=files)
        # Nothing may grow after the warm-up.
        if memory > 8:
            self.fail(f"memory of a rank grew by {memory:.1f} MiB in a run")
        if files > 4:
            self.fail(f"a rank has {files} more open files at the end of a run")
        return weights_hash(workspace), ending.seconds

    def strike(self, fault, run):
        """Applies a fault to a running training."""
        ranks = run.ranks()
        if not ranks:
            return "nothing to strike"
        victim = self.choice.choice(ranks)
        if fault == "kill":
            if self.choice.random() < 0.2:
                victim = run.process.pid
            run.signal(victim, signal.SIGKILL)
            return "killed " + ("the launcher" if victim == run.process.pid
                                else "a rank")
        if fault == "freeze":
            seconds = self.choice.choice([2, COMM_TIMEOUT + 15])
            run.signal(victim, signal.SIGSTOP)
            run.wait(time.monotonic() + seconds)
            run.signal(victim, signal.SIGCONT)
            return f"froze a rank for {seconds} s"
        if fault == "stop":
            run.signal(run.process.pid, signal.SIGTERM)
            return "asked the launcher to stop"
        if fault == "reader":
            seconds = self.choice.choice([5, 20])
            run.reading.clear()
            run.wait(time.monotonic() + seconds)
            run.reading.set()
            return f"read no output for {seconds} s"
        if fault == "damage":
            run.signal(victim, signal.SIGKILL)
            return "killed a rank, to damage what it left"
        return "ran under it"

    def limit_for(self, fault):
        """Returns what the child does before it starts. For `disk`, it limits
        the file size."""
        if fault != "disk":
            return None
        size = self.choice.choice([64 << 10, 1 * MIB])
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE,
                                          (size, resource.RLIM_INFINITY))

    def under_fault(self, workspace, seconds):
        """Starts the training once under a fault. Returns True if it is
        done."""
        fault = self.choice.choice(self.args.faults)
        offset = (f"{self.choice.choice('+-')}{self.choice.randrange(1, 86400)}s"
                  if fault == "clock" else None)
        run = Run(self, workspace, self.limit_for(fault), offset)
        try:
            # At any time of the run, including start-up.
            at = time.monotonic() + self.choice.uniform(0.5, 0.6 * seconds + 3)
            ending = run.wait(at)
            what = "the run was over first"
            if ending is None:
                what = self.strike(fault, run)
                ending = run.wait(time.monotonic() + 3 * seconds + STUCK)
            if ending is None:
                self.fail(f"{fault}: still running long after it",
                          "\n".join(run.lines))
                return False
        finally:
            run.end()
            # Ranks end by themselves after their launcher was killed.
            self.reap(run)
        self.note(f"{fault}: {what}; ended with {ending.code} after "
                  f"{ending.seconds:.0f} s", fault=fault, code=ending.code)
        if ending.stuck:
            self.fail(f"{fault}: no output for {STUCK} s", ending.tail)
        elif ending.code != 0 and ending.code not in ENDINGS[fault]:
            self.fail(f"{fault}: unexpected exit code {ending.code}",
                      ending.tail)
        if fault == "damage":
            name = damage_newest(workspace, self.choice)
            if name:
                self.note(f"damaged {name} of the newest checkpoint")
        return ending.code == 0

    def reap(self, run):
        """Waits for the rest of a run's session."""
        end = time.monotonic() + COMM_TIMEOUT + 60
        while time.monotonic() < end:
            try:
                os.killpg(run.process.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.2)
        self.fail("ranks outlived their launcher")
        os.killpg(run.process.pid, signal.SIGKILL)

    def round(self, number, root):
        expected, seconds = self.undisturbed(root)
        if expected is None:
            return
        workspace = root / "faults"
        starts = 0
        done = False
        while not done:
            starts += 1
            if starts > 40:
                # The last start has no fault, so that the round ends.
                ending = Run(self, workspace).wait()
                done = True
                if ending.code != 0:
                    self.fail(f"last start ended with {ending.code}", ending.tail)
                    return
            else:
                done = self.under_fault(workspace, seconds)
        same = weights_hash(workspace) == expected
        self.note(f"round {number}: {starts} starts, weights "
                  + ("equal" if same else "DIFFER"), starts=starts)
        if not same:
            self.fail(f"round {number}: weights differ from the undisturbed run")

    def run(self):
        self.note(f"seed {self.args.seed}, faults {', '.join(self.args.faults)}")
        number = 0
        while number == 0 or (time.monotonic() < self.deadline
                              and not self.failures):
            number += 1
            with tempfile.TemporaryDirectory(prefix="fusor-soak-") as folder:
                self.round(number, pathlib.Path(folder))
        counts = collections.Counter(
            e["fault"] for e in self.events if "fault" in e)
        summary = {"rounds": number, "faults": dict(counts),
                   "failures": self.failures, "seed": self.args.seed}
        self.note(f"{number} rounds, {sum(counts.values())} faults "
                  f"({', '.join(f'{n} {c}' for n, c in sorted(counts.items()))}), "
                  f"{len(self.failures)} failures")
        if self.args.json:
            self.args.json.write_text(
                json.dumps({**summary, "events": self.events}, indent=1) + "\n")
        return 1 if self.failures else 0


if __name__ == "__main__":
    sys.exit(Soak(arguments()).run())

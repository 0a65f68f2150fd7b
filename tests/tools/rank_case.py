"""Shared by tests of fusor train on several ranks. The first argument of a
program that imports this is the fusor to test."""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import unittest

import noise_images
from kernel_cache import kernel_cache
from small_network import NETWORK

FUSOR = pathlib.Path(sys.argv.pop(1)).resolve()
SIZE = ["--arch", str(NETWORK), "--num-classes", "5", "--threads", "1", "-b",
        "4"]
LAUNCHER_VARIABLES = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_|MASTER_|OMPI_|PMI|SLURM_|TORCHELASTIC_)")


def environment(**more):
    """Returns this process's environment without a launcher's variables."""
    kept = {name: value for name, value in os.environ.items()
            if not LAUNCHER_VARIABLES.match(name)}
    return {**kept, **more}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def fusor(*args, **variables):
    return subprocess.run([FUSOR, *map(str, args)], timeout=300,
                          capture_output=True, text=True, check=False,
                          env=environment(**variables))


class RankCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls._folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls._folder.cleanup)
        cls.root = pathlib.Path(cls._folder.name)
        os.environ["FUSOR_CACHE_DIR"] = str(kernel_cache(FUSOR.parents[1]))
        cls.data = cls.root / "data"
        noise_images.make_images(cls.data, train=16, val=3)

    def train(self, ranks, *args, name="run"):
        """Runs a training. Returns its JSON and its text."""
        out = self.root / f"{name}.json"
        command = ["train", self.data, *SIZE, "--json", out, *args]
        if ranks > 1:
            command = ["launch", "--nproc-per-node", ranks, "--", *command]
        done = fusor(*command)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(out.read_text()), done.stdout

    def start(self, rank, world, port, *args, data=None):
        """Starts one rank of several as a process."""
        run = subprocess.Popen(
            [FUSOR, "train", data or self.data, *map(str, [*SIZE, *args])],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(RANK=str(rank), WORLD_SIZE=str(world),
                            LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world),
                            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)))
        self.addCleanup(end, run)
        return run


def end(run):
    run.kill()
    run.communicate()

"""Tests two ranks on two hosts, each a network namespace:
two_hosts_cli_test.py FUSOR. Exits with 77 (skipped by ctest) if namespaces are
not available."""

import json
import os
import pathlib
import sys
import unittest

from rank_case import FUSOR, SIZE, RankCase, end, environment

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]
                       / "benchmarks" / "two_hosts"))
import overlap  # noqa: E402
import two_hosts  # noqa: E402

PEER_LOST = 75
ENDLESS = ["--epochs", 100_000, "-p", 1, "--comm-timeout", 6]


class TwoHostsTest(RankCase):
    def setUp(self):
        self.hosts = self.enterContext(two_hosts.TwoHosts())

    def start_ranks(self, *args):
        command = [FUSOR, "train", self.data, *SIZE, "--training-only", "--lr",
                   0.001, *args]
        runs = self.hosts.start_ranks([command, command], environment(
            FUSOR_CACHE_DIR=os.environ["FUSOR_CACHE_DIR"]))
        for run in runs:
            self.addCleanup(end, run)
        return runs

    def test_parameters_are_the_same_after_50_steps(self):
        out = self.root / "two.json"
        runs = self.start_ranks("--iterations", 50, "--json", out)
        texts = [run.communicate(timeout=300) for run in runs]
        for run, (_, errors) in zip(runs, texts):
            self.assertEqual(run.returncode, 0, errors)
        self.assertRegex(
            texts[0][0], r"ranks     2 by RANK and WORLD_SIZE: 0-1 on .*; gloo "
            r"over cable \(10.77.0.1\), rank 0 at 10.77.0.1:29500\n")
        self.assertIn("parameters are identical on all 2", texts[0][0])
        # The network must not change a bit.
        local, _ = self.train(2, "--training-only", "--lr", 0.001,
                              "--iterations", 50)
        report = json.loads(out.read_text())
        self.assertEqual(report["parameter_hash"], local["parameter_hash"])

    def test_a_host_whose_name_means_loopback_to_itself_is_reached(self):
        self.hosts.call_first("node-a")
        runs = self.start_ranks("--iterations", 2)
        text, errors = runs[0].communicate(timeout=100)
        self.assertEqual(runs[0].returncode, 0, errors)
        self.assertIn("gloo over cable (10.77.0.1), rank 0 at node-a:29500",
                      text)

    def test_a_host_that_cannot_be_reached_is_named(self):
        runs = self.start_ranks(*ENDLESS)
        for line in runs[0].stdout:
            if "iteration  " in line:
                break
        self.hosts.unplug(1)
        for rank, run in enumerate(runs):
            _, errors = run.communicate(timeout=100)
            self.assertEqual(run.returncode, PEER_LOST, errors)
            self.assertRegex(errors, rf"^fusor: rank {1 - rank} on .* is "
                             "frozen or unreachable: not heard of for ")

    def test_the_measurement_of_overlap_runs(self):
        sys.argv[1:] = ["--fusor", str(FUSOR), "--arch", "resnet20-cifar",
                        "--batch", "2", "--image-size", "32", "--mbit", "100",
                        "--rounds", "1", "--warmup", "1", "--steps", "2",
                        "--cores", "spare",
                        "--out", str(self.root / "overlap")]
        self.hosts.__exit__()
        overlap.main()
        written = json.loads((self.root / "overlap.json").read_text())
        (row,) = written["rows"]
        # 1.1 MB per direction take 86 ms at 100 Mbit/s.
        self.assertGreater(row["communication_ms"], 60)
        self.assertGreater(row["without_overlap_ms"], row["compute_ms"])
        for kind in ("overlap", "sharded"):
            self.assertGreater(row[kind]["step_ms"], 60)
        # All-reduces and all-gathers.
        self.assertGreater(row["sharded"]["collectives"], 2)
        self.assertIn("| spare | 100 |", (self.root / "overlap.md").read_text())


if __name__ == "__main__":
    why_not = two_hosts.missing()
    if why_not:
        print(f"skipped: {why_not}")
        sys.exit(77)
    unittest.main()

#!/usr/bin/env python3
"""Tests fusor compare on several ranks of this machine.

    compare_ranks_cli_test.py FUSOR
"""

import json
import subprocess
import unittest

from rank_case import FUSOR, RankCase, end, environment, free_port, fusor

SMALL = ["-a", "resnet20-cifar", "-b", "4", "--num-classes", "10",
         "--threads", "1"]


class CompareRanksTest(RankCase):
    def compare(self, ranks, *args):
        out = self.root / "compare.json"
        done = fusor("launch", "--nproc-per-node", ranks, "--", "compare",
                     *SMALL, "--json", out, *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(out.read_text()), done.stdout

    def test_bucket_policies_run_side_by_side(self):
        page = self.root / "page.html"
        data, text = self.compare(
            2, "--rounds", 3, "--warmup", 1, "--a", "bucket-policy=exact",
            "--b", "bucket-policy=cap:0.2", "--html", page,
            "--dump-to", self.root / "dump", "--dump-pass", "plan")
        # Only rank 0 reports.
        self.assertEqual(text.count("gradient buckets"), 1)
        self.assertEqual(text.count("ranks     2 by fusor launch"), 1)
        self.assertIn("batch 4 per rank, 2 ranks", text)
        self.assertIn("identical on all 2 ranks", text)
        self.assertEqual(data["ranks"], 2)
        exact, cap = data["variants"]
        self.assertEqual(cap["communication"]["buckets"],
                         cap["counters"]["gradient_buckets"])
        self.assertGreater(cap["communication"]["buckets"],
                           exact["communication"]["buckets"])
        self.assertEqual(exact["step_ms"]["rounds"], 3)
        pair = data["comparisons"][0]
        self.assertGreater(pair["speed_ratio"], 0)
        # A sum over two ranks has only one order.
        self.assertTrue(pair["numbers"]["bit_identical"])
        self.assertEqual(pair["numbers"]["different_on_ranks"], [0, 0])
        self.assertEqual(set(pair["numbers"]["summary"]),
                         {"output", "state", "gradient", "intermediate"})
        self.assertIn("Collectives: ", page.read_text())
        self.assertEqual(
            sorted(p.name for p in (self.root / "dump").iterdir()),
            ["v0.bucket-policy_exact", "v1.bucket-policy_cap_0.2"])

    def test_all_reduces_in_rank_order_are_bit_identical(self):
        data, _ = self.compare(
            3, "--rounds", 0, "--deterministic", "--a", "bucket-policy=exact",
            "--b", "bucket-policy=one")
        numbers = data["comparisons"][0]["numbers"]
        self.assertEqual(numbers["different_on_ranks"], [0, 0, 0])

    def test_shards_are_compared_as_whole_tensors(self):
        data, _ = self.compare(
            2, "--rounds", 0, "--a", "sharded-optimizer=off", "--b",
            "sharded-optimizer=on", "--b", "wire-dtype=bf16", "--b",
            "sync-bn=on", "--b", "fusion=off")
        whole = data["variants"][0]
        sharded, wire, sync, plain = data["comparisons"]
        kinds = sharded["numbers"]["summary"]
        self.assertEqual(kinds["gradient"]["values"], 65)
        self.assertEqual(kinds["state"]["values"], 172)
        self.assertTrue(sharded["numbers"]["bit_identical"])
        self.assertEqual(sharded["numbers"]["unmatched_outputs"], 0)
        self.assertEqual(len(data["variants"][1]["communication"]["collectives"]),
                         data["variants"][1]["communication"]["buckets"] + 1)
        # The difference where the sums are not the same.
        summary = wire["numbers"]["summary"]
        self.assertEqual(summary["output"]["bit_identical"], 1)
        self.assertLess(summary["gradient"]["bit_identical"], 65)
        self.assertLess(summary["gradient"]["relative"], 2 ** -8)
        self.assertEqual(data["variants"][2]["loss"], whole["loss"])
        self.assertNotEqual(data["variants"][3]["loss"], whole["loss"])
        self.assertGreater(sync["numbers"]["different_on_ranks"][1], 100)
        self.assertGreater(plain["numbers"]["summary"]["gradient"]["relative"],
                           0)

    def test_ranks_need_equal_flags(self):
        port = free_port()
        runs = []
        for rank in range(2):
            runs.append(subprocess.Popen(
                [FUSOR, "compare", *SMALL, "--rounds", "0", "--a",
                 f"bucket-policy=cap:0.{rank + 1}"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=environment(RANK=str(rank), WORLD_SIZE="2",
                                LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2",
                                MASTER_ADDR="127.0.0.1",
                                MASTER_PORT=str(port))))
            self.addCleanup(end, runs[-1])
        for run in runs:
            _, errors = run.communicate(timeout=200)
            self.assertEqual(run.returncode, 3, errors)
            self.assertIn("--a: bucket-policy=cap:0.1 on rank 0, "
                          "bucket-policy=cap:0.2 on rank 1", errors)

    def test_what_does_not_fit_ranks_gets_one_line(self):
        for args, message in (
                (["--world-size", "4"], "expected no launcher, got fusor launch "
                                        "with 2 ranks"),
                (["--tune"], "--tune measures on one rank"),
                (["--b", "backend=null"], "--b: backend=null: expected "
                                          "cpu, which connects the ranks")):
            done = fusor("launch", "--nproc-per-node", 2, "--", "compare",
                         *SMALL, *args)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(message, done.stderr)


if __name__ == "__main__":
    unittest.main()

"""Tests fusor train on several ranks of this machine.

    ranks_cli_test.py FUSOR
"""

import array
import json
import math
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import unittest

from rank_case import FUSOR, SIZE, RankCase, environment, free_port, fusor


def weights(folder):
    """Returns the tensors of a run's model.safetensors by name."""
    data = (folder / "model.safetensors").read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = array.array("f")
        values.frombytes(data[8 + size + begin:8 + size + end])
        tensors[name] = values
    return tensors


def distance(a, b, wanted):
    """Returns |a - b| / |a|, Euclidean, over the named tensors."""
    names = [name for name in a if wanted(name)]
    assert names and a.keys() == b.keys()
    apart = sum((x - y) ** 2 for n in names for x, y in zip(a[n], b[n]))
    return math.sqrt(apart / sum(x * x for n in names for x in a[n]))


def is_running(name):
    return "running" in name


def is_trained(name):
    return "running" not in name


class RanksTest(RankCase):
    def test_ranks_have_the_same_parameters_after_50_steps(self):
        report, text = self.train(4, "--iterations", 50, "--lr", 0.01,
                                  "--training-only")
        self.assertEqual(report["ranks"], 4)
        self.assertIn("parameters are identical on all 4", text)
        self.assertRegex(
            text, r"ranks     4 by fusor launch: 0-3 on .*; gloo over lo "
            r"\(127.0.0.1\), rank 0 at 127.0.0.1:\d+\n")

    def test_deterministic_ranks_are_micro_batches(self):
        args = ["--iterations", 6, "--training-only", "--deterministic",
                "--lr", 0.01]
        several, _ = self.train(4, *args)
        one, _ = self.train(1, *args, "--optimizer-batch-size", 16)
        self.assertEqual(several["parameter_hash"], one["parameter_hash"])
        self.assertNotEqual(several["state_hash"], one["state_hash"])
        mixed, _ = self.train(4, *args, "--amp", "--bucket-policy", "cap:0.1")
        alone, _ = self.train(1, *args, "--amp", "--optimizer-batch-size", 16)
        self.assertEqual(mixed["parameter_hash"], alone["parameter_hash"])
        self.assertGreater(mixed["counters"]["gradient_buckets"], 4)

    def test_threads_spin_briefly_and_not_at_all_on_shared_cores(self):
        # libgomp prints this when it is loaded, unless it is told how to wait.
        def spins(ranks, threads, **variables):
            kept = environment(OMP_DISPLAY_ENV="verbose")
            for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
                kept.pop(name, None)
            done = subprocess.run(
                [FUSOR, "launch", "--nproc-per-node", str(ranks), "--",
                 "bench", "-a", "resnet20-cifar", "-b", "1", "--warmup", "0",
                 "--iterations", "1", "--threads", str(threads)],
                timeout=300, capture_output=True, text=True, check=False,
                env={**kept, **variables})
            self.assertEqual(done.returncode, 0, done.stderr)
            found = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
            self.assertEqual(len(found), ranks, done.stderr)
            return set(map(int, found))

        every = os.cpu_count() + 1
        self.assertEqual(spins(2, every), {0})
        self.assertGreater(min(spins(2, every, OMP_WAIT_POLICY="active")),
                           10000)
        self.assertEqual(spins(2, 1), {10000})
        self.assertEqual(spins(1, every), {10000})
        self.assertEqual(spins(1, 2, GOMP_SPINCOUNT="77"), {77})

    def step(self, ranks, *args):
        """Returns the state after one step over 16 images, and its loss."""
        work = self.root / "step"
        out = self.root / "step.json"
        done = fusor(
            "launch", "--nproc-per-node", ranks, "--", "train", self.data,
            *SIZE[:-1], 16 // ranks, "--iterations", 1, "--training-only",
            "--lr", 0.01, "--workspace", work, "--verify", "--json", out, *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        tensors = weights(work)
        shutil.rmtree(work)
        return tensors, json.loads(out.read_text())["loss"]

    def assert_near(self, expected, actual, statistics, parameters):
        """Compares state and loss of two steps."""
        one, loss = expected
        other, its = actual
        self.assertLess(abs(its / loss - 1), statistics)
        self.assertLess(distance(one, other, is_running), statistics)
        self.assertLess(distance(one, other, is_trained), parameters)

    def test_synchronised_normalisation_is_that_of_the_whole_batch(self):
        one = self.step(1)
        self.assertEqual(self.step(1, "--sync-bn"), one)
        self.assert_near(one, self.step(4, "--sync-bn"), 1e-5, 1e-5)
        apart, _ = self.step(4)
        self.assertGreater(distance(one[0], apart, is_running), 1e-3)
        self.assertGreater(distance(one[0], apart, is_trained), 2e-4)

    def test_so_is_that_of_mixed_precision(self):
        # bf16 has 8 bits, and the step changes weights by 2e-3.
        self.assert_near(self.step(1, "--amp"),
                         self.step(2, "--amp", "--sync-bn"), 1e-2, 1e-3)

    def test_a_sharded_optimizer_is_bit_identical_to_a_whole_one(self):
        args = ["--iterations", 4, "--training-only", "--lr", 0.01,
                "--deterministic", "--ema-decay", 0.9, "--nesterov"]
        for ranks, more in ((2, ["--optimizer-batch-size", 16]),
                            (3, ["--sync-bn"]), (2, ["--amp"])):
            whole, _ = self.train(ranks, *args, *more)
            parts, text = self.train(ranks, *args, *more,
                                     "--sharded-optimizer", "--verify")
            self.assertIn(f"parameters are identical on all {ranks}", text)
            self.assertEqual(parts["parameter_hash"], whole["parameter_hash"])
            self.assertEqual(parts["state_hash"], whole["state_hash"])
            self.assertGreater(parts["counters"]["sharded_parameters"], 10)

    def test_sharded_averages_are_evaluated_and_saved_whole(self):
        for more in ([], ["--amp"]):
            runs = []
            for sharded in ([], ["--sharded-optimizer"]):
                work = self.root / f"ema{len(more)}{len(sharded)}"
                report, _ = self.train(
                    2, "--iterations", 4, "--epochs", 2, "--lr", 0.05,
                    "--deterministic", "--ema-decay", 0.5, "--verify",
                    "--workspace", work, *more, *sharded)
                runs.append((report, (work / "model.safetensors").read_bytes(),
                             (work / "model-ema.safetensors").read_bytes()))
            whole, parts = runs
            self.assertEqual(len(parts[0]["evaluations"]), 1)
            for key in ("losses", "state_hash"):
                self.assertEqual(parts[0][key], whole[0][key], key)
            # Shards are evaluated with 16-bit copies, whole parameters are
            # cast. If the CPU computes in f32, the cast is omitted.
            self.assertAlmostEqual(parts[0]["evaluations"][0]["loss"],
                                   whole[0]["evaluations"][0]["loss"],
                                   delta=0.01 if more else 0)
            self.assertEqual(parts[1:], whole[1:])
            self.assertNotEqual(parts[1], parts[2])

    def test_shards_are_saved_whole_and_split_again(self):
        args = ["--training-only", "--deterministic", "--lr", 0.01,
                "--optimizer-batch-size", 16, "--iterations", 6]
        for first, then in ((4, 2), (1, 2)):
            hashes = set()
            for sharded in ([], ["--sharded-optimizer"]):
                work = self.root / f"{first}to{then}{len(sharded)}"
                self.train(first, *args, *sharded, "--prof", 3, "--workspace",
                           work)
                report, text = self.train(
                    then, *args, *sharded, "--workspace", work, "--resume",
                    "auto")
                self.assertIn("after step 3", text)
                hashes.add(report["parameter_hash"])
            self.assertEqual(len(hashes), 1)

    def test_a_sharded_optimizer_skips_steps_that_overflow(self):
        # The first scale overflows, later ones do not.
        args = ["--iterations", 5, "--training-only", "--lr", 0.01,
                "--deterministic", "--dynamic-loss-scale", "--ema-decay", 0.9,
                "--max-loss-scale", 1e10, "--initial-loss-scale", 1e10,
                "--loss-scale-backoff", 1e-6, "--dtype", "fp16"]
        for ranks, more in ((2, []), (3, ["--opt-level", "O2"])):
            whole, _ = self.train(ranks, *args, *more)
            parts, text = self.train(ranks, *args, *more,
                                     "--sharded-optimizer", "--verify")
            self.assertIn(f"parameters are identical on all {ranks}", text)
            self.assertIn(parts["skipped_updates"], (1, 2, 3))
            for key in ("parameter_hash", "state_hash", "loss_scale",
                        "skipped_updates"):
                self.assertEqual(parts[key], whole[key], key)

    def test_a_sharded_optimizer_adds_norms_up_over_ranks(self):
        # One rank adds in another order, so results are not bit-identical.
        for ranks, args in ((2, ["--optimizer", "lars"]),
                            (2, ["--optimizer", "lamb"]),
                            (2, ["--clip-grad-norm", 0.1]),
                            (3, ["--optimizer", "lars", "--clip-grad-norm", 1,
                                 "--opt-level", "O2"])):
            losses = []
            for sharded in ([], ["--sharded-optimizer", "--verify"]):
                report, text = self.train(
                    ranks, *args, *sharded, "--iterations", 3, "--lr", 0.01,
                    "--training-only", "--deterministic")
                self.assertIn(f"parameters are identical on all {ranks}", text)
                losses.append(report["losses"])
            for one, other in zip(*losses):
                self.assertAlmostEqual(one, other, delta=1e-3 * one)

    def test_gradients_are_sent_in_the_communication_dtype(self):
        # A sum over two ranks has only one order.
        args = ["--iterations", 2, "--training-only", "--lr", 0.01, "--amp"]
        hashes = {}
        for wire in ("auto", "fp32", "fp16", "bf16"):
            report, text = self.train(2, *args, "--wire-dtype", wire)
            self.assertIn("parameters are identical on all 2", text)
            hashes[wire] = report["parameter_hash"]
        # On a CPU, mixed precision means bf16.
        self.assertEqual(hashes["auto"], hashes["bf16"])
        self.assertEqual(len(set(hashes.values())), 3)

    def test_every_validation_image_counts_once(self):
        args = ["--epochs", 1, "--lr", 0, "--iterations", 1]
        one, _ = self.train(1, *args)
        two, _ = self.train(2, *args)
        self.assertEqual(two["evaluations"][-1]["images"], 15)
        self.assertEqual(one["evaluations"][-1]["images"], 15)

    def test_evaluations_and_files_have_rank_0s_statistics(self):
        files, evaluation = [], None
        for ranks in (1, 2):
            work = self.root / f"statistics-{ranks}"
            report, _ = self.train(ranks, "--iterations", 1, "--epochs", 1,
                                   "--lr", 0.01, "--workspace", work)
            files.append(weights(work))
            evaluation = report["evaluations"][-1]
        one, two = files
        # Both started with the same batch, then rank 1 had another.
        for name in filter(is_running, one):
            self.assertEqual(one[name], two[name], name)
        self.assertGreater(distance(one, two, is_trained), 1e-5)
        # Every rank has evaluated its images with these weights.
        out = self.root / "eval.json"
        done = fusor("eval", self.data, *SIZE, "--weights",
                     work / "model.safetensors", "--json", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        alone = json.loads(out.read_text())
        self.assertEqual(alone["images"], evaluation["images"])
        self.assertAlmostEqual(alone["loss"], evaluation["loss"], places=5)

    def test_mixed_precision_clipping_and_dynamic_scaling_train(self):
        _, text = self.train(
            2, "--iterations", 4, "--training-only", "--opt-level", "O2",
            "--clip-grad-norm", 1, "--verify")
        self.assertIn("parameters are identical on all 2", text)

    def test_a_run_resumes_with_another_number_of_ranks(self):
        args = ["--training-only", "--deterministic", "--lr", 0.01,
                "--optimizer-batch-size", 16, "--epochs", 2]
        whole, _ = self.train(1, *args, "--iterations", 6)
        work = self.root / "work"
        self.train(4, *args, "--iterations", 6, "--prof", 3, "--workspace",
                   work)
        report, text = self.train(1, *args, "--iterations", 6, "--workspace",
                                  work, "--resume", "auto")
        self.assertIn("after step 3", text)
        self.assertEqual(report["parameter_hash"], whole["parameter_hash"])
        self.assertEqual(sorted(p.name for p in work.iterdir()),
                         ["checkpoints", "model.safetensors"])

    def timeline(self, ranks, *args):
        path = self.root / f"timeline-{ranks}.json"
        report, _ = self.train(ranks, "--iterations", 6, "--training-only",
                               "--timeline", path, *args)
        return report, json.loads(path.read_text())

    def test_a_timeline_has_each_bucket(self):
        report, trace = self.timeline(2, "--bucket-policy", "cap:0.1",
                                      "--timeline-steps", "3:5")
        runs = trace["otherData"]["runs"]
        self.assertEqual([run["run"] for run in runs], [3, 4, 5])
        for run in runs:
            buckets = run["collectives"]
            self.assertEqual({b["op"] for b in buckets}, {"all_reduce"})
            self.assertEqual(len(buckets),
                             report["counters"]["gradient_buckets"])
            # Collectives end one after another within the step.
            ended = 0
            for bucket in buckets:
                self.assertLessEqual(bucket["ready_ms"], bucket["start_ms"])
                self.assertLessEqual(ended, bucket["start_ms"])
                self.assertLess(bucket["start_ms"], bucket["end_ms"])
                ended = bucket["end_ms"]
            self.assertLessEqual(ended, run["step_ms"])
            self.assertAlmostEqual(run["compute_ms"] + run["not_overlapped_ms"],
                                   run["step_ms"])
        events = trace["traceEvents"]
        collectives = [e for e in events if e.get("cat") == "collective"]
        self.assertEqual(len(collectives), 3 * len(runs[0]["collectives"]))
        self.assertEqual({e["args"]["name"] for e in collectives},
                         {b["name"] for b in runs[0]["collectives"]})
        threads = {e["args"]["name"]: e["tid"] for e in events
                   if e["name"] == "thread_name"}
        self.assertEqual({e["tid"] for e in collectives},
                         {threads["collectives"]})
        computed = [e for e in events if e["ph"] == "X"
                    and e["tid"] == threads["computation"]]
        for before, after in zip(computed, computed[1:]):
            self.assertLessEqual(before["ts"] + before["dur"],
                                 after["ts"] + 1e-3)

    def test_a_timeline_of_one_rank_has_no_collectives(self):
        _, trace = self.timeline(1)
        runs = trace["otherData"]["runs"]
        self.assertEqual([run["run"] for run in runs], [3, 4, 5, 6])
        for run in runs:
            self.assertEqual(run["collectives"], [])
            self.assertEqual(run["not_overlapped_ms"], 0)
            self.assertGreater(run["compute_ms"], 0)
        done = fusor("train", self.data, *SIZE, "--timeline", self.root / "t",
                     "--timeline-steps", "7:3")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--timeline-steps: expected FIRST:LAST, got 7:3",
                      done.stderr)

    def test_rank_0_logs_the_speed_of_all(self):
        raport = self.root / "raport.json"
        lines = self.root / "lines.jsonl"
        work = self.root / "logged"
        self.train(2, "--iterations", 6, "--training-only", "-p", 1,
                   "--workspace", work, "--raport-file", raport,
                   "--log-jsonl", lines)
        self.assertEqual(sorted(p.name for p in work.iterdir()),
                         ["checkpoints", "model.safetensors"])
        for line in map(json.loads, lines.read_text().splitlines()):
            if line["type"] == "step":
                self.assertAlmostEqual(
                    line["images_per_second"] * line["seconds"], 2 * 4)
        # Every line appears once, complete.
        logged = [json.loads(line.removeprefix("DLLL "))
                  for line in raport.read_text().splitlines()]
        steps = [line for line in logged if line["type"] == "LOG"
                 and line["step"] not in ("PARAMETER", [])]
        self.assertEqual(len(steps), 6)
        for line in steps:
            # As in NVIDIA's script: the images of all ranks per iteration
            # time.
            data = line["data"]
            self.assertAlmostEqual(
                data["train.total_ips"]
                * (data["train.data_time"] + data["train.compute_time"]), 2 * 4)

    def test_ranks_with_other_settings_are_named_before_the_first_step(self):
        for words, args in (
                ("--bucket-policy: cap:0.1 on ranks 0, 2, one on rank 1",
                 {0: ["--bucket-policy", "cap:0.1"],
                  1: ["--bucket-policy", "one"],
                  2: ["--bucket-policy", "cap:0.1"]}),
                ("--lr: 0.1 on rank 0, 0.2 on rank 1",
                 {0: ["--lr", "1e-1"], 1: ["--lr", "0.2"]}),
                ("--lr-schedule: cosine on rank 0, linear on rank 1; "
                 "--warmup: 0 on rank 0, 1 on rank 1",
                 {0: [], 1: ["--warmup", 1, "--lr-schedule", "linear"]}),
                ("--epochs: 90 on rank 0, 3 on rank 1",
                 {0: [], 1: ["--epochs", 3]}),
                ("--training-only: off on rank 0, on on rank 1; val data: 15 "
                 "images IMAGES on rank 0, none on rank 1",
                 {0: ["-j", 1], 1: ["--training-only"]})):
            with self.subTest(words):
                port = free_port()
                runs = [self.start(rank, len(args), port, "--iterations", 2,
                                   *more) for rank, more in args.items()]
                for run in runs:
                    text, errors = run.communicate(timeout=200)
                    self.assertEqual(run.returncode, 3, errors)
                    same = "command and images" if "data" in words else "command"
                    self.assertIn(
                        f"settings differ between ranks: {words}: "
                        f"expected the same {same} on all ranks",
                        re.sub("(?<=images )[0-9a-f]{16}", "IMAGES", errors))
                    self.assertNotIn("compiled", text)

    def with_moved_image(self, split):
        """Returns a copy of the data set with one image of a split in another
        class."""
        other = self.root / f"other_{split}"
        for name in "train", "val":
            if name == split:
                shutil.copytree(self.data / name, other / name)
            else:
                other.mkdir(exist_ok=True)
                (other / name).symlink_to(self.data / name)
        moved = next(other.glob(f"{split}/*/*"))
        folder = next(folder for folder in other.glob(f"{split}/*")
                      if folder != moved.parent)
        moved.rename(folder / f"moved{moved.suffix}")
        return other

    def test_ranks_with_other_images_are_named_before_the_first_step(self):
        none = self.root / "none"
        none.mkdir()
        (none / "train").symlink_to(self.data / "train")
        for data, words in (
                (self.with_moved_image("train"),
                 "data: 80 images HASH on rank 0, 80 images HASH on rank 1"),
                (self.with_moved_image("val"),
                 "val data: 15 images HASH on rank 0, 15 images HASH on rank "
                 "1"),
                (none, "val data: 15 images HASH on rank 0, none on rank 1")):
            with self.subTest(words):
                port = free_port()
                runs = [self.start(rank, 2, port, "--iterations", 2, data=data)
                        for rank, data in enumerate((self.data, data))]
                for run in runs:
                    text, errors = run.communicate(timeout=200)
                    self.assertEqual(run.returncode, 3, errors)
                    self.assertIn(
                        f"settings differ between ranks: {words}: expected "
                        "the same images on all ranks",
                        re.sub("(?<=images )[0-9a-f]{16}", "HASH", errors))
                    self.assertNotIn("compiled", text)

    def test_ranks_with_another_plan_are_named(self):
        port = free_port()
        runs = [self.start(rank, 2, port, "--iterations", 2, "--threads",
                           rank + 1) for rank in range(2)]
        for run in runs:
            _, errors = run.communicate(timeout=200)
            self.assertEqual(run.returncode, 3, errors)
            self.assertRegex(errors, "rank 1 differs from rank 0 in .*plan of "
                                     ".*: expected the same command")

    def test_a_missing_rank_is_named(self):
        port = free_port()
        run = self.start(0, 2, port, "--iterations", 2, "--comm-timeout", 1)
        _, errors = run.communicate(timeout=100)
        self.assertEqual(run.returncode, 75, errors)
        self.assertIn("rank 1 is missing after 1 s", errors)

    def test_a_host_that_cannot_be_resolved_is_named_at_once(self):
        done = fusor("train", self.data, *SIZE, "--comm-timeout", 1000, RANK="1",
                     WORLD_SIZE="2", LOCAL_RANK="0",
                     MASTER_ADDR="no-such-host.invalid", MASTER_PORT="29500")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"cannot resolve the host name "
                                      r"no-such-host\.invalid: .*rank 0's host")

    def test_variables_that_make_no_sense_are_named(self):
        done = fusor("train", self.data, *SIZE, RANK="2", WORLD_SIZE="2",
                     LOCAL_RANK="0")
        self.assertEqual(done.returncode, 2)
        self.assertIn("got rank 2 of 2", done.stderr)
        done = fusor("train", self.data, *SIZE, RANK="x", WORLD_SIZE="2",
                     LOCAL_RANK="0")
        self.assertIn("RANK: expected a number, got 'x'", done.stderr)

    def test_a_signal_ends_all_ranks_at_one_step_with_a_checkpoint(self):
        work = self.root / "signal"
        run = subprocess.Popen(
            [FUSOR, "launch", "--nproc-per-node", "2", "--", "train",
             self.data, *SIZE, "--epochs", "1000", "-p", "1", "--workspace",
             work, "--training-only"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment())
        for line in run.stdout:
            if "iteration" in line:
                break
        run.send_signal(signal.SIGTERM)
        _, errors = run.communicate(timeout=100)
        self.assertEqual(run.returncode, 128 + signal.SIGTERM, errors)
        _, text = self.train(1, "--epochs", 1000, "--prof", 1, "--workspace",
                             work, "--training-only", "--resume", "auto",
                             "--optimizer-batch-size", 8)
        self.assertIn("resumed", text)


if __name__ == "__main__":
    unittest.main()

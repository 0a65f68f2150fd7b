"""Tests augmentation and recipes from the command line:
augment_cli_test.py FUSOR_FOLDER CLASS."""

import json
import re
import unittest

from cli_case import TINY_FILES, USAGE, CliTest
from small_network import NETWORK

# Ops that the device can do.
COLOURS = ("--color-jitter", "0.3", "--lighting", "0.1", "--gray", "0.3",
           "--random-erase", "0.5")
DEVICE = ("--augment-on", "device")
# Four batches per epoch of the 20 samples.
RUN = (*TINY_FILES[:-1], "8", "-b", "5", "--arch", NETWORK, "--threads", "1")
ALL = ("--auto-augment", "ra", "--ra-magnitude", "12", "--random-erase", "0.5",
       "--color-jitter", "0.4,0.3,0.2,0.1", "--lighting", "0.1", "--gray",
       "0.3", "--blur", "0.5", "--ra-sampler", "--ra-reps", "2",
       "--mixup-alpha", "0.2", "--cutmix-alpha", "1")
SMALL = ("-a", "resnet20-cifar", "-b", "4", "--image-size", "32",
         "--val-resize-size", "36", "--val-crop-size", "32",
         "--train-transform", "random-resized-crop", "--val-transform",
         "centre-crop", "--no-checkpoints")


class AugmentTest(CliTest):

    def report(self, *args):
        return json.loads(self.succeeds(*args, "--json", "-").stdout)

    def losses(self, *args):
        return self.report(*RUN, self.samples, *args)["loss_hash"]

    def test_every_flag_changes_the_images(self):
        seen = {self.losses()}
        for flags in (["--auto-augment", "ra"],
                      ["--auto-augment", "ra", "--ra-magnitude", "30"],
                      ["--auto-augment", "ta_wide"],
                      ["--auto-augment", "imagenet"],
                      ["--color-jitter", "0.4"],
                      ["--color-jitter", "0.4,0.3,0.2"],
                      ["--color-jitter", "0.4,0.3,0.2,0.1"],
                      ["--lighting", "0.1"], ["--gray", "0.5"],
                      ["--blur", "0.5"], ["--random-erase", "0.5"],
                      ["--ra-sampler"], ["--ra-sampler", "--ra-reps", "2"],
                      ["--mixup-alpha", "0.2"], ["--cutmix-alpha", "1"],
                      ["--mixup-alpha", "0.2", "--cutmix-alpha", "1"]):
            with self.subTest(flags=flags):
                losses = self.losses(*flags)
                self.assertNotIn(losses, seen)
                seen.add(losses)

    def test_the_switch_can_choose_always_cutmix(self):
        cutmix = ("--cutmix-alpha", "1")
        self.assertEqual(self.losses(*cutmix),
                         self.losses(*cutmix, "--mixup-alpha", "0.2",
                                     "--mixup-switch-prob", "1"))

    def test_workers_change_no_image(self):
        for flags in (ALL, ALL + DEVICE):
            losses = self.losses(*flags, "--workers", "1")
            self.assertEqual(self.losses(*flags, "--workers", "5"), losses)

    def test_a_run_resumes_within_an_epoch(self):
        for place in ("host", "device"):
            flags = (*ALL, "--augment-on", place)
            whole = self.report(*RUN, self.samples, *flags)
            work = ("--workspace", self.folder / place, "--resume", "auto")
            self.succeeds(*RUN, self.samples, *flags, *work, "--prof", "3")
            resumed = self.report(*RUN, self.samples, *flags, *work)
            self.assertEqual(resumed["steps"], 5)
            for key in ("loss_hash", "state_hash"):
                self.assertEqual(resumed[key], whole[key])
        result = self.succeeds(*RUN, self.samples, *ALL, *work)
        self.assertIn("--augment-on was device, is now the default", result.stderr)
        # Another augmentation is named.
        other = [word if word != "0.1" else "0.2" for word in ALL]
        result = self.succeeds(*RUN, self.samples, *other, *work)
        self.assertIn("--lighting was 0.1, is now 0.2", result.stderr)

    def test_the_device_gives_the_host_s_images_up_to_rounding(self):
        # Without ops the images are equal.
        self.assertEqual(self.losses(*DEVICE), self.losses())
        for flags in (COLOURS, COLOURS + ("--mixup-alpha", "0.2"), ALL,
                      COLOURS + ("--optimizer-batch-size", "10"),
                      COLOURS + ("--train-transform", "random-resized-crop")):
            with self.subTest(flags=flags):
                host = self.report(*RUN, self.samples, *flags)
                device = self.report(*RUN, self.samples, *flags, *DEVICE)
                self.assertNotEqual(host["loss_hash"], device["loss_hash"])
                self.assertAlmostEqual(host["losses"][0], device["losses"][0],
                                       delta=0.02)
        # Other augmentations differ more.
        other = self.report(*RUN, self.samples, *COLOURS, "--seed", "1")
        self.assertGreater(abs(host["losses"][0] - other["losses"][0]), 0.02)

    def test_ranks_augment_their_images_on_the_device(self):
        two = json.loads(self.succeeds(
            "launch", "--nproc-per-node", "2", "--", *RUN, self.samples,
            *COLOURS, *DEVICE, "--deterministic", "--json", "-").stdout)
        one = self.report(*RUN, self.samples, *COLOURS, *DEVICE,
                          "--deterministic", "--optimizer-batch-size", "10")
        self.assertEqual(two["parameter_hash"], one["parameter_hash"])

    def test_a_benchmark_and_a_program_file_augment_on_the_device(self):
        report = self.report("bench", self.samples, "-a", "resnet20-cifar",
                             "-b", "4", "--train-transform",
                             "random-resized-crop", *COLOURS, *DEVICE,
                             "--warmup", "1", "--iterations", "2")
        self.assertGreater(report["data"]["images_per_second"], 0)
        model = ("-a", NETWORK, "-b", "5", "--threads", "1")
        step = self.folder / "step.fusor"
        self.succeeds("compile", *model, *DEVICE, "-o", step)
        ran = self.report("run", step, self.samples, *COLOURS,
                          "--train-transform", "random-resized-crop",
                          "--training-only", "--iterations", "8")
        self.assertEqual(ran["loss_hash"], self.losses(*COLOURS, *DEVICE))

    def test_bad_values_are_named(self):
        for words, flags in (
                (["--color-jitter: expected one, three or four numbers, got 2"],
                 ["--color-jitter", "0.4,0.1"]),
                (["--color-jitter: expected a jitter of the hue of at most "
                  "0.5, got 0.7"], ["--color-jitter", "1,1,1,0.7"]),
                (["--ra-magnitude: expected a whole number from 0 to 30, got "
                  "31"], ["--ra-magnitude", "31"]),
                (["--auto-augment: expected none, ra, ta_wide, imagenet, got "
                  "rand"], ["--auto-augment", "rand"]),
                (["--augment-on: expected host, device, got gpu"],
                 ["--augment-on", "gpu"]),
                (["--random-erase: expected a number from 0 to 1, got 1.5"],
                 ["--random-erase", "1.5"]),
                (["--recipe: expected pytorch, apex, ", ", timm-a1, ",
                  "got torchvision-v3, did you mean torchvision-v"],
                 ["--recipe", "torchvision-v3"])):
            self.fails(USAGE, words, *RUN, self.samples, *flags)


class RecipeTest(CliTest):

    def train(self, *args):
        return self.succeeds("train", self.samples, *SMALL, "--prof", "2",
                             *args).stdout

    def test_each_recipe_trains_and_prints_its_flags(self):
        for name, words in (
                ("torchvision-v1", ["--milestones 30,60", "--epochs 90"]),
                ("torchvision-v2", ["--auto-augment ta_wide", "--epochs 600"]),
                ("timm-a1", ["--loss bce", "--epochs 600"]),
                ("timm-a2", ["--optimizer lamb", "--epochs 300"]),
                ("timm-a3", ["--ra-magnitude 6", "--epochs 100"]),
                ("resnet-rs-50", ["--ema-decay 0.9999", "--epochs 350"])):
            with self.subTest(recipe=name):
                text = self.train("--recipe", name)
                line = re.search(rf"^recipe    {name}: (.*)$", text, re.M)[1]
                for word in words:
                    self.assertIn(word, line)
                self.assertEqual(name != "torchvision-v1",
                                 "\nwithout   " in text)
                self.assertIn("trained   2 steps", text)

    def test_a_recipe_is_its_flags(self):
        text = self.train("--recipe", "torchvision-v2")
        line = re.search(r"^recipe    [^:]*: (.*)$", text, re.M)[1]
        words = line.replace("--recipe torchvision-v2", "").split()
        reports = [json.loads(text) for text in
                   (self.train("--recipe=torchvision-v2", "--json", "-"),
                    self.succeeds("train", *words, "--json", "-").stdout)]
        self.assertEqual(reports[0]["state_hash"], reports[1]["state_hash"])

    def test_flags_take_precedence(self):
        log = self.folder / "r.json"
        for name, flags, expected in (
                ("torchvision-v1", ["--milestones", "5,7", "--lr", "0.3"],
                 {"milestones": "5,7", "lr": "0.3", "gamma": "0.1"}),
                ("timm-a2", ["--mixup", "0.7", "--ra-sampler=false",
                             "--auto-augment", "none"],
                 {"mixup": "0.7", "optimizer": "lamb", "auto_augment": "none",
                  "arch": "resnet20-cifar"})):
            self.train("--recipe", name, *flags, "--raport-file", log)
            entries = [json.loads(line[5:])
                       for line in log.read_text().splitlines()]
            parameters = next(entry["data"] for entry in entries
                              if entry.get("step") == "PARAMETER")
            for key, value in expected.items():
                self.assertEqual(parameters[key], value)


if __name__ == "__main__":
    unittest.main()

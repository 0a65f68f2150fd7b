"""Tests weights in files from the command line: weights_cli_test.py FUSOR."""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

from kernel_cache import kernel_cache
from noise_images import make_images
from safetensors_file import read, write

FUSOR = pathlib.Path(sys.argv.pop(1)).resolve()
USAGE, GRAPH, DATA, CHECKPOINT = 2, 3, 4, 5

MODEL = ("-a", "resnet20-cifar", "-b", "4", "--threads", "1")


class WeightsCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.shared = pathlib.Path(folder.name)
        cls.images = cls.shared / "images"
        make_images(cls.images)
        cls.report = cls.json_of("train", *MODEL, cls.images, "--epochs", "1",
                                 "--lr", "0.05", "--workspace",
                                 cls.shared / "out")
        cls.weights = cls.shared / "out/model.safetensors"
        cls.tensors, cls.metadata = read(cls.weights)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    @classmethod
    def run_fusor(cls, *args):
        return subprocess.run(
            [FUSOR, *map(str, args)], capture_output=True, text=True,
            check=False,
            env=dict(os.environ, FUSOR_CACHE_DIR=str(kernel_cache(FUSOR.parents[1]))))

    @classmethod
    def call(cls, *args):
        result = cls.run_fusor(*args)
        assert result.returncode == 0, result.stderr
        return result.stdout

    @classmethod
    def json_of(cls, *args):
        return json.loads(cls.call(*args, "--json", "-"))

    def fails(self, code, words, *args):
        result = self.run_fusor(*args)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertRegex(result.stderr, r"\Afusor: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, result.stderr)

    def loss(self, weights, *args):
        return self.json_of("eval", self.images, *MODEL, *args, "--weights",
                            weights)["loss"]


class DescriptionTest(WeightsCase):
    """The file describes what its weights were trained as, and whether they
    are complete."""

    def test_weights_and_checkpoints_describe_their_training(self):
        checkpoint, = (self.shared / "out/checkpoints").glob("step-*")
        for path in self.weights, checkpoint / "model.safetensors":
            metadata = dict(read(path)[1])
            self.assertRegex(metadata.pop("fusor.crc32c"), r"\A[0-9a-f]{8}\Z")
            self.assertEqual(metadata, {
                "format": "pt", "fusor.arch": "resnet20-cifar",
                "fusor.image_size": "32", "fusor.num_classes": "5",
                "fusor.mean": "125.3,123,113.9", "fusor.std": "63,62.1,66.7",
                "fusor.class_names": '["a","b","c","d","e"]'})

    def test_corrupt_weights_are_rejected(self):
        whole = self.weights.read_bytes()
        path = self.folder / "w.safetensors"
        for at in range(len(whole) - 1, len(whole) // 10, -len(whole) // 7):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1])
                             + whole[at + 1:])
            for command in (
                    ("eval", self.images, *MODEL, "--weights", path),
                    ("train", self.images, *MODEL, "--iterations", "1",
                     "--pretrained-weights", path)):
                self.fails(CHECKPOINT, [f"{path}: damaged: expected CRC-32C"],
                           *command)

    def test_weights_of_other_programs_need_no_description(self):
        path = self.folder / "w.safetensors"
        write(path, {**self.tensors,
                     "bn1.num_batches_tracked": ("I64", [], bytes(8))})
        self.assertEqual(self.loss(path), self.loss(self.weights))

    def test_weights_of_another_model_are_rejected(self):
        described = f"{self.weights}: trained with "
        other = self.folder / "other"
        make_images(other)
        for split in "train", "val":
            (other / split / "b").rename(other / split / "bb")
        for words, args in (
                (["--image-size 32, this command has 64"],
                 ("--image-size", "64")),
                (["--mean 125.3,123,113.9, this command has 1,2,3"],
                 ("--mean", "1,2,3")),
                (["--std 63,62.1,66.7, this command has 1,2,3"],
                 ("--std", "1,2,3")),
                (["--arch resnet20-cifar, this command has resnet18-v1.5"],
                 ("-a", "resnet18", "--image-size", "32"))):
            model = [w for w in MODEL if "-a" not in args
                     or w not in MODEL[:2]]
            for command in (["eval", self.images, "--weights"],
                            ["train", self.images, "--iterations", "1",
                             "--train-transform", "random-resized-crop",
                             "--training-only", "--pretrained-weights"]):
                with self.subTest(args, command=command[0]):
                    self.fails(CHECKPOINT,
                               [described, *words, "--allow-mismatch"],
                               *command, self.weights, *model, *args)
        evaluate = ("eval", *MODEL, "--weights", self.weights)
        self.fails(CHECKPOINT, [described + "--num-classes 5"], *evaluate,
                   self.images, "--num-classes", "6")
        self.fails(CHECKPOINT, ["other classes: class 1 was 'b', the data has "
                                "'bb'"], *evaluate, other)
        self.call(*evaluate, other, "--allow-mismatch")
        for args in (("--std", "1,2,3"), ("--image-size", "64",
                                          "--val-transform", "centre-crop")):
            self.assertNotEqual(
                self.loss(self.weights, *args, "--allow-mismatch"),
                self.loss(self.weights))

    def test_unknown_tensors_are_rejected(self):
        path = self.folder / "w.safetensors"
        write(path, {**self.tensors, "layer9.weight": ("F32", [1], bytes(4))})
        self.fails(CHECKPOINT, ["tensor layer9.weight: the model has no such"],
                   "eval", self.images, *MODEL, "--weights", path)
        self.loss(path, "--allow-mismatch")


class TransferTest(WeightsCase):
    """Training that starts from weights."""

    def train(self, *args):
        """Runs one step. Returns its report and text."""
        out = self.folder / "report.json"
        text = self.call("train", *MODEL, self.images, "--iterations", "1",
                         "--training-only", "--lr", "0.01", "--seed", "7",
                         "--workspace", self.folder / "w", "--json", out, *args)
        tensors, _ = read(self.folder / "w/model.safetensors")
        return json.loads(out.read_text()), text, tensors

    def pretrained(self, tensors, *args):
        path = self.folder / "start.safetensors"
        write(path, tensors)
        report, text, _ = self.train("--pretrained-weights", path,
                                     "--no-checkpoints", *args)
        return report["losses"], text

    def setUp(self):
        super().setUp()
        (self.folder / "w").mkdir()
        (self.folder / "w/model.safetensors").write_bytes(
            self.weights.read_bytes())

    def test_names_of_wrapped_modules_are_known(self):
        whole, text = self.pretrained(self.tensors)
        self.assertNotIn("new:", text)
        for prefix in "module.", "_orig_mod.module.":
            losses, _ = self.pretrained({prefix + name: tensor for
                                         name, tensor in self.tensors.items()})
            self.assertEqual(losses, whole)

    def test_the_last_layer_may_be_missing_or_of_other_classes(self):
        whole, _ = self.pretrained(self.tensors)
        body = {name: tensor for name, tensor in self.tensors.items()
                if not name.startswith("fc.")}
        other = {**body, "fc.weight": ("F32", [9, 64], bytes(9 * 64 * 4)),
                 "fc.bias": ("F32", [9], bytes(9 * 4))}
        losses = []
        for tensors in body, other:
            loss, text = self.pretrained(tensors)
            self.assertRegex(text, r"\nweights   .*; initialised: "
                                   r"fc\.(bias, fc\.weight|weight, fc\.bias)\n")
            losses.append(loss)
        self.assertEqual(losses[0], losses[1])
        self.assertNotEqual(losses[0], whole)
        del body["bn1.weight"]
        path = self.folder / "bad.safetensors"
        write(path, body)
        self.fails(CHECKPOINT, ["tensor bn1.weight is missing"], "train",
                   *MODEL, self.images, "--pretrained-weights", path)
        write(path, other)
        self.fails(CHECKPOINT, ["tensor fc.weight: expected f32[5,64]"],
                   "eval", *MODEL, self.images, "--weights", path)

    def test_a_pickle_is_named_with_what_converts_it(self):
        path = self.folder / "model.pth"
        path.write_bytes(b"PK\3\4" + bytes(100))
        for command in (("eval", self.images, "--weights"),
                        ("train", self.images, "--pretrained-weights")):
            self.fails(CHECKPOINT, ["expected safetensors, got a pickle",
                                    "save_file", str(path)],
                       *command, path, *MODEL)

    def test_weights_are_checked_before_the_model_is_compiled(self):
        pickle = self.folder / "model.pth"
        pickle.write_bytes(b"PK\3\4" + bytes(100))
        image = next(self.images.glob("val/*/*"))
        out = self.folder / "dump"
        for command in (("train", self.images, "--pretrained-weights"),
                        ("train", self.images, "--resume"),
                        ("eval", self.images, "--weights"),
                        ("predict", image, "--weights")):
            for path in pickle, self.folder / "none", self.folder:
                self.fails(CHECKPOINT, [str(path)], *command, path, *MODEL,
                           *["--dump-to", out] * (command[0] != "predict"))
                self.assertEqual(list(out.glob("*/*")), [])

    def test_frozen_parameters_stay_and_have_no_optimizer_state(self):
        start = ("--pretrained-weights", self.weights, "--ema-decay", "0.5",
                 "--verify")
        frozen = ("--freeze", "^(conv1|bn1)[.]", "--freeze", "layer1")
        _, _, trained = self.train(*start, "--no-checkpoints")
        report, _, tensors = self.train(*start, *frozen)
        checkpoint, = (self.folder / "w/checkpoints").glob("step-*")
        states, _ = read(checkpoint / "optimizer.safetensors")
        averages, _ = read(self.folder / "w/model-ema.safetensors")
        self.assertGreater(report["parameter_tensors"], 60)
        for name, tensor in tensors.items():
            kept = name.startswith(("conv1", "bn1", "layer1"))
            running = "running" in name
            # Batch norms continue with their running statistics, as in
            # PyTorch.
            self.assertEqual(tensor == self.tensors[name],
                             kept and not running, name)
            self.assertEqual(f"momentum/{name}" in states,
                             not kept and not running, name)
            if kept:
                self.assertEqual(averages[name], tensor, name)
        for words, args in (
                (["freeze layer9: found in no parameter"],
                 ("--freeze", "layer9")),
                (["freeze '(': not a regular expression"], ("--freeze", "(")),
                (["freeze: all 65 parameters"], ("--freeze", "."))):
            self.fails(USAGE, words, "train", *MODEL, self.images, *args)


class PredictTest(WeightsCase):

    def test_predicts_the_classes_of_images(self):
        val = self.images / "val"
        one = next((val / "b").iterdir())
        table = self.folder / "logits.csv"
        text = self.call("predict", one, val, *MODEL, "--weights",
                         self.weights, "--logits", table)
        lines = text.splitlines()
        self.assertEqual(len(lines), 11)
        self.assertEqual(lines[0], next(line for line in lines[1:]
                                        if line.startswith(str(one))))
        self.assertRegex(lines[0], rf"\A{one}:( [a-e] \d\.\d{{4}},?){{5}}\Z")
        report = self.json_of("predict", val, *MODEL, "--weights",
                              self.weights, "--logits",
                              self.folder / "logits.safetensors")
        tensors, metadata = read(self.folder / "logits.safetensors")
        self.assertEqual(tensors["logits"][:2], ("F32", [10, 5]))
        self.assertEqual(json.loads(metadata["class_names"]), list("abcde"))
        header, first, *rows = table.read_text().splitlines()
        self.assertEqual(header, 'image,"a","b","c","d","e"')
        self.assertEqual(first.split(",")[0], f'"{one}"')
        right = 0
        for i, (row, found) in enumerate(zip(rows, report["predictions"])):
            logits = struct.unpack_from("<5f", tensors["logits"][2], 20 * i)
            for text, logit in zip(row.split(",")[1:], logits):
                self.assertAlmostEqual(float(text), logit, places=5)
            best = "abcde"[max(range(5), key=lambda c: logits[c])]
            self.assertEqual(found["top"][0]["class"], best)
            self.assertAlmostEqual(
                sum(guess["probability"] for guess in found["top"]), 1)
            right += pathlib.Path(found["image"]).parent.name == best
        self.assertEqual(right / 10, self.report["top1"])

    def test_accuracy_is_counted_by_class(self):
        command = ("eval", self.images, *MODEL, "--weights", self.weights)
        report = self.json_of(*command)
        self.assertEqual([c["class"] for c in report["classes"]],
                         list("abcde"))
        self.assertEqual({c["images"] for c in report["classes"]}, {2})
        for key in "top1", "top5":
            self.assertAlmostEqual(
                sum(c[key] for c in report["classes"]) / 5, report[key])
        self.assertNotIn("class a", self.call(*command))
        self.assertRegex(self.call(*command, "--per-class"),
                         r"\nclass e +top1 +[\d.]+ %  top5 100.00 %  \(2 ")

    def test_what_cannot_be_predicted_gets_one_line(self):
        predict = ("predict", *MODEL, "--weights", self.weights)
        text = self.folder / "x.png"
        text.write_text("hello")
        for code, words, args in (
                (USAGE, ["IMAGES"], ()),
                (DATA, ["cannot read /nowhere"], ("/nowhere",)),
                (DATA, ["x.png: expected JPEG, PNG"], (text,)),
                (DATA, ["no images in this folder"], (self.shared / "out",)),
                (USAGE, ["expected a file .safetensors or .csv"],
                 (self.images, "--logits", "x.txt"))):
            self.fails(code, words, *predict, *args)
        result = self.run_fusor(*predict, self.images / "val", text,
                                "--bad-record", "skip")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(len(result.stdout.splitlines()), 10)


if __name__ == "__main__":
    unittest.main()

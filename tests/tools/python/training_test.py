"""Tests fusor.train, program files, ranks and commands from Python."""

import contextlib
import io
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
import zipfile

import numpy

import fusor
from error_case import ErrorCase

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from kernel_cache import kernel_cache  # noqa: E402
from noise_images import make_images  # noqa: E402
from safetensors_file import write  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
CONVOLUTIONAL = ROOT / "tests/golden/torch_export/convolutional.pt2"
MASKED = ROOT / "tests/golden/torch_export/trained/masked.pt2"
USAGE, DATA, CHECKPOINT = 2, 4, 5
# A run of five steps per epoch.
RUN = {"batch_size": 4, "image_size": 16, "threads": 1,
       "train_transform": "random-resized-crop",
       "val_transform": "centre-crop"}

TWO_RANKS = """
import json, sys, numpy, fusor
step = fusor.compile("resnet20-cifar", batch_size=2, image_size=16, threads=1,
                     num_classes=5, ranks=True, optimizer=fusor.SGD(lr=0.01))
assert step.world_size == 2
random = numpy.random.default_rng(step.rank)
images = random.integers(0, 256, (2, 16, 16, 3), numpy.uint8)
labels = random.integers(0, 5, 2)
losses = [step(images, labels) for _ in range(2)]
step.save_checkpoint(sys.argv[1])
losses.append(step(images, labels))
step.load_checkpoint(sys.argv[1])
assert step.steps == 2
assert step(images, labels) == losses[2]
out = {"losses": losses, "evaluation": step.evaluate(images, labels),
       "weights": {name: float(value.sum())
                   for name, value in step.state_dict().items()
                   if "running" not in name}}
with open(f"{sys.argv[1]}/{step.rank}.json", "w") as file:
    json.dump(out, file)
"""

TRAIN_ON_RANKS = """
import sys, fusor
run = fusor.train("resnet20-cifar", sys.argv[1], batch_size=4, threads=1,
                  iterations=2, training_only=True)
assert run.data["ranks"] == 2
assert len(run.state_dict()) > 60
"""

# Each rank trains on its part of a batch of 8.
PART_OF_A_BATCH = """
import sys, numpy, fusor
from training_test import classifier, train_on_batches
step = fusor.compile(classifier(4), threads=1, ranks=True,
                     optimizer=fusor.SGD(lr=0.05, momentum=0.9))
part = slice(4 * step.rank, 4 * step.rank + 4)
losses = train_on_batches(step, part)
numpy.savez(f"{sys.argv[1]}/{step.rank}.npz", losses=losses,
            **step.state_dict())
"""
# Permits root in a container, and more ranks than the machine has cores.
MPIRUN = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
          "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def classifier(batch=4):
    """Returns a graph that takes images of 16 pixels and labels."""
    b = fusor.Builder("classifier")
    images = b.input("images", [batch, 16, 16, 3], "u8")
    labels = b.input("labels", [batch], "i32")
    x = b.reshape(b.cast(images, "f32") * (1 / 255), [batch, 768])
    w = b.parameter("w", [5, 768], init="normal", value=0.01)
    losses = b.cross_entropy(b.linear(x, w), labels)
    b.output(b.reduce_mean(losses, [0]), "loss")
    return b


def train_on_batches(step, part):
    """Trains on a part of four batches of 8 images. Returns the losses."""
    random = numpy.random.default_rng(0)
    losses = []
    for _ in range(4):
        images = random.integers(0, 256, (8, 16, 16, 3), numpy.uint8)
        labels = random.integers(0, 5, 8)
        losses.append(step(images[part], labels[part]))
    return losses


class TrainingCase(ErrorCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.shared = pathlib.Path(folder.name)
        cls.images = cls.shared / "images"
        make_images(cls.images)
        build = pathlib.Path(fusor.__file__).resolve().parents[2]
        os.environ["FUSOR_CACHE_DIR"] = str(kernel_cache(build))

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def train(self, data=None, model="resnet20-cifar", **options):
        return fusor.train(model, data or self.images, verbose=False,
                           **{**RUN, **options})


class TrainTest(TrainingCase):
    def test_it_trains_as_the_command_does(self):
        options = {**RUN, "epochs": 2, "amp": True, "dynamic_loss_scale": True,
                   "auto_augment": "ta_wide", "mixup": 0.2,
                   "random_erase": 0.5, "augment_on": "device"}
        expected = fusor.command("train", self.images, model="resnet20-cifar",
                                 **options)
        steps, evaluations = [], []
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            run = fusor.train(
                "resnet20-cifar", self.images, on_step=steps.append,
                on_evaluation=lambda *report: evaluations.append(report),
                **options)
        self.assertEqual(run.losses, expected.data["losses"])
        self.assertEqual(run.evaluations, expected.data["evaluations"])
        self.assertEqual(run.data["loss_scale"], expected.data["loss_scale"])
        self.assertEqual([step.loss for step in steps], run.losses)
        self.assertEqual([step.step for step in steps], list(range(1, 11)))
        self.assertEqual([epoch for epoch, _ in evaluations], [1, 2])
        self.assertEqual([e.top1 for _, e in evaluations],
                         [e["top1"] for e in run.evaluations])
        self.assertEqual(evaluations[0][1].images, 10)
        for text in (printed.getvalue(), expected.text):
            self.assertRegex(text, r"epoch   2  val top1")
            self.assertIn("trained   10 steps", text)
        self.assertIn("10 steps, loss", repr(run))
        run.save_weights(self.folder / "weights.safetensors")
        step = fusor.compile("resnet20-cifar", batch_size=4, image_size=16,
                             threads=1, num_classes=5, amp=True)
        step.load_weights(self.folder / "weights.safetensors")
        for name, value in run.state_dict().items():
            numpy.testing.assert_array_equal(step.state_dict()[name], value)
        # The same evaluation of the same weights.
        result = step.evaluate_dataset(self.images, workers=1,
                                       val_transform="centre-crop")
        self.assertEqual(result, run.evaluations[-1])

    def test_data_sets_of_all_formats(self):
        expected = self.train(iterations=2, training_only=True).losses
        archive = self.folder / "images.zip"
        with zipfile.ZipFile(archive, "w") as file:
            for path in self.images.rglob("*.png"):
                file.write(path, path.relative_to(self.images))
        sets = [archive]
        for form in ("pixels", "tfrecord", "recordio", "webdataset"):
            sets.append(self.folder / form)
            fusor.command("data", "convert", self.images, sets[-1], format=form)
        for data in sets:
            with self.subTest(data.name):
                self.assertEqual(
                    self.train(data, iterations=2, training_only=True).losses,
                    expected)

    def test_tensors(self):
        random = numpy.random.default_rng(0)
        ids = random.integers(0, 11, (6, 6))
        mask = random.integers(0, 2, ids.shape)
        mask[:, 0] = 1
        labels = numpy.roll(ids, -1, 1)
        labels[:, -1] = -100
        arrays = {"input": ids, "attention_mask": mask, "target": labels}
        data = self.folder / "tokens"
        write(data, {name: ("I64", list(array.shape), array.tobytes())
                     for name, array in arrays.items()})
        batch = ids[:4], mask[:4], labels[:4]
        step = fusor.compile(MASKED, batch)
        result = step.evaluate_dataset(data)  # of two batches
        counted = (labels >= 0).sum()
        parts = [step.evaluate(*(array[part] for array in arrays.values()))
                 for part in (slice(0, 4), slice(4, 6))]
        self.assertEqual(result["images"], 6)
        for key in "loss", "top1", "top5":
            mean = sum(part[key] * weight for part, weight in
                       zip(parts, (20 / counted, 10 / counted)))
            self.assertAlmostEqual(result[key], mean, 5)
        run = fusor.train(MASKED, data, batch_size=3, epochs=30, lr=0.1,
                          threads=2, verbose=False)
        self.assertLess(run.losses[-1], run.losses[0])
        # The program knows the inputs, too.
        path = self.folder / "step.fusor"
        step.save_program(path)
        for source in ({"data": data}, {"synthetic": True}):
            run = fusor.train(path, **source, epochs=1, iterations=1,
                              verbose=False)
            self.assertEqual(len(run.losses), 1)
        self.fails(USAGE, ["tensors input, attention_mask and target"],
                   step.evaluate_dataset, self.images)
        write(data, {name: ("I64", [6, 5], array[:, :5].tobytes())
                     for name, array in arrays.items()})
        self.fails(DATA, ["input i64[6]", "got i64[5]"], step.evaluate_dataset,
                   data)

    def test_a_run_resumes(self):
        whole = self.train(epochs=2)
        workspace = self.folder / "out"
        self.train(epochs=2, run_epochs=1, workspace=workspace)
        rest = self.train(epochs=2, workspace=workspace, resume="auto")
        self.assertEqual(rest.losses, whole.losses[5:])
        self.assertEqual(rest.data["state_hash"] if "state_hash" in rest.data
                         else None, whole.data.get("state_hash"))
        self.fails(CHECKPOINT, ["seed"], self.train, epochs=2, seed=1,
                   workspace=workspace, resume="auto")

    def test_ctrl_c_saves_the_state(self):
        workspace = self.folder / "out"

        def interrupt(signum, frame):
            raise KeyboardInterrupt

        def start(report):
            if report.step == 2:
                signal.setitimer(signal.ITIMER_REAL, 0.01)

        old = signal.signal(signal.SIGALRM, interrupt)
        try:
            with self.assertRaises(KeyboardInterrupt):
                self.train(epochs=2000, workspace=workspace, on_step=start,
                           training_only=True)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        done = sorted(workspace.glob("**/step-*"))
        self.assertTrue(done)
        rest = self.train(epochs=2000, workspace=workspace, resume="auto",
                          prof=1, training_only=True)
        self.assertEqual(len(rest.losses), 1)

    def test_an_exception_of_a_callback_ends_the_run(self):
        def fail(report):
            raise LookupError(f"step {report.step}")

        with self.assertRaisesRegex(LookupError, "step 1"):
            self.train(on_step=fail, training_only=True)

    def test_own_models(self):
        run = fusor.train(classifier(), self.images, verbose=False, threads=1,
                          iterations=3, optimizer=fusor.Adam(lr=0.01),
                          train_transform="random-resized-crop")
        self.assertEqual(len(run.losses), 3)
        self.assertEqual(run.state_dict()["w"].shape, (5, 768))
        self.assertEqual(run.evaluations, [])
        run = fusor.train(CONVOLUTIONAL, synthetic=True, verbose=False,
                          iterations=1, training_only=True)
        self.assertIn("head.weight", run.state_dict())

    def test_other_threads_train(self):
        runs = []
        thread = threading.Thread(target=lambda: runs.append(
            self.train(iterations=1, training_only=True)))
        thread.start()
        thread.join()
        self.assertEqual(len(runs[0].losses), 1)

    def test_a_recipe(self):
        run = self.train(recipe="timm-a3", iterations=1, training_only=True)
        self.assertEqual(len(run.losses), 1)

    def test_bad_arguments(self):
        self.fails(USAGE, ["epoch: unknown", "did you mean epochs?"],
                   self.train, epoch=1)
        self.fails(USAGE, ["epochs: expected a whole number"], self.train,
                   epochs=0)
        self.fails(USAGE, ["synthetic"], fusor.train, "resnet20-cifar",
                   verbose=False)
        self.fails(DATA, ["missing"], self.train, self.folder / "missing")
        self.fails(USAGE, ["resnet51", "did you mean"], self.train,
                   model="resnet51")
        self.fails(USAGE, ["model: expected", "int"], self.train, model=5)
        self.fails(USAGE, ["optimizer: expected one of fusor"], self.train,
                   optimizer="sgd")
        self.fails(USAGE, ["option lr: expected it in the optimizer"],
                   self.train, optimizer=fusor.SGD(), lr=0.1)


class ProgramFileTest(TrainingCase):
    def test_a_step_is_saved_and_loaded(self):
        random = numpy.random.default_rng(0)
        images = random.integers(0, 256, (4, 16, 16, 3), numpy.uint8)
        labels = random.integers(0, 5, 4)
        step = fusor.compile(
            "resnet20-cifar", (images, labels), num_classes=5, threads=1,
            seed=3, optimizer=fusor.SGD(lr=0.05, momentum=0.9))
        path = self.folder / "resnet20.program"
        step.save_program(path)
        losses = [step(images, labels) for _ in range(2)]
        other = fusor.load_program(path)
        self.assertEqual(other.lr, 0.05)
        self.assertEqual([other(images, labels) for _ in range(2)], losses)
        self.assertEqual(other.evaluate(images, labels),
                         step.evaluate(images, labels))
        numpy.testing.assert_array_equal(other.predict(images),
                                         step.predict(images))
        # The train loop runs the file, too.
        run = fusor.train(path, self.images, verbose=False, iterations=2,
                          training_only=True, seed=3,
                          train_transform="random-resized-crop")
        self.assertEqual(len(run.losses), 2)
        self.fails(USAGE, ["momentum: unknown"], fusor.train, path, self.images,
                   momentum=0.5)
        # A file of a graph, and one of the command line.
        fusor.compile(classifier(), threads=1).save_program(path)
        fusor.load_program(path)(images, labels)
        fusor.command("compile", model="resnet20-cifar", output=path,
                      batch_size=4, image_size=16, threads=1, num_classes=5)
        fusor.load_program(path)(images, labels)
        path.write_bytes(path.read_bytes()[:-9])
        self.fails(3, [str(path)], fusor.load_program, path)


class RanksTest(TrainingCase):
    def write(self, script):
        """Writes a script that can import the modules of this folder."""
        file = self.folder / "script.py"
        here = str(pathlib.Path(__file__).resolve().parent)
        file.write_text(
            f"import sys\nsys.path.insert(0, {here!r})\n{script}")
        return file

    def mpirun(self, script, argument):
        """Runs two ranks by Open MPI's mpirun, which tools/setup.sh installs.
        Returns the output of both."""
        done = subprocess.run(
            ["mpirun", "-n", "2", sys.executable, "-B", self.write(script),
             argument],
            capture_output=True, text=True, errors="replace", timeout=300,
            check=False, env={**os.environ, **MPIRUN})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def torchrun(self, script, argument):
        """Runs two ranks as torchrun does. Returns the output of rank 0."""
        file = self.write(script)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        ranks = [subprocess.Popen(
            [sys.executable, "-B", file, argument], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=dict(
                os.environ, RANK=str(rank), LOCAL_RANK=str(rank),
                WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="1"))
            for rank in range(2)]
        for rank in ranks:
            self.addCleanup(rank.kill)
        ended = [rank.communicate(timeout=300) for rank in ranks]
        for rank, (_, errors) in zip(ranks, ended):
            self.assertEqual(rank.returncode, 0, errors)
        return ended[0][0]

    def test_a_step_of_two_ranks(self):
        for launch in (self.torchrun, self.mpirun):
            with self.subTest(launch.__name__):
                launch(TWO_RANKS, self.folder)
                first, second = (
                    json.loads((self.folder / f"{rank}.json").read_text())
                    for rank in range(2))
                self.assertEqual(first, second)

    def test_two_ranks_train_as_one_on_the_whole_batch(self):
        step = fusor.compile(classifier(8), threads=1,
                             optimizer=fusor.SGD(lr=0.05, momentum=0.9))
        losses = train_on_batches(step, slice(8))
        for launch in (self.torchrun, self.mpirun):
            with self.subTest(launch.__name__):
                launch(PART_OF_A_BATCH, self.folder)
                first, second = (numpy.load(self.folder / f"{rank}.npz")
                                 for rank in range(2))
                for name in first:
                    numpy.testing.assert_array_equal(first[name], second[name])
                numpy.testing.assert_allclose(first["losses"], losses, 1e-5)
                numpy.testing.assert_allclose(
                    first["w"], step.state_dict()["w"], 1e-5, 1e-7)

    def test_a_training_of_two_ranks(self):
        for launch, name in ((self.torchrun, "torchrun"),
                             (self.mpirun, "Open MPI")):
            with self.subTest(name):
                out = launch(TRAIN_ON_RANKS, self.images)
                self.assertIn(f"ranks     2 by {name}", out)
                self.assertIn("parameters are identical on all 2", out)


class CommandTest(TrainingCase):
    def test_commands_with_models_of_python(self):
        found = fusor.command("bisect", model=classifier(2),
                              out=self.folder / "found")
        self.assertIn("nothing found", found.text)
        self.assertEqual((found.code, found.data), (0, {}))
        plan = fusor.command("plan", model=CONVOLUTIONAL)
        self.assertIn("op_classes", plan.data)
        self.assertIn("cpu", fusor.command("doctor").text)

    def test_errors_of_commands(self):
        self.fails(USAGE, ["unknown"], fusor.command, "bisekt")
        self.fails(USAGE, ["resnet51"], fusor.command, "plan", model="resnet51")


if __name__ == "__main__":
    unittest.main()

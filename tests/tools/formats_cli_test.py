"""Tests data sets of all formats: formats_cli_test.py BIN."""

import base64
import gzip
import json
import pathlib
import re
import shutil
import socket
import tarfile
import unittest
import zipfile

from cli_case import DATA, GRAPH, USAGE, CliTest
from small_network import NETWORK

FORMATS = ["pixels", "jpeg", "tfrecord", "recordio", "webdataset"]
# A training run with evaluations that is the same in all formats. The number of
# threads is fixed, since the bits may depend on it.
RUN = ("--arch", NETWORK, "-b", "4", "--threads", "1",
       "--train-transform", "random-resized-crop", "--val-transform",
       "centre-crop", "--epochs", "2")


class FormatsTest(CliTest):

    def losses(self, data, *args):
        """Trains. Returns the loss of each step and the last accuracy."""
        log = self.folder / "log.jsonl"
        log.unlink(missing_ok=True)
        report = self.json_of("train", data, *RUN, "--log-jsonl", log, *args)
        losses = self.logged_losses(log)
        self.assertGreater(len(losses), 5)
        return losses, report.get("top1")

    @staticmethod
    def logged_losses(log):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return [line["loss"] for line in lines if line["type"] == "step"]

    def convert(self, form, *args, source=None):
        target = self.folder / form
        self.succeeds("data", "convert", source or self.samples, target,
                      "--format", form, "-j", "2", *args)
        return target

    def test_all_formats_train_to_the_losses_of_the_folder(self):
        expected = self.losses(self.samples)
        for form in FORMATS:
            with self.subTest(form):
                self.assertEqual(self.losses(self.convert(form)), expected)

    def test_a_converted_set_can_be_converted(self):
        expected = self.losses(self.samples)
        first = self.convert("webdataset")
        second = self.convert("tfrecord", source=first)
        third = self.convert("pixels", source=second)
        self.assertEqual(self.losses(third), expected)

    def test_resized_images_train(self):
        for form in FORMATS:
            with self.subTest(form):
                target = self.convert(form, "--size", "48", "--quality", "80")
                self.losses(target)
                shutil.rmtree(target)

    def test_options_work_as_for_the_folder(self):
        expected = self.losses(self.samples, "--max-per-class", "3",
                               "--training-only", "--epochs", "6")
        for form in ["tfrecord", "webdataset"]:
            with self.subTest(form):
                self.assertEqual(
                    self.losses(self.convert(form), "--max-per-class", "3",
                                "--training-only", "--epochs", "6"), expected)

    def write_tar(self, path, split, form=tarfile.PAX_FORMAT, prefix=""):
        with tarfile.open(path, "w", format=form) as archive:
            for label, folder in enumerate(sorted(
                    (self.samples / split).iterdir())):
                for image in sorted(folder.iterdir()):
                    key = self.folder / "key"
                    key.write_text(f"{label}\n")
                    name = f"{prefix}{folder.name}/{image.stem}"
                    archive.add(image, f"{name}.jpg")
                    archive.add(key, f"{name}.cls")

    def test_archives_of_pythons_tarfile(self):
        expected = self.losses(self.samples)
        for form, prefix in [(tarfile.USTAR_FORMAT, "long/" * 20),
                             (tarfile.GNU_FORMAT, "long/" * 60),
                             (tarfile.PAX_FORMAT, "\u00e9/" + "long/" * 60)]:
            with self.subTest(form=form):
                data = self.folder / "data"
                shutil.rmtree(data, ignore_errors=True)
                data.mkdir()
                self.write_tar(data / "train.tar", "train", form, prefix)
                self.write_tar(data / "val.tar", "val", form, prefix)
                (data / "val.tar.gz").write_bytes(
                    gzip.compress((data / "val.tar").read_bytes()))
                (data / "val.tar").unlink()
                self.assertEqual(self.losses(data), expected)

    def test_zip_archives(self):
        expected = self.losses(self.samples)
        for method in [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]:
            with self.subTest(method=method):
                path = self.folder / "set.zip"
                with zipfile.ZipFile(path, "w", method) as archive:
                    for file in self.samples.rglob("*"):
                        archive.write(file, pathlib.Path("set") /
                                      file.relative_to(self.samples))
                self.assertEqual(self.losses(path), expected)
        self.assertEqual(self.losses(self.convert("jpeg", source=path)),
                         expected)

    def test_shards_given_by_a_glob(self):
        target = self.convert("recordio")
        self.assertEqual(self.losses(f"{target}/*.rec"),
                         self.losses(self.samples))

    def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(self):
        target = self.convert("tfrecord")
        whole, *_ = self.losses(target)
        workspace = self.folder / "workspace"
        self.losses(target, "--prof", "7", "--workspace", workspace)
        log = self.folder / "log.jsonl"
        self.succeeds("train", target, *RUN, "--workspace", workspace,
                      "--resume", "auto", "--log-jsonl", log)
        # The log continues in the same file.
        self.assertEqual(self.logged_losses(log), whole)

    def test_another_set_is_not_resumed(self):
        target = self.convert("tfrecord")
        workspace = self.folder / "workspace"
        self.losses(target, "--workspace", workspace)
        for path in target.glob("*.idx"):
            path.unlink()
        self.succeeds("train", target, *RUN, "--workspace", workspace,
                      "--resume", "auto")  # the records are the same
        other = self.convert("recordio")
        result = self.call("train", other, *RUN, "--workspace", workspace,
                           "--resume", "auto")
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr, r"\Afusor: [^\n]*data[^\n]*\n\Z")

    def test_a_damaged_record_fails_or_is_skipped(self):
        target = self.convert("tfrecord")
        shard, = target.glob("train*.tfrecord")
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
        run = ("train", target, *RUN, "--training-only")
        self.fails(DATA, [f"{shard}:", "damaged: expected checksum"], *run)
        warnings = self.succeeds(*run, "--bad-record", "skip").stderr
        self.assertRegex(warnings, rf"skipped: {re.escape(str(shard))}:\d+: the")

    def test_more_classes_than_the_head(self):
        for form in FORMATS:
            target = self.convert(form)
            with self.subTest(form):
                code, words = USAGE, ["--num-classes", "5 classes", "got 3"]
                if form in ["tfrecord", "recordio"]:
                    # Labels are then read with their records.
                    code, words = DATA, ["expected a label from"]
                self.fails(code, words, "train", target, *RUN,
                           "--training-only", "--num-classes", "3")

    def test_an_index_of_another_file(self):
        target = self.convert("tfrecord")
        index, = target.glob("train*.idx")
        index.write_text("0 100\n")
        self.fails(DATA, [f"index {index}:", "make the index anew"], "train",
                   target, *RUN)

    def test_an_empty_shard(self):
        target = self.convert("webdataset")
        (target / "train-x.tar").write_bytes(b"")
        self.fails(DATA, ["train-x.tar: the file is empty"], "train", target,
                   *RUN)

    def test_a_missing_shard_on_one_rank(self):
        target = self.convert("tfrecord")
        shard, = target.glob("train*.tfrecord")
        shutil.copy(shard, target / "train-more.tfrecord")
        second = pathlib.Path(shutil.copytree(target, self.folder / "second"))
        (second / "train-more.tfrecord").unlink()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        runs = [self.start("train", data, *RUN, "--training-only", variables={
            **place, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank, data in enumerate([target, second])]
        for run in runs:
            _, errors = run.communicate(timeout=120)
            self.assertEqual(run.returncode, GRAPH, errors)
            self.assertRegex(errors, "settings differ between ranks: data: "
                             "(20|40) images in [12] files")


class ConvertTest(CliTest):

    def test_a_second_call_keeps_what_is_there(self):
        target = self.folder / "target"
        convert = ("data", "convert", self.samples, target, "--format",
                   "pixels", "--size", "32")
        self.assertEqual(self.succeeds(*convert).stdout,
                         "train: 20 of 20 images in 1 files\n"
                         "val: 5 of 5 images in 1 files\n")
        self.assertIn("1 files, 1 of them kept", self.succeeds(*convert).stdout)
        self.fails(DATA, [f"{target}: holds train files of another source or "
                          "other options"], *convert[:-1], "40")

    def test_a_set_without_splits(self):
        target = self.folder / "target"
        self.succeeds("data", "convert", self.samples / "train", target,
                      "--format", "jpeg")
        self.assertEqual(sorted(path.name for path in target.iterdir()),
                         ["data-00000-of-00001.fusor", "data.json"])

    def test_bad_arguments(self):
        convert = ("data", "convert", self.samples, self.folder / "target",
                   "--format")
        self.fails(USAGE, ["--format"], *convert, "zip")
        self.fails(USAGE, ["--quality"], *convert, "jpeg", "--quality", "0")
        self.fails(DATA, ["/nowhere: no such file or folder"], "data",
                   "convert", "/nowhere", self.folder / "target", "--format",
                   "jpeg")


class InspectTest(CliTest):

    def test_text_names_what_the_set_holds(self):
        text = self.succeeds("data", "inspect", self.samples).stdout
        self.assertRegex(text, r"\Atrain: image folder \S+/train, 20 images "
                         r"[0-9a-f]{16}\n  images    20, 20 JPEG, [0-9.]+ MB\n"
                         r"  classes   5, of 4 to 4, median 4 images\n")
        self.assertIn("\nval: image folder", text)
        self.assertEqual(text.count("  broken    0\n"), 2)

    def test_json_has_the_classes_and_broken_records(self):
        data = self.copy_samples()
        bad = sorted(data.glob("train/discs/*.jpg"))[1]
        bad.write_bytes(self.jpeg[:-100])
        for form in [None, "webdataset"]:
            with self.subTest(form):
                source = data
                if form:
                    source = self.folder / form
                    self.succeeds("data", "convert", data, source, "--format",
                                  form)
                report = self.json_of("data", "inspect", source, "-j", "2")
                train = report["train"]
                self.assertEqual(train["images"], 20)
                self.assertEqual(train["broken"], 1)
                self.assertIn("truncated", train["broken_names"][0])
                self.assertEqual([c["images"] for c in train["classes"]],
                                 [4, 3, 4, 4, 4])
                self.assertEqual(train["encodings"], {"JPEG": 19})
                self.assertLessEqual(160, train["width"]["least"])
                self.assertEqual(report["val"]["images"], 5)

    def test_html_is_one_page_with_a_contact_sheet(self):
        page = self.folder / "page.html"
        self.succeeds("data", "inspect", self.samples, "--html", page)
        text = page.read_text()
        self.assertEqual(text.count("data:image/jpeg;base64,"), 25)
        self.assertNotIn("http", text)
        pictures = re.findall(r"base64,([A-Za-z0-9+/=]+)", text)
        for picture in pictures:
            decoded = base64.b64decode(picture, validate=True)
            self.assertTrue(decoded.startswith(b"\xff\xd8"))
            self.assertTrue(decoded.endswith(b"\xff\xd9"))

    def test_what_cannot_be_opened_is_an_error(self):
        self.fails(DATA, ["/nowhere: no such file or folder"], "data",
                   "inspect", "/nowhere")
        self.fails(USAGE, ["--html"], "data", "inspect", self.samples, "--html",
                   self.folder / "none/page.html")


if __name__ == "__main__":
    unittest.main()

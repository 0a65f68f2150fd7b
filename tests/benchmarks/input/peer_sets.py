#!/usr/bin/env python3
"""Checks that fusor reads data sets that TensorFlow and MXNet write.

    peer_sets.py --bin build/bin [--tensorflow PYTHON] [--mxnet PYTHON]

PYTHON is an interpreter that has the package; a package that is not there is
left out. Sample images are written as ImageNet's TFRecord files by TensorFlow's
TFRecordWriter, and as RecordIO files, with one label and with two per image, by
MXNet's MXIndexedRecordIO. fusor must count the same images of each class as in
the folder, and training must have the same losses.

    peer_sets.py write tensorflow|mxnet|mxnet-labels LIST OUT

is run by the package's interpreter, also Python 3.8: writes the images of LIST,
lines of label, class and path, to the file OUT.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

# Writer: package, number of the first class, and the name of a split's file.
WRITERS = {"tensorflow": ("tensorflow", 1, "{}-00000-of-00001"),
           "mxnet": ("mxnet", 0, "{}.rec"),
           "mxnet-labels": ("mxnet", 0, "{}.rec")}
TRAIN = ("--arch", "resnet20-cifar", "-b", "4", "--threads", "1",
         "--train-transform", "random-resized-crop", "--val-transform",
         "centre-crop", "--epochs", "2")


def write_tensorflow(images, out):
    import tensorflow as tf

    def feature(value):
        if isinstance(value, bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    with tf.io.TFRecordWriter(out) as writer:
        for label, name, path in images:
            encoded = pathlib.Path(path).read_bytes()
            height, width, channels = tf.io.decode_jpeg(encoded).shape
            fields = {"image/height": height, "image/width": width,
                      "image/channels": channels,
                      "image/colorspace": b"RGB", "image/format": b"JPEG",
                      "image/class/label": label,
                      "image/class/synset": name.encode(),
                      "image/class/text": name.encode(),
                      "image/filename": pathlib.Path(path).name.encode(),
                      "image/encoded": encoded}
            example = tf.train.Example(features=tf.train.Features(feature={
                key: feature(value) for key, value in fields.items()}))
            writer.write(example.SerializeToString())


def write_mxnet(images, out, several=False):
    from mxnet import recordio

    writer = recordio.MXIndexedRecordIO(out[:-len("rec")] + "idx", out, "w")
    for i, (label, _, path) in enumerate(images):
        header = recordio.IRHeader(0, [label, 7] if several else label, i, 0)
        writer.write_idx(i, recordio.pack(header,
                                          pathlib.Path(path).read_bytes()))
    writer.close()


def write(writer, listing, out):
    images = []
    for line in pathlib.Path(listing).read_text().splitlines():
        label, name, path = line.split("\t")
        images.append((int(label), name, path))
    if writer == "tensorflow":
        write_tensorflow(images, out)
    else:
        write_mxnet(images, out, several=writer == "mxnet-labels")


def run(*command):
    return subprocess.run([str(c) for c in command], check=True,
                          capture_output=True, text=True).stdout


def write_set(python, writer, samples, folder):
    """Writes both splits by a package's interpreter."""
    _, first, file = WRITERS[writer]
    folder.mkdir()
    for split, name in ("train", "train"), ("val", "validation"):
        lines = []
        classes = sorted((samples / split).iterdir())
        for label, images in enumerate(classes, first):
            lines += [f"{label}\t{images.name}\t{path}"
                      for path in sorted(images.iterdir())]
        listing = folder.parent / "list"
        listing.write_text("\n".join(lines))
        if writer != "tensorflow":
            name = split
        run(python, __file__, "write", writer, listing,
            folder / file.format(name))


def read_set(fusor, data):
    """Returns what must be equal for each set of the same images."""
    report = json.loads(run(fusor, "data", "inspect", data, "--json", "-"))
    counts = {split: [report[split]["images"], report[split]["broken"],
                      [c["images"] for c in report[split]["classes"]]]
              for split in ("train", "val")}
    trained = json.loads(run(fusor, "train", data, *TRAIN, "--json", "-"))
    return {"counts": counts, "losses": trained["losses"],
            "top1": trained["top1"]}


def main():
    if sys.argv[1:2] == ["write"]:
        write(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--tensorflow", default=sys.executable)
    parser.add_argument("--mxnet", default=sys.executable)
    args = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        samples = folder / "samples"
        fusor = args.bin / "fusor"
        run(fusor, "data", "make-samples", "--out", samples, "--train-images",
            "8", "--val-images", "2")
        expected = read_set(fusor, samples)
        print(f"folder: {expected['counts']}, last loss "
              f"{expected['losses'][-1]:.6f}")
        for writer, (package, _, _) in WRITERS.items():
            python = getattr(args, package)
            version = subprocess.run(
                [python, "-c", f"import {package} as p; print(p.__version__)"],
                capture_output=True, text=True, check=False)
            if version.returncode != 0:
                print(f"{writer}: left out: {python} has no {package}")
                continue
            data = folder / writer
            write_set(python, writer, samples, data)
            same = read_set(fusor, data) == expected
            failed |= not same
            print(f"{writer} {version.stdout.split()[-1]}: "
                  f"{'the same counts and losses' if same else 'DIFFERENT'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Writes the training graphs of torchvision models as compressed IR text.

    torch-venv/bin/python tests/golden/make_torchvision.py --fusor build/bin/fusor \
        --archives /tmp/archives --out tests/golden/torchvision

NAME.txt.gz is the graph that the importer makes of the exported model and its
loss, for a batch of 16 images, before any pass.
"""

import argparse
import gzip
import pathlib
import subprocess
import sys

BENCHMARKS = pathlib.Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS / "pytorch_models"))
sys.path.append(str(BENCHMARKS / "models"))

from models import BATCH, MODELS  # pylint: disable=wrong-import-position
import pytorch_models  # pylint: disable=wrong-import-position


def imported_text(fusor, archive, size):
    """Returns the graph before the first pass."""
    return subprocess.run(
        [fusor, "dump", "--emit", "graph", "-a", archive, "-b", str(BATCH), "--image-size",
         str(size)], check=True, stdout=subprocess.PIPE).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fusor", required=True)
    parser.add_argument("--archives", type=pathlib.Path, required=True,
                        help="folder of exported models, which are reused")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        archive = pytorch_models.archive_of(args.archives, name)
        text = imported_text(args.fusor, archive,
                             pytorch_models.image_size(name))
        # Without a time, so that equal text makes equal files.
        (args.out / f"{name}.txt.gz").write_bytes(gzip.compress(text, mtime=0))
        print(f"{name}: {len(text)} bytes")


if __name__ == "__main__":
    main()

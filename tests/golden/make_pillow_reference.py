#!/usr/bin/env python3
"""Writes tests/golden/pillow: small images resized by Pillow and torchvision.

    pip install pillow torch torchvision numpy
    tests/golden/make_pillow_reference.py

Sources are noise that the C++ tests generate, too, so only results are stored.
cases.txt has one line per case, pixels.bin all results as RGB bytes, rows from
top to bottom. Columns of cases.txt:

    kind key source_width source_height a b c d result_width result_height

    resize        a b c d is the box of Image.resize(..., BILINEAR, box)
    centre_crop   Resize(round(s * 256 / 224)) and CenterCrop(s), s the result
    resized_crop  a b c d is left, top, width, height of F.resized_crop
"""

import pathlib
import sys

import numpy as np
from PIL import Image
from torchvision.transforms import v2

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import philox  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent / "pillow"

RESIZES = [  # source, box or None, result
    ((97, 61), None, (24, 20)),
    ((13, 9), None, (40, 30)),
    ((64, 10), None, (20, 25)),
    ((50, 40), None, (50, 17)),
    ((50, 40), None, (19, 40)),
    ((30, 20), None, (30, 20)),
    ((80, 60), (3.25, 1.5, 60.75, 40.125), (21, 18)),
    ((80, 60), (70.5, 50.0, 80.0, 60.0), (16, 16)),
    ((80, 60), (0.0, 0.0, 0.75, 0.5), (6, 5)),
    ((1, 1), None, (8, 8)),
    ((200, 3), None, (16, 16)),
    ((3, 200), None, (16, 16)),
    ((500, 375), None, (32, 24)),
    ((500, 375), None, (64, 64)),
    ((640, 48), (100.0, 0.0, 612.0, 48.0), (5, 33)),
]
CENTRE_CROPS = [  # source, result
    ((33, 20), 14), ((20, 33), 14), ((19, 50), 14), ((16, 16), 14),
    ((7, 9), 14), ((100, 18), 14), ((18, 101), 14), ((61, 47), 28),
    ((300, 200), 56),
]
RESIZED_CROPS = [  # source, (left, top, width, height), result
    ((60, 50), (0, 0, 60, 50), 16), ((60, 50), (11, 7, 33, 29), 16),
    ((60, 50), (52, 44, 8, 6), 16), ((300, 200), (31, 20, 211, 170), 48),
]


def source_image(key, size):
    count = size[0] * size[1] * 3
    words = philox.bits(key, 0, 0, 0, 0, (count + 15) // 16)
    noise = words.astype("<u4").view(np.uint8)[:count]
    return Image.fromarray(noise.reshape(size[1], size[0], 3), "RGB")


def cases():
    key = 1
    for size, box, result in RESIZES:
        image = source_image(key, size)
        out = image.resize(result, Image.Resampling.BILINEAR, box)
        yield "resize", key, size, box or (0, 0) + size, out
        key += 1
    for size, side in CENTRE_CROPS:
        pipeline = v2.Compose([v2.Resize(round(side * 256 / 224)),
                               v2.CenterCrop(side)])
        out = pipeline(source_image(key, size))
        yield "centre_crop", key, size, (0, 0, 0, 0), out
        key += 1
    for size, (left, top, width, height), side in RESIZED_CROPS:
        out = v2.functional.resized_crop(
            source_image(key, size), top, left, height, width, [side, side])
        yield "resized_crop", key, size, (left, top, width, height), out
        key += 1


def main():
    FOLDER.mkdir(exist_ok=True)
    lines, pixels = [], b""
    for kind, key, size, numbers, out in cases():
        row = (kind, key) + size + tuple(numbers) + out.size
        lines.append(" ".join(map(str, row)) + "\n")
        pixels += out.tobytes()
    (FOLDER / "cases.txt").write_text("".join(lines))
    (FOLDER / "pixels.bin").write_bytes(pixels)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes tests/golden/augment: results of torchvision's augmentation on PIL
images, and the parameters of its policies.

    pip install pillow torch torchvision numpy
    tests/golden/make_augment_reference.py

Sources are square images that the C++ tests generate, too. cases.txt has one
line per case, pixels.bin all results as RGB bytes, rows from top to bottom.
Columns of cases.txt:

    op interpolation value source

source: `noise` has random levels, `smooth` few levels and small noise. Ops are
those of torchvision's policies, by their names there, and Hue, Grey and Blur.
policies.txt has a line per op of each policy for images of 224 x 224 pixels
(policy, op, signed, magnitudes) and a line per step of AutoAugment's pairs
(`pair`, number, op, probability, bin or -1).
"""

import pathlib
import sys

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, autoaugment
from torchvision.transforms import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import philox  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent / "augment"
SIDE = 16

MODES = {"nearest": InterpolationMode.NEAREST,
         "bilinear": InterpolationMode.BILINEAR}
GEOMETRIC = {
    "ShearX": (-0.99, -0.3, 0.15, 0.6), "ShearY": (-0.6, 0.09, 0.3, 0.99),
    "TranslateX": (-7.9, 3.2), "TranslateY": (-2.5, 32.0),
    "Rotate": (-90.0, -17.5, 0.0, 4.5, 30.0, 90.0, 135.0, 180.0),
}
COLOUR = {
    "Brightness": (-0.99, -0.3, 0.0, 0.45, 0.99),
    "Color": (-0.99, -0.3, 0.0, 0.45, 0.99),
    "Contrast": (-0.99, -0.3, 0.0, 0.45, 0.99),
    "Sharpness": (-0.99, -0.3, 0.0, 0.45, 0.99),
    "Posterize": (2, 5, 8), "Solarize": (0.0, 102.0, 178.5, 255.0),
    "AutoContrast": (0,), "Equalize": (0,), "Invert": (0,),
}
OTHER = {
    "Hue": (lambda image, x: F.adjust_hue(image, x),
            (-0.5, -0.1, 0.03, 0.25, 0.5)),
    "Grey": (lambda image, x: F.rgb_to_grayscale(image, 3), (0,)),
    "Blur": (lambda image, x: F.gaussian_blur(image, [23, 23], [x, x]),
             (0.1, 0.5, 1.0, 2.0)),
}


def source_image(kind):
    count = SIDE * SIDE * 3
    words = philox.bits(7, 0, 0, 0, 0, (count + 15) // 16)
    noise = words.astype("<u4").view(np.uint8)[:count].reshape(SIDE, SIDE, 3)
    if kind == "smooth":
        y, x, c = np.mgrid[:SIDE, :SIDE, :3]
        noise = (30 + 40 * c + 5 * x + 3 * y + noise % 16).astype(np.uint8)
    return Image.fromarray(noise, "RGB")


def cases():
    for op, values in GEOMETRIC.items():
        for value in values:
            for name, mode in MODES.items():
                image = source_image("noise")
                yield op, name, value, "noise", autoaugment._apply_op(
                    image, op, value, mode, None)
    for op, values in COLOUR.items():
        for value in values:
            for source in ("noise", "smooth"):
                yield op, "nearest", value, source, autoaugment._apply_op(
                    source_image(source), op, value, MODES["nearest"], None)
    for op, (function, values) in OTHER.items():
        for value in values:
            for source in ("noise", "smooth"):
                yield op, "nearest", value, source, function(
                    source_image(source), value)


def policy_lines():
    size = (224, 224)
    policies = {"ra": v1.RandAugment()._augmentation_space(31, size),
                "ta_wide": v1.TrivialAugmentWide()._augmentation_space(31),
                "imagenet": v1.AutoAugment()._augmentation_space(10, size)}
    for policy, space in policies.items():
        for op, (magnitudes, signed) in space.items():
            values = magnitudes.tolist() if magnitudes.ndim else []
            yield " ".join([policy, op, str(int(signed)),
                            *(repr(float(v)) for v in values)])
    for number, pair in enumerate(v1.AutoAugment().policies):
        for op, probability, bin_ in pair:
            yield (f"pair {number} {op} {probability} "
                   f"{-1 if bin_ is None else bin_}")


def main():
    torch.manual_seed(0)
    FOLDER.mkdir(exist_ok=True)
    lines, pixels = [], b""
    for op, interpolation, value, source, out in cases():
        lines.append(f"{op} {interpolation} {value} {source}\n")
        pixels += out.tobytes()
    (FOLDER / "cases.txt").write_text("".join(lines))
    (FOLDER / "pixels.bin").write_bytes(pixels)
    (FOLDER / "policies.txt").write_text(
        "".join(line + "\n" for line in policy_lines()))


if __name__ == "__main__":
    main()

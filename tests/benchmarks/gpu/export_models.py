#!/usr/bin/env python3
"""Exports torchvision models, with random weights, as DIR/NAME.pt2, whose batch
size is left open.

    export_models.py --out DIR vit_b_16 mobilenet_v2
"""

import argparse
import pathlib

import torch
import torchvision


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("models", nargs="+")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.models:
        torch.manual_seed(0)
        model = getattr(torchvision.models, name)().train()
        images = torch.randn(4, 3, args.image_size, args.image_size)
        program = torch.export.export(
            model, (images,),
            dynamic_shapes=({0: torch.export.Dim("batch")},))
        torch.export.save(program, args.out / f"{name}.pt2")
        print(args.out / f"{name}.pt2")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Measures how fast torchvision makes training images of a folder in one
process: read, decode, random crop, resize, flip. Prints one JSON line.

    python torchvision_rate.py DATA --decoder pil|torchvision [--images N]
"""

import argparse
import json
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--decoder", choices=["pil", "torchvision"],
                        default="pil")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--image-size", type=int, default=224)
    args = parser.parse_args()
    import torch
    import torchvision
    from torchvision.transforms import v2
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transform = v2.Compose([
        v2.RandomResizedCrop(args.image_size, antialias=True),
        v2.RandomHorizontalFlip(), v2.PILToTensor()
        if args.decoder == "pil" else v2.Identity()])

    def decode(path):
        return torchvision.io.decode_image(
            path, torchvision.io.ImageReadMode.RGB)

    folder = torchvision.datasets.ImageFolder(
        args.data, transform,
        **({} if args.decoder == "pil" else {"loader": decode}))
    order = torch.randperm(len(folder)).tolist()
    for index in order[:16]:
        folder[index]
    begin = time.perf_counter()
    for i in range(args.images):
        folder[order[i % len(order)]]
    print(json.dumps({
        "images_per_second": args.images / (time.perf_counter() - begin),
        "torchvision": torchvision.__version__}))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Prints the losses of the first steps of a training run in PyTorch on an
image folder, as one JSON line: {"losses": [one per step], "versions": {...}}.

    python train_torch.py DATA --protocol cifar --seed 0 --layout nchw

The protocols are those of compare_curves.py.
"""

import argparse
import json
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torchvision import transforms

import protocols

AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
LOSS_SCALE = 128.0


class BasicBlock(nn.Module):

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False),
                nn.BatchNorm2d(channels))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


def resnet20(classes):
    """The ResNet-20 of He et al. for CIFAR-10, with projections."""
    blocks, before = [], 16
    for channels, stride in [(16, 1), (32, 2), (64, 2)]:
        for block in range(3):
            blocks.append(BasicBlock(before, channels,
                                     stride if block == 0 else 1))
            before = channels
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out",
                                    nonlinearity="relu")
    return model


def transform(protocol):
    size = protocol.image_size
    if protocol.train_transform == "pad-crop":
        geometry = [transforms.RandomCrop(size, padding=4),
                    transforms.RandomHorizontalFlip()]
    else:
        geometry = [transforms.Resize(round(size * 256 / 224)),
                    transforms.CenterCrop(size)]
    scale = [transforms.Normalize([m / 255 for m in protocol.mean],
                                  [s / 255 for s in protocol.std])]
    return transforms.Compose(geometry + [transforms.ToTensor()] + scale)


def samples(data, protocol):
    """Returns the protocol's images in memory, [(PIL image, label)], and the
    number of classes."""
    folder = torchvision.datasets.ImageFolder(os.path.join(data, "train"))
    taken, out = {}, []
    for path, label in folder.samples:
        taken[label] = taken.get(label, 0) + 1
        if not protocol.max_per_class or taken[label] <= protocol.max_per_class:
            out.append((folder.loader(path), label))
    return out, len(folder.classes)


def batches(images, protocol):
    """Yields shuffled batches forever. Drops the incomplete last batch of each
    epoch, as fusor does."""
    prepare = transform(protocol)
    while True:
        order = torch.randperm(len(images)).tolist()
        for begin in range(0, len(order) - protocol.batch + 1, protocol.batch):
            chosen = [images[i] for i in order[begin:begin + protocol.batch]]
            yield (torch.stack([prepare(image) for image, _ in chosen]),
                   torch.tensor([label for _, label in chosen]))


def make_optimizer(model, protocol):
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.SGD(
        [{"params": weights, "weight_decay": protocol.weight_decay},
         {"params": others, "weight_decay": 0.0}],
        lr=protocol.lr, momentum=protocol.momentum)


def train(args):
    protocol = protocols.PROTOCOLS[args.protocol]
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    images, classes = samples(args.data, protocol)
    model = (resnet20(classes) if protocol.arch == "resnet20-cifar" else
             torchvision.models.resnet50(num_classes=classes)).train()
    format_ = (torch.channels_last if args.layout == "channels_last"
               else torch.contiguous_format)
    model = model.to(args.device, memory_format=format_)
    optimizer = make_optimizer(model, protocol)
    scaler = torch.amp.GradScaler(args.device, init_scale=LOSS_SCALE,
                                  growth_interval=1 << 30,
                                  enabled=args.dtype == "fp16")
    losses = []
    for step, (pixels, labels) in zip(range(protocol.steps),
                                      batches(images, protocol)):
        for group in optimizer.param_groups:
            group["lr"] = protocol.rate(step)
        with torch.autocast(args.device, AUTOCAST[args.dtype] or torch.bfloat16,
                            args.dtype != "fp32"):
            logits = model(pixels.to(args.device, memory_format=format_))
        loss = F.cross_entropy(logits.float(), labels.to(args.device))
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", help="folder with train/CLASS/*.jpg")
    parser.add_argument("--protocol", choices=protocols.PROTOCOLS,
                        required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layout", default="nchw",
                        choices=["nchw", "channels_last"])
    parser.add_argument("--dtype", default="fp32", choices=list(AUTOCAST))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    print(json.dumps({"losses": train(args), "versions": {
        "torch": torch.__version__,
        "torchvision": torchvision.__version__}}))


if __name__ == "__main__":
    main()

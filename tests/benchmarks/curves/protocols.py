"""The training runs whose loss curves are compared."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Protocol:
    arch: str  # fusor's name
    image_size: int
    train_transform: str  # fusor's name
    max_per_class: int  # 0: all
    batch: int
    steps: int
    lr: float
    warmup_steps: int
    weight_decay: float  # of weights only
    mean: tuple  # on the scale 0 to 255
    std: tuple
    momentum: float = 0.9

    def rate(self, step):
        """Returns the learning rate of a step: linear warm-up, then cosine to
        0."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / (self.steps - self.warmup_steps)
        return self.lr * 0.5 * (1 + math.cos(math.pi * done))


PROTOCOLS = {
    # The first 1,000 CIFAR-10 images of each class, augmented.
    "cifar": Protocol("resnet20-cifar", 32, "pad-crop", 1000, 128, 200, 0.1, 20,
                      5e-4, (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
    # Small ImageNet images, not augmented.
    "imagenet": Protocol("resnet50-v1.5", 96, "centre-crop", 0, 16, 200, 0.02,
                         20, 1e-4, (123.675, 116.28, 103.53),
                         (58.395, 57.12, 57.375)),
    # Images of `fusor data make-samples` or other small ones: a short run for
    # machines that are only available for minutes.
    "samples": Protocol("resnet20-cifar", 32, "centre-crop", 0, 32, 50, 0.05,
                        5, 1e-4, (123.675, 116.28, 103.53),
                        (58.395, 57.12, 57.375)),
}

#!/usr/bin/env python3
"""Measures a training step of ResNet-50 v1.5 in JAX, compiled by XLA: NHWC,
parameters in fp32, activations in the dtype, synthetic images on the device.
Prints one JSON line.

    jax_peer.py --dtype fp16 -b 256
"""

import argparse
import functools
import json
import statistics
import time

import jax
import jax.numpy as jnp
from jax import lax

DTYPES = {"fp16": jnp.float16, "bf16": jnp.bfloat16, "fp32": jnp.float32}
BLOCKS = (3, 4, 6, 3)
SMOOTHING, MOMENTUM, DECAY, RATE, EPSILON = 0.1, 0.9, 1e-4, 1e-3, 1e-5


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dtype", default="fp16", choices=list(DTYPES))
    parser.add_argument("-b", "--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=50)
    return parser.parse_args()


def layers():
    """Returns [(name, kernel, channels in, channels out)] of all
    convolutions."""
    out = [("stem", 7, 3, 64)]
    before = 64
    for stage, count in enumerate(BLOCKS):
        width = 64 << stage
        for block in range(count):
            at = f"layer{stage + 1}.{block}"
            out += [(f"{at}.conv1", 1, before, width),
                    (f"{at}.conv2", 3, width, width),
                    (f"{at}.conv3", 1, width, 4 * width)]
            if block == 0:
                out.append((f"{at}.shortcut", 1, before, 4 * width))
            before = 4 * width
    return out


def initial_state(classes, key):
    """Returns (parameters, running statistics, momentum)."""
    parameters, running = {}, {}
    for name, kernel, inputs, outputs in layers():
        key, own = jax.random.split(key)
        spread = (2 / (kernel * kernel * outputs)) ** 0.5
        parameters[name] = {
            "weight": spread * jax.random.normal(
                own, (kernel, kernel, inputs, outputs)),
            "gamma": jnp.ones(outputs), "beta": jnp.zeros(outputs)}
        running[name] = (jnp.zeros(outputs), jnp.ones(outputs))
    parameters["fc"] = {"weight": 0.01 * jax.random.normal(key, (2048, classes)),
                        "bias": jnp.zeros(classes)}
    return parameters, running, jax.tree.map(jnp.zeros_like, parameters)


def normalised(x, parameters, running):
    """Returns the batch normalisation in fp32, and the new running
    statistics."""
    wide = x.astype(jnp.float32)
    mean = wide.mean((0, 1, 2))
    variance = jnp.maximum(jnp.square(wide).mean((0, 1, 2)) - mean * mean, 0)
    scale = parameters["gamma"] * lax.rsqrt(variance + EPSILON)
    moved = tuple(0.9 * old + 0.1 * new
                  for old, new in zip(running, (mean, variance)))
    return ((wide - mean) * scale + parameters["beta"]).astype(x.dtype), moved


def network(parameters, running, images, dtype):
    """Returns the logits in fp32, and the new running statistics."""
    moved = {}

    def conv(x, name, stride=1):
        weight = parameters[name]["weight"].astype(dtype)
        pad = weight.shape[0] // 2
        x = lax.conv_general_dilated(
            x, weight, (stride, stride), ((pad, pad), (pad, pad)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x, moved[name] = normalised(x, parameters[name], running[name])
        return x

    x = jax.nn.relu(conv(images.astype(dtype), "stem", 2))
    # Must be a literal: with an array, JAX would not recognise a maximum.
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1),
                          ((0, 0), (1, 1), (1, 1), (0, 0)))
    for stage, count in enumerate(BLOCKS):
        for block in range(count):
            at = f"layer{stage + 1}.{block}"
            stride = 2 if stage > 0 and block == 0 else 1
            y = jax.nn.relu(conv(x, f"{at}.conv1"))
            y = jax.nn.relu(conv(y, f"{at}.conv2", stride))
            y = conv(y, f"{at}.conv3")
            shortcut = conv(x, f"{at}.shortcut", stride) if block == 0 else x
            x = jax.nn.relu(y + shortcut)
    x = x.astype(jnp.float32).mean((1, 2)).astype(dtype)
    logits = x @ parameters["fc"]["weight"].astype(dtype)
    return logits.astype(jnp.float32) + parameters["fc"]["bias"], moved


def train_step(state, images, labels, dtype, scale):
    """Returns (new state, loss)."""
    parameters, running, momentum = state

    def scaled_loss(parameters):
        logits, moved = network(parameters, running, images, dtype)
        log = jax.nn.log_softmax(logits)
        right = jnp.take_along_axis(log, labels[:, None], axis=1).mean()
        loss = -((1 - SMOOTHING) * right + SMOOTHING * log.mean())
        return scale * loss, (moved, loss)

    gradients, (moved, loss) = jax.grad(scaled_loss, has_aux=True)(parameters)
    momentum = jax.tree.map(lambda m, g, p: MOMENTUM * m + g / scale + DECAY * p,
                            momentum, gradients, parameters)
    parameters = jax.tree.map(lambda p, m: p - RATE * m, parameters, momentum)
    return (parameters, moved, momentum), loss


def main():
    args = parse_arguments()
    scale = 128.0 if args.dtype == "fp16" else 1.0
    step = jax.jit(functools.partial(train_step, dtype=DTYPES[args.dtype],
                                     scale=scale), donate_argnums=0)
    key = jax.random.PRNGKey(0)
    state = initial_state(args.classes, key)
    images = jax.random.normal(
        key, (args.batch_size, args.image_size, args.image_size, 3))
    labels = jax.random.randint(key, (args.batch_size,), 0, args.classes)

    def run(steps):
        """Returns seconds per step. XLA runs ahead, so waits for the last
        loss."""
        nonlocal state
        begin = time.perf_counter()
        for _ in range(steps):
            state, loss = step(state, images, labels)
        loss = float(loss)
        return (time.perf_counter() - begin) / steps, loss

    first, _ = run(1)
    run(args.warmup)
    groups = [run(max(1, args.iterations // 5)) for _ in range(5)]
    times = [1e3 * seconds for seconds, _ in groups]
    median = statistics.median(times)
    memory = jax.devices()[0].memory_stats() or {}
    print(json.dumps({
        "images_per_second": 1e3 * args.batch_size / median,
        "step_ms": {"median": median, "min": min(times), "max": max(times)},
        "first_steps_seconds": first, "loss": groups[-1][1],
        "peak_bytes": memory.get("peak_bytes_in_use", 0), **vars(args),
        "versions": {"jax": jax.__version__,
                     "device": jax.devices()[0].device_kind}}))


if __name__ == "__main__":
    main()

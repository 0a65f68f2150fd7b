#!/usr/bin/env python3
"""Measures how fast another library makes training images of a folder with one
thread: read, decode, random crop, resize to 224, flip. Prints one JSON line.

    python peer_rate.py DATA --loader pil|torchvision|tf.data|dali|ffcv
        [--images N]
"""

import argparse
import itertools
import json
import pathlib
import sys
import tempfile
import time

SIZE = 224
BATCH = 16


def torchvision_images(data, decoder):
    """Yields images of torchvision's ImageFolder."""
    import torch
    import torchvision
    from torchvision.transforms import v2
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transform = v2.Compose([
        v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip(),
        v2.PILToTensor() if decoder == "pil" else v2.Identity()])

    def decode(path):
        return torchvision.io.decode_image(
            path, torchvision.io.ImageReadMode.RGB)

    folder = torchvision.datasets.ImageFolder(
        data, transform, **({} if decoder == "pil" else {"loader": decode}))
    order = torch.randperm(len(folder)).tolist()
    for index in itertools.cycle(order):
        yield folder[index][0]


def tf_data_images(data):
    """Yields images of a tf.data pipeline as in TensorFlow's ResNet example:
    only the crop is decoded."""
    import tensorflow as tf
    files = sorted(str(p) for p in pathlib.Path(data).rglob("*.*")
                   if p.suffix.lower() in (".jpg", ".jpeg"))

    def load(path):
        encoded = tf.io.read_file(path)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(encoded), tf.zeros([1, 0, 4]),
            aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0),
            use_image_if_no_bounding_boxes=True)
        y, x, _ = tf.unstack(begin)
        height, width, _ = tf.unstack(size)
        image = tf.io.decode_and_crop_jpeg(
            encoded, tf.stack([y, x, height, width]), channels=3)
        image = tf.image.resize(image, [SIZE, SIZE])
        return tf.image.random_flip_left_right(image)

    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    images = (tf.data.Dataset.from_tensor_slices(files).shuffle(len(files))
              .repeat().map(load, num_parallel_calls=1).with_options(options))
    yield from images


def dali_images(data):
    """Yields images of NVIDIA DALI's CPU operators."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, seed=1)
    def pipeline():
        encoded, _ = fn.readers.file(file_root=data, random_shuffle=True)
        image = fn.decoders.image_random_crop(
            encoded, device="cpu", output_type=types.RGB,
            random_aspect_ratio=[3 / 4, 4 / 3], random_area=[0.08, 1.0])
        image = fn.resize(image, size=[SIZE, SIZE],
                          interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.flip(image, horizontal=fn.random.coin_flip())

    built = pipeline()
    built.build()
    while True:
        images, = built.run()
        for i in range(BATCH):
            yield images.at(i)


def ffcv_images(data):
    """Yields images of an FFCV file that holds the JPEG files."""
    import ffcv
    from ffcv import fields, transforms, writer
    from torchvision import datasets
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/images.beton"
        writer.DatasetWriter(file, {
            "image": fields.RGBImageField(write_mode="jpg"),
            "label": fields.IntField()}, num_workers=1).from_indexed_dataset(
                datasets.ImageFolder(data))
        decoder = fields.rgb_image.RandomResizedCropRGBImageDecoder(
            (SIZE, SIZE))
        while True:
            for images, _ in ffcv.loader.Loader(
                    file, batch_size=BATCH, num_workers=1,
                    order=ffcv.loader.OrderOption.RANDOM, drop_last=False,
                    pipelines={"image": [decoder,
                                         transforms.RandomHorizontalFlip()]}):
                yield from images


LOADERS = {"pil": lambda data: torchvision_images(data, "pil"),
           "torchvision": lambda data: torchvision_images(data, "torchvision"),
           "tf.data": tf_data_images, "dali": dali_images, "ffcv": ffcv_images}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--loader", choices=LOADERS, default="pil")
    parser.add_argument("--images", type=int, default=500)
    args = parser.parse_args()
    images = LOADERS[args.loader](args.data)
    for _ in range(2 * BATCH):  # starts threads, compiles
        image = next(images)
    if SIZE not in tuple(image.shape):
        sys.exit(f"expected images of {SIZE} pixels, got {image.shape}")
    begin = time.perf_counter()
    for _ in range(args.images):
        next(images)
    print(json.dumps({
        "images_per_second": args.images / (time.perf_counter() - begin)}))


if __name__ == "__main__":
    main()

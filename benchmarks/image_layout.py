"""What it gains to hand images over with their channels innermost: one such training step over one without.

    OMP_NUM_THREADS=1 python benchmarks/image_layout.py [--net vgg ...] [--repeats 15]

Interleaved, one thread, dense and masked; the median of the ratios of neighbouring steps.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from functools import partial

import torch
from masked_step import stepper

from dst_analyze import mask_model
from dst_analyze.examples import lenet_5_caffe, resnet_20, small_vit, vgg_16
from dst_analyze.sweep.training.device import Device

NETS = {
    "lenet_5": (lenet_5_caffe.build_model, (64, 1, 28, 28)),
    "vgg": (partial(vgg_16.build_model, width=0.25), (64, 3, 32, 32)),
    "small_resnet": (partial(resnet_20.build_model, blocks=2, stride=2), (64, 3, 32, 32)),
    "vit": (small_vit.build_model, (64, 3, 32, 32)),
}


def ratio(net: str, *, masked: bool, repeats: int) -> float:
    torch.manual_seed(0)
    build, shape = NETS[net]
    images, model = torch.randn(shape), build()
    if masked:
        model = mask_model(model, images[:2])
    plain, innermost = (
        stepper(copy.deepcopy(model), Device(channels_last=last).moved(images)) for last in (False, True)
    )
    ratios = []
    for repeat in range(repeats + 2):
        seconds = []
        for step in (plain, innermost):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        if repeat > 1:
            ratios.append(seconds[1] / seconds[0])
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=NETS, action="append")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for net in options.net or NETS:
        dense, masked = (ratio(net, masked=masked, repeats=options.repeats) for masked in (False, True))
        print(f"{net:14} dense {dense:.2f}   masked {masked:.2f}", flush=True)


if __name__ == "__main__":
    main()

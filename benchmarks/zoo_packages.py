"""Models of packages that people install beside torch, for slim_survey.py: ViTs with einops, detectors, denoisers.

    pip install --no-deps -r benchmarks/packages.txt
    python benchmarks/slim_survey.py --source packages --target-params 0.5 --out packages.jsonl

Small, with random weights. A package that is not there is left out.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from zoo_models import BATCH, ZooModel

from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.loading.torchvision_compat import make_importable

_VIT = {"image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 32, "depth": 2, "heads": 4, "mlp_dim": 64}
_VIDEO = {**_VIT, "frames": 8, "image_patch_size": 8, "frame_patch_size": 2}
del _VIDEO["patch_size"]
_SMALL, _MIDDLE, _LARGE, _VOLUME = (3, 32, 32), (3, 64, 64), (3, 224, 224), (1, 32, 32, 32)
_TO_TWO = {"in_channels": 1, "out_channels": 2}
_STEPS = {"channels": (8, 16, 32), "strides": (2, 2)}

# vit_pytorch.MODULE: the class, the shape of an image, and what it is built with.
_VIT_PYTORCH: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    **{
        name: (kind, _SMALL, _VIT)
        for name, kind in {
            "vit": "ViT",
            "simple_vit": "SimpleViT",
            "deepvit": "DeepViT",
            "vit_for_small_dataset": "ViT",
            "learnable_memory_vit": "ViT",
            "vit_with_patch_dropout": "ViT",
            "vit_with_patch_merger": "ViT",
            "simple_vit_with_register_tokens": "SimpleViT",
            "simple_vit_with_patch_dropout": "SimpleViT",
            "simple_vit_with_qk_norm": "SimpleViT",
            "simple_vit_with_value_residual": "SimpleViT",
            "simple_flash_attn_vit": "SimpleViT",
            "simple_uvit": "SimpleUViT",
            "rvt": "RvT",
            "normalized_vit": "nViT",
        }.items()
    },
    "parallel_vit": ("ViT", _SMALL, {**_VIT, "num_parallel_branches": 2}),
    "simple_vit_with_hyper_connections": ("SimpleViT", _SMALL, {**_VIT, "num_residual_streams": 2}),
    "simple_vit_with_fft": ("SimpleViT", _SMALL, {**_VIT, "freq_patch_size": 8}),
    "vit_1d": ("ViT", (3, 32), {**{k: v for k, v in _VIT.items() if k != "image_size"}, "seq_len": 32}),
    "vit_3d": ("ViT", (3, 8, 32, 32), _VIDEO),
    "cait": ("CaiT", _SMALL, {**_VIT, "cls_depth": 1}),
    "t2t": ("T2TViT", _MIDDLE, {**{k: v for k, v in _VIT.items() if k != "patch_size"}, "image_size": 64}),
    "pit": ("PiT", _MIDDLE, {**_VIT, "image_size": 64, "depth": (1, 1)}),
    "xcit": ("XCiT", _MIDDLE, {**_VIT, "image_size": 64, "cls_depth": 1}),
    "cross_vit": (
        "CrossViT",
        _MIDDLE,
        {"image_size": 64, "num_classes": 10, "sm_dim": 32, "sm_patch_size": 8, "lg_dim": 48, "depth": 1},
    ),
    "levit": (
        "LeViT",
        _MIDDLE,
        {"image_size": 64, "num_classes": 10, "stages": 2, "dim": (32, 48), "depth": 1, "heads": (2, 3), "mlp_mult": 2},
    ),
    "cvt": (
        "CvT",
        _MIDDLE,
        {
            "num_classes": 10,
            "s1_emb_dim": 16,
            "s2_emb_dim": 32,
            "s2_heads": 2,
            "s3_emb_dim": 48,
            "s3_heads": 3,
            "s3_depth": 1,
        },
    ),
    "regionvit": (
        "RegionViT",
        (3, 112, 112),
        {"dim": (16, 32, 48, 64), "depth": (1, 1, 1, 1), "window_size": 7, "num_classes": 10},
    ),
    "sep_vit": (
        "SepViT",
        _LARGE,
        {"num_classes": 10, "dim": 16, "dim_head": 16, "heads": (1, 2, 4, 4), "depth": (1, 1, 1, 1), "window_size": 7},
    ),
    "max_vit": (
        "MaxViT",
        _MIDDLE,
        {"num_classes": 10, "dim_conv_stem": 16, "dim": 16, "dim_head": 8, "depth": (1, 1), "window_size": 4},
    ),
    "nest": (
        "NesT",
        _MIDDLE,
        {
            "image_size": 64,
            "patch_size": 4,
            "dim": 32,
            "heads": 2,
            "num_hierarchies": 2,
            "block_repeats": (1, 1),
            "num_classes": 10,
        },
    ),
}

# x_transformers: what the layers of a decoder are built with.
_X_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotary": {"rotary_pos_emb": True},
    "rms-glu": {"use_rmsnorm": True, "ff_swish": True, "ff_glu": True},
    "grouped-queries": {"attn_kv_heads": 2},
    "one-key-head": {"attn_one_kv_head": True},
    "position-bias": {"rel_pos_bias": True},
    "alibi": {"alibi_pos_bias": True, "alibi_num_heads": 2},
    "sandwich-norm": {"sandwich_norm": True},
    "qk-norm": {"attn_qk_norm": True},
    "macaron": {"macaron": True},
    "flash": {"attn_flash": True},
    "talking-heads": {"attn_pre_talking_heads": True},
    "gated-residual": {"gate_residual": True},
    "gated-values": {"attn_gate_values": True},
}

_SEGMENTATION = (
    "Unet",
    "UnetPlusPlus",
    "MAnet",
    "Linknet",
    "FPN",
    "PSPNet",
    "DeepLabV3",
    "DeepLabV3Plus",
    "UPerNet",
    "Segformer",
)
_ENCODERS = ("mobilenet_v2", "efficientnet-b0", "mit_b0", "densenet121", "se_resnet50", "timm-regnetx_002")

# monai.networks.nets: the shape of an input, and what the net is built with.
_MONAI: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "UNet": (_VOLUME, {**_TO_TWO, **_STEPS, "spatial_dims": 3, "num_res_units": 2}),
    "BasicUNet": (_VOLUME, {**_TO_TWO, "spatial_dims": 3, "features": (8, 8, 16, 16, 32, 8)}),
    "AttentionUnet": (_VOLUME, {**_TO_TWO, **_STEPS, "spatial_dims": 3}),
    "SegResNet": (_VOLUME, {**_TO_TWO, "spatial_dims": 3, "blocks_down": (1, 1, 1), "blocks_up": (1, 1)}),
    "DynUNet": (
        _VOLUME,
        {**_TO_TWO, "spatial_dims": 3, "kernel_size": [3, 3, 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2]},
    ),
    "UNETR": (
        _VOLUME,
        {**_TO_TWO, "img_size": (32, 32, 32), "feature_size": 8, "hidden_size": 48, "mlp_dim": 96, "num_heads": 4},
    ),
    "DenseNet121": ((1, 64, 64), {"spatial_dims": 2, "in_channels": 1, "out_channels": 3}),
    "EfficientNetBN": (_MIDDLE, {"model_name": "efficientnet-b0", "pretrained": False}),
    "AutoEncoder": (
        (1, 32, 32),
        {"channels": (8, 16, 32), "strides": (2, 2, 2), "spatial_dims": 2, "in_channels": 1, "out_channels": 1},
    ),
    "ViT": (
        (1, 32, 32),
        {
            "in_channels": 1,
            "img_size": 32,
            "patch_size": 8,
            "spatial_dims": 2,
            "hidden_size": 48,
            "mlp_dim": 96,
            "num_heads": 4,
        },
    ),
    "FlexibleUNet": (_MIDDLE, {"in_channels": 3, "out_channels": 2, "backbone": "efficientnet-b0"}),
    "Regressor": ((1, 32, 32), {"in_shape": (1, 32, 32), "out_shape": (2,), "channels": (8, 16), "strides": (2, 2)}),
}

_YOLOS = ("yolov5n", "yolov8n", "yolov8n-cls", "yolov8n-seg", "yolov9t", "yolov10n", "yolo11n", "yolo12n")

_DENOISER = {
    "layers_per_block": 1,
    "block_out_channels": (32, 64),
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
}
_CONDITIONED = {
    **_DENOISER,
    "cross_attention_dim": 32,
    "attention_head_dim": 8,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}
_CODER = {
    "layers_per_block": 1,
    "block_out_channels": (32, 64),
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}
_GRAPH = {"in_channels": 5, "hidden_channels": 16, "num_layers": 2, "out_channels": 3}
_EDGES = [[0, 1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7]]
_HEADS = {"dim": 32, "depth": 2, "heads": 4}

# PACKAGE:CLASS: inputs, a shape of noise without its batch or whole numbers as they are, and what it is built with.
_OTHERS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "diffusers:UNet2DModel": ([_SMALL, [3, 7]], {**_DENOISER, "sample_size": 32}),
    "diffusers:UNet2DConditionModel": ([(4, 16, 16), [3, 7], (5, 32)], {**_CONDITIONED, "sample_size": 16}),
    "diffusers:AutoencoderKL": ([_SMALL], _CODER),
    "diffusers:DiTTransformer2DModel": (
        [(4, 8, 8), [3, 7], [1, 2]],
        {
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "num_layers": 2,
            "sample_size": 8,
            "num_embeds_ada_norm": 10,
        },
    ),
    "denoising_diffusion_pytorch:Unet": ([_SMALL, [3, 7]], {"dim": 16, "dim_mults": (1, 2)}),
    "denoising_diffusion_pytorch:Unet1D": ([(4, 32), [3, 7]], {"dim": 16, "dim_mults": (1, 2), "channels": 4}),
    "conformer:Conformer": ([(12, 32)], {**_HEADS, "dim_head": 8}),
    "perceiver_pytorch:Perceiver": (
        [(16, 16, 3)],
        {"num_freq_bands": 3, "max_freq": 10.0, "depth": 2, "num_latents": 8, "latent_dim": 32, "latent_heads": 4},
    ),
    "mlp_mixer_pytorch:MLPMixer": (
        [_SMALL],
        {"image_size": 32, "channels": 3, "patch_size": 8, "dim": 32, "depth": 2, "num_classes": 10},
    ),
    "g_mlp_pytorch:gMLPVision": (
        [_SMALL],
        {"image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 32, "depth": 2},
    ),
    "linformer:Linformer": ([(16, 32)], {**_HEADS, "seq_len": 16, "k": 8}),
    "performer_pytorch:Performer": ([(16, 32)], {**_HEADS, "dim_head": 8}),
    "axial_attention:AxialAttention": ([(16, 8, 8)], {"dim": 16, "dim_index": 1, "heads": 4, "num_dimensions": 2}),
    "timesformer_pytorch:TimeSformer": (
        [(4, 3, 32, 32)],
        {**_HEADS, "image_size": 32, "patch_size": 8, "num_frames": 4, "num_classes": 10, "dim_head": 8},
    ),
    "facenet_pytorch:InceptionResnetV1": ([(3, 160, 160)], {"pretrained": None, "classify": True, "num_classes": 10}),
    "torch_geometric.nn:GraphSAGE": ([(5,), _EDGES], _GRAPH),
    "torch_geometric.nn:GIN": ([(5,), _EDGES], _GRAPH),
    "pytorch_tcn:TCN": ([(4, 32)], {"num_inputs": 4, "num_channels": [16, 16, 32]}),
}


def package_models() -> Iterator[ZooModel]:
    """Every model whose package is installed."""
    for module, (kind, shape, options) in _VIT_PYTORCH.items():
        yield from _models(f"vit_pytorch.{module}", kind, [shape], options)
    for name, options in _X_TRANSFORMERS.items():
        if _installed("x_transformers"):
            yield ZooModel(f"x_transformers.{name}", "packages", partial(_decoder, options), _tokens)
    for kind in _SEGMENTATION:
        yield from _models(
            "segmentation_models_pytorch", kind, [_MIDDLE], {"encoder_name": "resnet18", "encoder_weights": None}
        )
    for encoder in _ENCODERS:
        yield from _models(
            "segmentation_models_pytorch",
            "Unet",
            [_MIDDLE],
            {"encoder_name": encoder, "encoder_weights": None},
            f"-{encoder}",
        )
    for kind, (shape, options) in _MONAI.items():
        yield from _models("monai.networks.nets", kind, [shape], options)
    for name in _YOLOS if _installed("ultralytics") else ():
        yield ZooModel(f"ultralytics.{name}", "packages", partial(_yolo, name), lambda _: Inputs((_noise(_MIDDLE),)))
    for name, (inputs, options) in _OTHERS.items():
        path, _, kind = name.partition(":")
        yield from _models(path, kind, inputs, options)


def _installed(path: str) -> bool:
    return importlib.util.find_spec(path.partition(".")[0]) is not None


def _models(path: str, kind: str, inputs: list[Any], options: dict[str, Any], more: str = "") -> Iterator[ZooModel]:
    if _installed(path):
        name = f"{path.removesuffix('.networks.nets')}.{kind}{more}"
        yield ZooModel(name, "packages", partial(_built, path, kind, options), lambda _: _called_with(inputs))


def _called_with(inputs: list[Any]) -> Inputs:
    """Of a graph's nodes there are as many as its edges need."""
    batch = 1 + max(map(max, inputs[1])) if inputs[1:] and isinstance(inputs[1][0], list) else BATCH
    return Inputs(tuple(torch.tensor(i) if isinstance(i, list) else _noise(i, batch) for i in inputs))


def _built(path: str, kind: str, options: dict[str, Any]) -> nn.Module:
    make_importable()
    model: nn.Module = getattr(importlib.import_module(path), kind)(**options)
    return model


def _decoder(options: dict[str, Any]) -> nn.Module:
    package = importlib.import_module("x_transformers")
    layers = package.Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **options)
    model: nn.Module = package.TransformerWrapper(num_tokens=90, max_seq_len=32, attn_layers=layers)
    return model


def _yolo(name: str) -> nn.Module:
    make_importable()
    tasks = importlib.import_module("ultralytics.nn.tasks")
    kind = {"cls": "ClassificationModel", "seg": "SegmentationModel"}.get(name.partition("-")[2], "DetectionModel")
    model: nn.Module = getattr(tasks, kind)(f"{name}.yaml", ch=3, nc=4, verbose=False)
    return model


def _noise(shape: tuple[int, ...], batch: int = BATCH) -> torch.Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0))


def _tokens(_: nn.Module) -> Inputs:
    return Inputs((torch.randint(5, 90, (BATCH, 12), generator=torch.Generator().manual_seed(0)),))

"""Models nobody here wrote, for the surveys: how to build each, and an example to call it with.

Every model has random weights and the smallest input it accepts, so that a survey is a matter of minutes.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy
import torch
from torch import nn

from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.loading.torchvision_compat import make_importable, torchvision_module


@dataclass(frozen=True)
class ZooModel:
    """One model of a survey: nothing is built before `build` is called."""

    name: str
    source: str
    build: Callable[[], nn.Module]
    inputs: Callable[[nn.Module], Inputs]


BATCH = 2


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _tokens(length: int, vocabulary: int = 90) -> torch.Tensor:
    """Token ids above the special ones, so that no model takes one for padding or an end."""
    return torch.randint(5, vocabulary, (BATCH, length), generator=torch.Generator().manual_seed(0))


def _image(side: int, _: nn.Module) -> Inputs:
    return Inputs((_noise(BATCH, 3, side, side),))


# --- torchvision ------------------------------------------------------------------------------------------------

# First pattern that matches: the side of the image, and what the factory needs to accept it.
_CLASSIFIERS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    (r"vit_h_14", 56, {"image_size": 56}),
    (r"vit_", 64, {"image_size": 64}),
    (r"maxvit", 224, {}),
    (r"inception_v3", 96, {"init_weights": False}),
    (r"googlenet", 64, {"init_weights": False}),
    (r".*", 64, {}),
)
# Detection models scale their images up and look at a thousand places unless told otherwise.
_SMALL = {"min_size": 64, "max_size": 96}
_DETECTORS: tuple[tuple[str, dict[str, Any]], ...] = (
    (r".*rcnn_", _SMALL | {"rpn_pre_nms_top_n_test": 20, "rpn_post_nms_top_n_test": 10}),
    (r"retinanet|fcos", _SMALL),
    (r".*", {}),
)
# batch, frames and side of the clips
_CLIPS: tuple[tuple[str, int, int, int], ...] = ((r"mvit|s3d", 1, 16, 224), (r".*", BATCH, 4, 64))
_NO_WEIGHTS: dict[str, dict[str, Any]] = {
    "classification": {"weights": None},
    "segmentation": {"weights": None, "weights_backbone": None},
    "video": {"weights": None},
    "detection": {"weights": None, "weights_backbone": None},
}


def _clip(batch: int, frames: int, side: int, _: nn.Module) -> Inputs:
    return Inputs((_noise(batch, 3, frames, side, side),))


def _photos(_: nn.Module) -> Inputs:
    """Detection models take a list of images, each of its own size."""
    return Inputs(([_noise(3, 64, 64).sigmoid(), _noise(3, 64, 96).sigmoid()],))


def _plain_nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Non-maximum suppression without torchvision's compiled operator, which is missing beside a CPU-only torch."""
    apart = torchvision_module().ops.box_iou(boxes, boxes).le(iou_threshold).numpy()
    standing, kept = numpy.ones(len(scores), dtype=bool), []
    for candidate in scores.argsort(descending=True).numpy():
        if standing[candidate]:
            kept.append(int(candidate))
            standing &= apart[candidate]
    return torch.tensor(kept, dtype=torch.int64)


def torchvision_models() -> Iterator[ZooModel]:
    """All of torchvision's classification, segmentation, video and detection models."""
    torchvision = torchvision_module()
    models = torchvision.models
    if not torchvision.extension._has_ops():
        torchvision.ops.boxes.nms = _plain_nms
    kinds = {
        "classification": models,
        "segmentation": models.segmentation,
        "video": models.video,
        "detection": models.detection,
    }
    for kind, module in kinds.items():
        for name in models.list_models(module=module):
            options = dict(_NO_WEIGHTS[kind])
            inputs: Callable[[nn.Module], Inputs] = _photos
            if kind == "classification":
                _, side, extra = next(row for row in _CLASSIFIERS if re.match(row[0], name))
                options |= extra
                inputs = partial(_image, side)
            elif kind == "detection":
                options |= next(extra for pattern, extra in _DETECTORS if re.match(pattern, name))
            elif kind == "segmentation":
                inputs = partial(_image, 64)
            elif kind == "video":
                _, batch, frames, side = next(row for row in _CLIPS if re.match(row[0], name))
                inputs = partial(_clip, batch, frames, side)
            yield ZooModel(name, f"torchvision.{kind}", partial(models.get_model, name, **options), inputs)


# --- timm -------------------------------------------------------------------------------------------------------

# side of the image -> models that accept nothing smaller (of 64, 96, 128, 160 and their own size)
_TIMM: dict[int, str] = {
    56: "deepseek_vit_412m",
    64: """
        caformer_s18 convformer_s18 convmixer_1024_20_ks9_p14 convnextv2_atto cpubone_nano crossvit_9_dagger_240
        crossvit_tiny_240 cs3darknet_focus_s csatv2 cspresnet50 darknet17 davit_tiny densenet121 dla46_c
        dla60_res2net dpn48b eca_nfnet_l0 eca_vovnet39b ecaresnet26t edgenext_xx_small efficientnet_cc_b0_4e
        efficientvim_m1 efficientvit_b0 efficientvit_l1 ese_vovnet19b_slim_dw fasternet_t0 fastvit_sa12 fastvit_t8
        fbnetv3_b focalnet_tiny_srf gemma4_vit_167m gernet_s ghostnet_050 ghostnetv2_100 ghostnetv3_050
        hardcorenas_a hgnet_tiny hgnetv2_b0 hrnet_w18_small iformer_t inception_next_atto lambda_resnet26t lcnet_035
        lcnetv2_small legacy_seresnet18 lowformer_b0 mixnet_s mnasnet_small mobilenetv2_035 mobilenetv3_small_050
        mobilenetv4_conv_small_035 mobilenetv4_hybrid_medium_075 mobilenetv5_base mobileone_s0 mobilevit_xxs
        mobilevitv2_050 mvitv2_tiny naflexvit_base_patch16_gap nasnetalarge nextvit_small nf_regnet_b0 nf_resnet26
        pnasnet5large poolformer_s12 pvt_v2_b0 qwen3_vit_88m rdnet_tiny regnetv_040 regnetx_002 regnety_002
        regnetz_005 repghostnet_050 repvgg_a0 repvit_m0_9 res2net50_14w_8s resnest14d resnet51q resnetblur18
        resnetrs50 resnetv2_18 resnetv2_50x1_bit rexnet_100 sam2_hiera_tiny samvit_base_patch16_224 selecsls42
        sequencer2d_s seresnet18 shvit_s1 skresnet18 starnet_s050 swiftformer_xs test_byobnet test_convnext
        test_efficientnet test_efficientnet_evos test_mambaout test_nfnet test_resnet test_vit test_vit2
        tiny_vit_5m_224 tinynet_e tresnet_m twins_pcpvt_small twins_svt_small vgg11_bn vit_tiny_patch16_dinov3_qkvb
        xception xception41 xcit_nano_12_p16_224
    """,
    96: """
        inception_resnet_v2 inception_v3 inception_v4
    """,
    160: """
        test_vit3
    """,
    224: """
        beit3_base_patch16_224 beit_base_patch16_224 cait_xxs24_224 coat_lite_tiny coat_tiny coatnet_pico_rw_224
        coatnext_nano_rw_224 convit_tiny deit3_small_patch16_224 deit_tiny_distilled_patch16_224
        deit_tiny_patch16_224 efficientformer_l1 efficientformerv2_s0 efficientvit_m0 eva02_tiny_patch14_224
        gcvit_xxtiny gmixer_12_224 gmlp_ti16_224 hiera_tiny_224 levit_128s levit_conv_128s mixer_s32_224 nest_tiny
        pit_ti_224 resmlp_12_224 swin_s3_tiny_224 swin_tiny_patch4_window7_224 swinv2_cr_tiny_224 tnt_s_patch16_224
        visformer_tiny vit_relpos_small_patch16_224 vit_srelpos_small_patch16_224 vit_tiny_patch16_224
        vit_tiny_r_s16_p8_224 vitamin_small_224 volo_d1_224
    """,
    256: """
        eca_botnext26ts_256 eca_halonext26ts maxvit_pico_rw_256 maxxvit_rmlp_nano_rw_256 swinv2_tiny_window8_256
        vit_medium_patch16_rope_reg1_gap_256
    """,
    384: """
        vit_pe_core_tiny_patch16_384
    """,
}
# Fixed to a large image unless told otherwise.
_TIMM_OPTIONS: dict[str, dict[str, Any]] = {"deepseek_vit_412m": {"img_size": 56}}


def timm_models() -> Iterator[ZooModel]:
    """One small model or more per family of timm."""
    make_importable()  # timm imports torchvision
    timm = importlib.import_module("timm")
    sides = {name: side for side, names in _TIMM.items() for name in names.split()}
    for name, side in sorted(sides.items()):
        build = partial(timm.create_model, name, pretrained=False, **_TIMM_OPTIONS.get(name, {}))
        yield ZooModel(name, "timm", build, partial(_image, side))


# --- transformers -----------------------------------------------------------------------------------------------

_WIDTHS: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
_GROUPED: dict[str, Any] = _WIDTHS | {"num_key_value_heads": 2}  # fewer key and value heads than query heads
_SEQ2SEQ: dict[str, Any] = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
}
_VISION: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


def _text(_: nn.Module) -> Inputs:
    tokens = _tokens(12)
    return Inputs((), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)})


def _tokens_only(_: nn.Module) -> Inputs:
    return Inputs((_tokens(12),))


def _text_to_text(_: nn.Module) -> Inputs:
    return Inputs((), {"input_ids": _tokens(12), "decoder_input_ids": _tokens(8)})


def _speech_to_text(_: nn.Module) -> Inputs:
    return Inputs((), {"input_features": _noise(BATCH, 8, 60), "decoder_input_ids": _tokens(8)})


def _speech(_: nn.Module) -> Inputs:
    return Inputs((_noise(BATCH, 800),))


def _pixels(side: int, _: nn.Module) -> Inputs:
    return Inputs((), {"pixel_values": _noise(BATCH, 3, side, side)})


def _text_and_image(_: nn.Module) -> Inputs:
    tokens = _tokens(12)
    kwargs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "pixel_values": _noise(BATCH, 3, 32, 32)}
    return Inputs((), kwargs)


# model class, configuration class, options of the configuration, example
_TRANSFORMERS: tuple[tuple[str, str, dict[str, Any], Callable[[nn.Module], Inputs]], ...] = (
    ("BertForSequenceClassification", "BertConfig", _WIDTHS, _text),
    (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
        _text,
    ),
    ("RobertaForTokenClassification", "RobertaConfig", _WIDTHS, _text),
    ("ElectraForPreTraining", "ElectraConfig", _WIDTHS | {"embedding_size": 16}, _text),
    ("AlbertForMaskedLM", "AlbertConfig", _WIDTHS | {"embedding_size": 16}, _text),
    (
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        _WIDTHS | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        _text,
    ),
    (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
        _text,
    ),
    ("OPTForCausalLM", "OPTConfig", _WIDTHS | {"ffn_dim": 64, "word_embed_proj_dim": 32}, _text),
    ("BloomForCausalLM", "BloomConfig", {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4}, _text),
    ("GPTNeoXForCausalLM", "GPTNeoXConfig", _WIDTHS, _text),
    ("LlamaForCausalLM", "LlamaConfig", _GROUPED, _text),
    ("MistralForCausalLM", "MistralConfig", _GROUPED, _text),
    ("Qwen2ForCausalLM", "Qwen2Config", _GROUPED, _text),
    ("GemmaForCausalLM", "GemmaConfig", _GROUPED | {"head_dim": 8}, _text),
    ("PhiForCausalLM", "PhiConfig", _GROUPED, _text),
    ("MixtralForCausalLM", "MixtralConfig", _GROUPED | {"num_local_experts": 4}, _text),
    (
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        _tokens_only,
    ),
    (
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
        _text_to_text,
    ),
    ("BartForConditionalGeneration", "BartConfig", _SEQ2SEQ, _text_to_text),
    (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        _SEQ2SEQ
        | {
            "num_mel_bins": 8,
            "max_source_positions": 30,
            "max_target_positions": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        _speech_to_text,
    ),
    (
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        _WIDTHS
        | {
            "conv_dim": (16, 16),
            "conv_kernel": (8, 4),
            "conv_stride": (4, 2),
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 2,
        },
        _speech,
    ),
    ("ViTForImageClassification", "ViTConfig", _VISION, partial(_pixels, 32)),
    ("Dinov2ForImageClassification", "Dinov2Config", _VISION, partial(_pixels, 32)),
    (
        "SwinForImageClassification",
        "SwinConfig",
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        partial(_pixels, 32),
    ),
    (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 2, 1]},
        partial(_pixels, 64),
    ),
    (
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1], "decoder_hidden_size": 32},
        partial(_pixels, 64),
    ),
    (
        "CLIPModel",
        "CLIPConfig",
        {
            "text_config": _WIDTHS | {"projection_dim": 16},
            "vision_config": _VISION | {"projection_dim": 16},
            "projection_dim": 16,
        },
        _text_and_image,
    ),
)


def _from_config(model: str, config: str, options: dict[str, Any]) -> nn.Module:
    make_importable()  # transformers imports torchvision where it finds it
    transformers = importlib.import_module("transformers")
    built = getattr(transformers, model)(getattr(transformers, config)(**options))
    assert isinstance(built, nn.Module)
    return built


def transformers_models() -> Iterator[ZooModel]:
    """Transformers from tiny configurations: encoders, decoders, both, vision, speech, state space, experts."""
    for model, config, options, inputs in _TRANSFORMERS:
        yield ZooModel(model, "transformers", partial(_from_config, model, config, options), inputs)

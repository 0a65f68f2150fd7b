"""Small models of torchvision (segmentation, video and optical flow), torchaudio
2.11.1, diffusers 0.42.1, segmentation_models_pytorch 0.6.0, MONAI 1.6.1 and
vit-pytorch 1.26.14, with inputs. Only models that PyTorch exports correctly."""

import importlib

import torch
from torch import randn

TIMES = torch.tensor([3, 7])
VIT = {"image_size": 64, "num_classes": 5, "dim": 32, "depth": 2, "heads": 2,
       "mlp_dim": 64}
STAGES = {f"s{stage}_{what}": value for stage in range(1, 4)
          for what, value in (("emb_dim", 16), ("heads", 2), ("depth", 1))}
BLOCKS = {"sample_size": 16, "block_out_channels": (16, 32),
          "norm_num_groups": 8, "layers_per_block": 1, "attention_head_dim": 8}
DIFFUSION = {"num_attention_heads": 2, "attention_head_dim": 8,
             "num_layers": 2}
PATCHES = {**DIFFUSION, "in_channels": 4, "sample_size": 8, "patch_size": 2}


def image(side=64, batch=2):
    return randn(batch, 3, side, side)


# Each has a class or function, its arguments, and a function that returns its
# inputs, by name if it takes them so.
MODELS = {
    "torchvision.models.segmentation": {
        "fcn_resnet50": ({"weights_backbone": None}, image),
        "deeplabv3_mobilenet_v3_large": ({"weights_backbone": None}, image),
        "lraspp_mobilenet_v3_large": ({"weights_backbone": None}, image)},
    "torchvision.models.video": {
        "r3d_18": ({}, lambda: randn(1, 3, 8, 32, 32)),
        "r2plus1d_18": ({}, lambda: randn(1, 3, 8, 32, 32)),
        "s3d": ({}, lambda: randn(1, 3, 16, 224, 224)),
        "SwinTransformer3d": ({
            "patch_size": [2, 4, 4], "embed_dim": 16, "depths": [1, 1],
            "num_heads": [2, 2], "window_size": [2, 4, 4]},
            lambda: randn(1, 3, 4, 32, 32))},
    "torchvision.models.optical_flow": {
        "raft_small": ({}, lambda: (image(128, 1), image(128, 1)))},
    "torchaudio.models": {
        "ConvTasNet": ({
            "enc_num_feats": 16, "msk_num_feats": 16, "msk_num_hidden_feats": 16,
            "msk_num_layers": 2, "msk_num_stacks": 2},
            lambda: randn(2, 1, 400)),
        "DeepSpeech": ({"n_feature": 16, "n_hidden": 32, "n_class": 5},
                       lambda: randn(2, 1, 20, 16)),
        "Wav2Letter": ({"num_classes": 5, "input_type": "mfcc",
                        "num_features": 13}, lambda: randn(2, 13, 400)),
        "WaveRNN": ({
            "upsample_scales": [2, 2], "n_classes": 8, "hop_length": 4,
            "n_res_block": 2, "n_rnn": 16, "n_fc": 16, "kernel_size": 3,
            "n_freq": 12, "n_hidden": 16, "n_output": 16},
            lambda: (randn(2, 1, 32), randn(2, 1, 12, 10))),
        "HDemucs": ({"sources": ["a", "b"], "audio_channels": 1, "channels": 8,
                     "nfft": 256, "depth": 3}, lambda: randn(1, 1, 2048))},
    "diffusers": {
        "UNet2DModel": ({
            **BLOCKS, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
            lambda: {"sample": image(16), "timestep": TIMES}),
        "UNet2DConditionModel": ({
            **BLOCKS, "cross_attention_dim": 16,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")},
            lambda: {"sample": randn(2, 4, 16, 16), "timestep": TIMES,
                     "encoder_hidden_states": randn(2, 6, 16)}),
        "AutoencoderKL": ({
            "block_out_channels": (16, 32), "norm_num_groups": 8,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2},
            lambda: {"sample": image(16)}),
        "VQModel": ({"block_out_channels": (16,), "norm_num_groups": 8,
                     "num_vq_embeddings": 32}, lambda: {"sample": image(16)}),
        "AutoencoderTiny": ({"encoder_block_out_channels": (8,) * 4,
                             "decoder_block_out_channels": (8,) * 4},
                            lambda: {"sample": image(32)}),
        "DiTTransformer2DModel": (
            {**PATCHES, "norm_num_groups": 4, "num_embeds_ada_norm": 10},
            lambda: {"hidden_states": randn(2, 4, 8, 8), "timestep": TIMES,
                     "class_labels": torch.tensor([1, 2])}),
        "PixArtTransformer2DModel": (
            {**PATCHES, "cross_attention_dim": 16, "caption_channels": 16,
             "use_additional_conditions": False},
            lambda: {"hidden_states": randn(2, 4, 8, 8), "timestep": TIMES,
                     "encoder_hidden_states": randn(2, 5, 16)}),
        "SD3Transformer2DModel": (
            {**PATCHES, "joint_attention_dim": 16, "pooled_projection_dim": 16,
             "caption_projection_dim": 16, "out_channels": 4,
             "pos_embed_max_size": 8},
            lambda: {"hidden_states": randn(2, 4, 8, 8), "timestep": TIMES,
                     "encoder_hidden_states": randn(2, 5, 16),
                     "pooled_projections": randn(2, 16)}),
        "FluxTransformer2DModel": ({
            "patch_size": 1, "in_channels": 4, "num_layers": 1,
            "num_single_layers": 1, "attention_head_dim": 16,
            "num_attention_heads": 2, "joint_attention_dim": 16,
            "pooled_projection_dim": 16, "axes_dims_rope": (4, 4, 8)},
            lambda: {"hidden_states": randn(2, 16, 4), "timestep": TIMES / 10,
                     "encoder_hidden_states": randn(2, 5, 16),
                     "pooled_projections": randn(2, 16),
                     "img_ids": torch.zeros(16, 3),
                     "txt_ids": torch.zeros(5, 3)}),
        "PriorTransformer": (
            {**DIFFUSION, "embedding_dim": 16, "num_embeddings": 7,
             "additional_embeddings": 4},
            lambda: {"hidden_states": randn(2, 16), "timestep": TIMES,
                     "proj_embedding": randn(2, 16),
                     "encoder_hidden_states": randn(2, 7, 16)})},
    "segmentation_models_pytorch": {
        **{name: ({"encoder_name": "resnet18", "encoder_weights": None}, image)
           for name in ("Unet", "UnetPlusPlus", "MAnet", "Linknet", "DeepLabV3",
                        "DeepLabV3Plus", "UPerNet")},
        "PAN": ({"encoder_name": "resnet18", "encoder_weights": None},
                lambda: image(128)),
        "Segformer": ({"encoder_name": "mit_b0", "encoder_weights": None},
                      image)},
    "monai.networks.nets": {
        "UNet": ({"spatial_dims": 3, "in_channels": 1, "out_channels": 2,
                  "channels": (8, 16, 32), "strides": (2, 2),
                  "num_res_units": 1}, lambda: randn(2, 1, 16, 16, 16)),
        "SegResNet": ({"spatial_dims": 3}, lambda: randn(2, 1, 16, 16, 16)),
        "AttentionUnet": ({"spatial_dims": 2, "in_channels": 1,
                           "out_channels": 2, "channels": (8, 16, 32),
                           "strides": (2, 2)}, lambda: randn(2, 1, 32, 32)),
        "BasicUNet": ({"spatial_dims": 2, "features": (8, 8, 16, 16, 32, 8)},
                      lambda: randn(2, 1, 32, 32)),
        "DynUNet": ({"spatial_dims": 2, "in_channels": 1, "out_channels": 2,
                     "kernel_size": [3, 3, 3], "strides": [1, 2, 2],
                     "upsample_kernel_size": [2, 2]},
                    lambda: randn(2, 1, 32, 32)),
        "UNETR": ({"in_channels": 1, "out_channels": 2, "img_size": (32, 32),
                   "spatial_dims": 2, "feature_size": 8, "hidden_size": 32,
                   "mlp_dim": 64, "num_heads": 4}, lambda: randn(2, 1, 32, 32)),
        "SwinUNETR": ({"in_channels": 1, "out_channels": 2, "spatial_dims": 2,
                       "feature_size": 12}, lambda: randn(1, 1, 256, 256)),
        "HighResNet": ({"spatial_dims": 2}, lambda: randn(2, 1, 32, 32)),
        "DenseNet": ({"spatial_dims": 3, "in_channels": 1, "out_channels": 2,
                      "init_features": 8, "growth_rate": 4,
                      "block_config": (2, 2)}, lambda: randn(2, 1, 16, 16, 16)),
        "DiffusionModelUNet": (
            {"spatial_dims": 2, "in_channels": 1, "out_channels": 1,
             "num_res_blocks": 1, "channels": (8, 16),
             "attention_levels": (False, True), "norm_num_groups": 8,
             "num_head_channels": 8}, lambda: (randn(2, 1, 16, 16), TIMES))},
    "vit_pytorch": {
        "vit.ViT": ({**VIT, "patch_size": 16}, image),
        "simple_vit.SimpleViT": ({**VIT, "patch_size": 16}, image),
        "deepvit.DeepViT": ({**VIT, "patch_size": 16}, image),
        "cait.CaiT": ({**VIT, "patch_size": 16, "cls_depth": 1}, image),
        "t2t.T2TViT": ({**VIT, "t2t_layers": ((7, 4), (3, 2))}, image),
        "cct.cct_2": ({"img_size": 64, "num_classes": 5}, image),
        "levit.LeViT": ({"image_size": 64, "num_classes": 5, "dim": (16, 32),
                         "depth": 1, "heads": 2, "mlp_mult": 2, "stages": 2},
                        image),
        "cvt.CvT": ({**STAGES, "num_classes": 5}, image),
        "regionvit.RegionViT": ({"dim": (8, 16, 16, 16), "depth": (1,) * 4,
                                 "num_classes": 5, "window_size": 2}, image),
        "max_vit.MaxViT": ({"num_classes": 5, "dim_conv_stem": 8, "dim": 8,
                            "dim_head": 8, "depth": (1, 1), "window_size": 4},
                           image),
        "nest.NesT": ({"image_size": 64, "patch_size": 4, "dim": 16, "heads": 2,
                       "num_hierarchies": 3, "block_repeats": (1, 1, 1),
                       "num_classes": 5}, image),
        "mobile_vit.MobileViT": ({
            "image_size": (64, 64), "dims": [16] * 3, "num_classes": 5,
            "channels": [8, 8, *[16] * 8, 32]}, image),
        "xcit.XCiT": ({**VIT, "patch_size": 8, "cls_depth": 1}, image),
        "rvt.RvT": ({**VIT, "patch_size": 16}, image),
        "learnable_memory_vit.ViT": ({**VIT, "patch_size": 16}, image)}}

NAMES = {f"{package}.{name}": (package, name)
         for package, models in MODELS.items() for name in models}


def make(full_name):
    """Returns a model, and its inputs as a dictionary or a tuple."""
    package, name = NAMES[full_name]
    arguments, inputs = MODELS[package][name]
    *modules, attribute = name.split(".")
    module = importlib.import_module(".".join([package, *modules]))
    inputs = inputs()
    return (getattr(module, attribute)(**arguments),
            (inputs,) if torch.is_tensor(inputs) else inputs)

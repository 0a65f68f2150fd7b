#!/usr/bin/env python3
"""Computes gradients of models of packages for PyTorch.

    python package_models.py --fusor build/bin/fusor --out OUT.json [MODEL ...]

The models are small: those of transformers have two layers of 32 features,
those of timm are the smallest of their families, and small_models.py has those
of other packages. Each is exported, run by
`fusor exec`, and its first result and all gradients are compared with PyTorch's
in fp64, or in fp32 if an operator has no fp64. A model passes if its error is at
most 20 times PyTorch's own in fp32, or 1e-4, for one of three seeds: a single
input of a ReLU whose sign changes makes an error of 1e-3. Models that PyTorch
cannot export are skipped.
"""

import argparse
import copy
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

import torch

import pytorch_models
import small_models

FACTOR, SMALL = 20, 1e-4
SEEDS = 3
BATCH, TOKENS, VOCABULARY, SIDE = 4, 16, 97, 64

# Settings of configurations, where they have them.
SETTINGS = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size",
                     "word_embed_proj_dim", "dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers",
                     "encoder_layers", "decoder_layers", "num_decoder_layers"),
                    2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads",
                     "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "hidden_dim",
                     "encoder_ffn_dim", "decoder_ffn_dim", "d_inner"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size",
                     "shared_expert_intermediate_size"), 32),
    "num_key_value_heads": 2, "num_experts_per_tok": 2, "head_dim": 8,
    "d_kv": 8, "state_size": 8, "rotary_dim": 4, "vocab_size": VOCABULARY,
    "image_size": SIDE, "patch_size": 16, "num_labels": 5, "use_cache": False,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "cls_token_id": 1, "sep_token_id": 2, "decoder_start_token_id": 1}

# Classes of transformers by their inputs, with further settings.
STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
SOUND = {"conv_dim": (16,) * 3, "conv_stride": (5, 2, 2),
         "conv_kernel": (10, 3, 2), "num_feat_extract_layers": 3,
         "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
         "apply_spec_augment": False, "layerdrop": 0.0}
POSITIONS = {"max_position_embeddings": 70}
TRANSFORMERS = {
    "text": {
        "BertForMaskedLM": {}, "ElectraForSequenceClassification": {},
        "RobertaForSequenceClassification": POSITIONS,
        "AlbertForSequenceClassification": {},
        "DebertaForSequenceClassification": {
            "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        "DebertaV2ForSequenceClassification": {
            "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
            "position_buckets": 8},
        "DistilBertForSequenceClassification": {},
        "MPNetForSequenceClassification": {},
        "SqueezeBertForSequenceClassification": {},
        "MobileBertForSequenceClassification": {
            "intra_bottleneck_size": 16, "true_hidden_size": 16},
        "ConvBertForSequenceClassification": {},
        "FNetForSequenceClassification": {},
        "ModernBertForSequenceClassification": {},
        "XLNetForSequenceClassification": {},
        "GPT2LMHeadModel": {}, "GPTJForCausalLM": {}, "GPTNeoXForCausalLM": {},
        "OPTForCausalLM": {}, "BloomForCausalLM": {}, "MptForCausalLM": {},
        "LlamaForCausalLM": {}, "MistralForCausalLM": {},
        "Qwen2ForCausalLM": {}, "Qwen3ForCausalLM": {}, "GemmaForCausalLM": {},
        "Gemma2ForCausalLM": {}, "PhiForCausalLM": {}, "Phi3ForCausalLM": {},
        "StableLmForCausalLM": {}, "Olmo2ForCausalLM": {},
        "CohereForCausalLM": {}, "GraniteForCausalLM": {},
        "MixtralForCausalLM": {}, "Qwen2MoeForCausalLM": {},
        "Qwen3MoeForCausalLM": {}, "GraniteMoeForCausalLM": {},
        "MambaForCausalLM": {}, "RwkvForCausalLM": {},
        "Mamba2ForCausalLM": {"num_heads": 8, "n_groups": 2, "chunk_size": 8},
        "BioGptForCausalLM": {}, "XGLMForCausalLM": {},
        "Gemma3ForCausalLM": {}, "Glm4ForCausalLM": {},
        "DeepseekV3ForCausalLM": {
            "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
            "q_lora_rank": 16, "kv_lora_rank": 16, "n_routed_experts": 4,
            "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1},
        "GptOssForCausalLM": {}, "FalconForCausalLM": {},
        "CodeGenForCausalLM": {}, "CTRLLMHeadModel": {"dff": 64},
        "OpenAIGPTLMHeadModel": {}, "ErnieForSequenceClassification": {},
        "FunnelForSequenceClassification": {"block_sizes": [1, 1]},
        "NystromformerForSequenceClassification": {
            "num_landmarks": 4, "segment_means_seq_len": 16},
        "RoFormerForSequenceClassification": {},
        "LayoutLMForSequenceClassification": {},
        "XLMForSequenceClassification": {"emb_dim": 32},
        "MegatronBertForSequenceClassification": {},
        "BigBirdForSequenceClassification": {},
        "PerceiverForSequenceClassification": {"d_latents": 32,
                                               "num_latents": 8},
        "IBertForSequenceClassification": {}, "SmolLM3ForCausalLM": {},
        "JambaForCausalLM": {}, "Lfm2ForCausalLM": {},
        "Qwen3NextForCausalLM": {}, "RecurrentGemmaForCausalLM": {},
        "NemotronForCausalLM": {},
        "OlmoeForCausalLM": {}, "PhimoeForCausalLM": {},
        "PersimmonForCausalLM": {}, "Starcoder2ForCausalLM": {},
        "FalconMambaForCausalLM": {},
        "EsmForMaskedLM": {"position_embedding_type": "rotary"},
        "XLMRobertaXLForSequenceClassification": POSITIONS},
    "pairs of texts": {
        "BartForConditionalGeneration": {}, "MarianMTModel": {},
        "MBartForConditionalGeneration": {},
        "PegasusForConditionalGeneration": {},
        "M2M100ForConditionalGeneration": {},
        "T5ForConditionalGeneration": {}, "MT5ForConditionalGeneration": {},
        "BlenderbotForConditionalGeneration": {},
        "UMT5ForConditionalGeneration": {},
        "LEDForConditionalGeneration": {"attention_window": 4},
        "ProphetNetForConditionalGeneration": {},
        "NllbMoeForConditionalGeneration": {},
        "PLBartForConditionalGeneration": {},
        "FSMTForConditionalGeneration": {"tgt_vocab_size": VOCABULARY,
                                         "src_vocab_size": VOCABULARY}},
    "images": {
        "ViTForImageClassification": {}, "DeiTForImageClassification": {},
        "BeitForImageClassification": {}, "Dinov2ForImageClassification": {},
        "ConvNextForImageClassification": {**STAGES, "patch_size": 4},
        "ConvNextV2ForImageClassification": {**STAGES, "patch_size": 4},
        "SwinForImageClassification": {
            "patch_size": 4, "embed_dim": 16, "depths": [2, 2],
            "num_heads": [2, 4], "window_size": 4},
        "Swinv2ForImageClassification": {
            "patch_size": 4, "embed_dim": 16, "depths": [2, 2],
            "num_heads": [2, 4], "window_size": 4},
        "SegformerForSemanticSegmentation": {
            **STAGES, "num_attention_heads": [1, 2, 2, 4],
            "decoder_hidden_size": 16},
        "MobileViTForImageClassification": {
            "patch_size": 2, "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 32]},
        "PoolFormerForImageClassification": {**STAGES, "patch_size": 7},
        "RegNetForImageClassification": {**STAGES, "embedding_size": 8,
                                         "groups_width": 8},
        "ResNetForImageClassification": {**STAGES, "embedding_size": 8},
        "LevitForImageClassification": {
            "image_size": SIDE, "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1],
            "key_dim": [8, 8, 8], "drop_path_rate": 0},
        "MobileNetV1ForImageClassification": {"depth_multiplier": 0.25},
        "MobileNetV2ForImageClassification": {"depth_multiplier": 0.35},
        "BitForImageClassification": {**STAGES, "embedding_size": 8,
                                      "num_groups": 4},
        "FocalNetForImageClassification": {
            "patch_size": 4, "embed_dim": 8, "depths": [1, 1, 1, 1]},
        "PvtForImageClassification": {
            "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32],
            "num_attention_heads": [1, 2, 3, 4], "patch_sizes": [4, 2, 2, 2]},
        "PvtV2ForImageClassification": {
            **STAGES, "num_attention_heads": [1, 2, 3, 4]},
        "HieraForImageClassification": {
            "patch_size": [7, 7], "embed_dim": 8, "depths": [1, 1, 1, 1],
            "num_heads": [1, 2, 2, 2], "masked_unit_size": [8, 8],
            "image_size": [SIDE, SIDE]},
        "DPTForSemanticSegmentation": {
            "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8},
        "EfficientNetForImageClassification": {"hidden_dim": 1280},
        "SwiftFormerForImageClassification": {
            "depths": [1, 1, 1, 1], "embed_dims": [8, 16, 24, 32]},
        "YolosForObjectDetection": {"image_size": [SIDE, SIDE],
                                    "num_detection_tokens": 4},
        "ViTMSNForImageClassification": {},
        "IJepaForImageClassification": {}, "TextNetForImageClassification": {},
        "GLPNForDepthEstimation": {
            **STAGES, "num_attention_heads": [1, 2, 2, 4],
            "decoder_hidden_size": 8},
        "Swin2SRForImageSuperResolution": {
            "patch_size": 1, "embed_dim": 16, "depths": [2, 2],
            "num_heads": [2, 4], "window_size": 4}},
    "sounds": {
        "Wav2Vec2ForCTC": SOUND, "HubertForCTC": SOUND, "WavLMForCTC": SOUND,
        "Data2VecAudioForCTC": SOUND, "UniSpeechForCTC": SOUND,
        "UniSpeechSatForCTC": SOUND, "SEWForCTC": SOUND,
        "SEWDForCTC": SOUND, "Wav2Vec2ConformerForCTC": SOUND},
    "texts with images": {
        "CLIPModel": {"text_config": SETTINGS, "vision_config": SETTINGS},
        "SiglipModel": {"text_config": SETTINGS, "vision_config": SETTINGS},
        "BlipForConditionalGeneration": {"text_config": SETTINGS,
                                         "vision_config": SETTINGS},
        "LlavaForConditionalGeneration": {
            "text_config": {**SETTINGS, "model_type": "llama"},
            "vision_config": {**SETTINGS, "model_type": "clip_vision_model"},
            "image_token_id": VOCABULARY - 1},
        "PaliGemmaForConditionalGeneration": {
            "text_config": {**SETTINGS, "model_type": "gemma"},
            "vision_config": {**SETTINGS, "model_type": "siglip_vision_model"},
            "image_token_id": VOCABULARY - 1, "projection_dim": 32},
        "ViltForQuestionAnswering": {}}}

TIMM = """
eca_botnext26ts_256 test_byobnet cait_xxs24_224 coat_tiny convit_tiny
convmixer_768_32 test_convnext cpubone_nano crossvit_tiny_240 cs3darknet_focus_s
cspnext_tiny davit_tiny deit_tiny_patch16_224 dla46x_c dpn48b edgenext_xx_small
efficientformer_l1 efficientformerv2_s0 test_efficientnet efficientvim_m1
efficientvit_b0 efficientvit_m0 eva02_tiny_patch14_224 fasternet_t0 fastvit_t8
focalnet_tiny_srf gcvit_xxtiny ghostnet_050 hardcorenas_b hgnetv2_b0
hiera_tiny_224 hrnet_w18_small iformer_t inception_next_atto lcnetv2_small
levit_128s lowformer_b0 test_mambaout test_coatnet poolformer_s12 gmlp_ti16_224
mobilenetv3_small_050 mobilevit_xxs mvitv2_tiny nest_tiny test_nfnet pit_ti_224
pvt_v2_b0 rdnet_tiny regnetx_004_tv repghostnet_050 repvit_m1 res2net50_14w_8s
resnest14d test_resnet resnetv2_18 rexnet_100 legacy_seresnet18 sequencer2d_s
shvit_s1 skresnet18 starnet_s050 swiftformer_xs swin_tiny_patch4_window7_224
swinv2_tiny_window8_256 swinv2_cr_tiny_224 tiny_vit_5m_224
tnt_s_legacy_patch16_224 twins_svt_small visformer_tiny test_vit
vit_tiny_r_s16_p8_224 test_vit_relpos vitamin_small_224 volo_d1_224
ese_vovnet19b_slim_dw legacy_xception xception41p xcit_nano_12_p8_224""".split()


class FirstResult(torch.nn.Module):
    """Calls a model by keyword. Returns its first result that has a gradient."""

    def __init__(self, model, names):
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *tensors):
        given = (dict(zip(self.names, tensors)) if self.names else {})
        results = self.model(**given) if given else self.model(*tensors)
        if hasattr(results, "to_tuple"):
            results = results.to_tuple()
        return next(value for value in torch.utils._pytree.tree_leaves(results)
                    if torch.is_tensor(value) and value.requires_grad)


def without_randomness(model):
    """Switches dropout and stochastic depth off, whatever they are called."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for key, value in vars(module).items():
            if "drop" in key and isinstance(value, float):
                setattr(module, key, 0.0)
    return model.train()


def tokens():
    return torch.randint(3, VOCABULARY, (BATCH, TOKENS))


INPUTS = {
    "text": lambda: {"input_ids": tokens()},
    "pairs of texts": lambda: {"input_ids": tokens(),
                               "decoder_input_ids": tokens()[:, :12]},
    "images": lambda: {"pixel_values": torch.randn(BATCH, 3, SIDE, SIDE)},
    "texts with images": lambda: {
        "input_ids": torch.cat([torch.full((BATCH, 16), VOCABULARY - 1),
                                tokens() % (VOCABULARY - 1)], 1),
        "pixel_values": torch.randn(BATCH, 3, SIDE, SIDE)},
    "sounds": lambda: {"input_values": torch.randn(2, 800)}}


def make_transformer(kind, name):
    import transformers
    cls = getattr(transformers, name)
    known = cls.config_class().to_dict()
    settings = {key: value for key, value in SETTINGS.items() if key in known}
    settings |= TRANSFORMERS[kind][name]
    inputs = INPUTS[kind]()
    model = cls(cls.config_class(**settings))
    return FirstResult(without_randomness(model), list(inputs)), inputs


def make_timm(name):
    import timm
    model = timm.create_model(name, pretrained=False)
    side = model.default_cfg["input_size"][-1]
    return (FirstResult(without_randomness(model), []),
            {"x": torch.randn(BATCH, 3, side, side)})


def make_small(name):
    model, inputs = small_models.make(name)
    model = without_randomness(model)
    if isinstance(inputs, dict):
        return FirstResult(model, list(inputs)), inputs
    return (FirstResult(model, []),
            {f"input{i}": tensor for i, tensor in enumerate(inputs)})


def make(name):
    """Returns the model and its inputs by name."""
    if name in small_models.NAMES:
        return make_small(name)
    for kind, models in TRANSFORMERS.items():
        if name in models:
            return make_transformer(kind, name)
    return make_timm(name)


def compare(args, name, seed, folder):
    """Returns the errors of the gradients and of the result, {"fusor": [2],
    "torch": [2]}, or why the model was skipped."""
    import safetensors.torch
    torch.manual_seed(seed)
    model, inputs = make(name)
    archive, source, out = (folder / part for part in ("m.pt2", "in", "out"))
    try:
        program = torch.export.export(model, tuple(inputs.values()))
        torch.export.save(program, archive)
    except Exception as error:  # PyTorch may raise anything
        return f"PyTorch cannot export it: {type(error).__name__}"
    weights = {key: p.detach() for key, p in model.named_parameters()}
    own = copy.deepcopy(model)(*inputs.values()).detach()
    exported = program.module()(*inputs.values()).detach()
    if (exported - own).norm() > SMALL * own.norm():
        return "PyTorch's exported program gives another result"
    shape = own.shape
    cotangent = torch.randn(shape) / BATCH
    safetensors.torch.save_file(
        {key: value.contiguous().clone() for key, value in {
            **dict(zip(program.graph_signature.user_inputs, inputs.values())),
            **weights, "grad/output0": cotangent}.items()}, source)

    def of_torch(dtype):
        # Some operators have no fp64.
        cast = copy.deepcopy(model).to(dtype)
        result = cast(*(value.to(dtype) if value.is_floating_point() else value
                        for value in inputs.values()))
        result.backward(cotangent.to(result.dtype))
        return {key: p.grad for key, p in cast.named_parameters()
                if p.grad is not None}, result.detach()

    try:
        exact, result = of_torch(torch.float64)
    except RuntimeError:
        exact, result = of_torch(torch.float32)

    def errors(gradients, own):
        pairs = ((pytorch_models.joined(gradients[key] for key in exact),
                  pytorch_models.joined(exact.values())),
                 (own.double(), result.double()))
        # Some results are 0 before training.
        return [((a - b).norm() / (b.norm() or 1)).item() for a, b in pairs]

    pytorch_models.fusor(args, "exec", archive, "--inputs", source,
                         "--outputs", out, "--gradients")
    found = safetensors.torch.load_file(out)
    return {"fusor": errors({key: found["grad/" + key] for key in exact},
                            found["output0"].reshape(shape)),
            "torch": errors(*of_torch(torch.float32))}


def measure(args, name):
    """Returns "passed", "skipped: ..." or "failed: ..."."""
    for seed in range(SEEDS):
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = compare(args, name, seed, pathlib.Path(folder))
            except RuntimeError as error:
                line = str(error).splitlines()[-1]
                return f"failed: {line.split('.pt2: ', 1)[-1]}"
        if isinstance(found, str):
            return f"skipped: {found}"
        if all(own <= max(FACTOR * theirs, SMALL) for own, theirs in zip(
                found["fusor"], found["torch"])):
            return "passed"
    return f"failed: errors {found}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fusor", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="MODEL")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    if args.one:
        print(measure(args, args.names[0]))
        return 0
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    for name in args.names or [
            *(name for models in TRANSFORMERS.values() for name in models),
            *TIMM, *small_models.NAMES]:
        # A separate process returns its memory.
        done = subprocess.run(
            [sys.executable, __file__, "--fusor", args.fusor, "--out", args.out,
             "--one", name], check=False, stdout=subprocess.PIPE, text=True)
        lines = done.stdout.splitlines()
        results[name] = (lines[-1] if done.returncode == 0 and lines
                         else f"failed: exit code {done.returncode}")
        args.out.write_text(json.dumps(results, indent=1, sort_keys=True)
                            + "\n")
        print(f"{name}: {results[name]}", flush=True)
    return int(any(result.startswith("failed") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())

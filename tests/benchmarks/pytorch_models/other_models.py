"""Models that do not classify images: two language models of the package
transformers, a U-Net and an LSTM."""

import torch
from torch import nn

TOKENS = 64         # of a sequence
VOCABULARY = 1000   # of the LSTM
SIDE = 128          # of the U-Net's images


class Logits(nn.Module):
    """Returns only the logits of a model of the package transformers."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids,
                          attention_mask=attention_mask).logits


def bert_base():
    import transformers
    return Logits(transformers.BertForMaskedLM(transformers.BertConfig(
        hidden_dropout_prob=0, attention_probs_dropout_prob=0)))


def gpt2():
    import transformers
    return Logits(transformers.GPT2LMHeadModel(transformers.GPT2Config(
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False)))


class UNet(nn.Module):
    """Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image
    Segmentation", 2015, with padding and batch normalisation."""

    def __init__(self, classes=21, width=64, levels=4):
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(map(self.block, [3, *widths], widths))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * out, out, 2, 2) for out in widths[:-1])
        self.merge = nn.ModuleList(
            self.block(2 * out, out) for out in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def block(features, out):
        layers = []
        for channels in features, out:
            layers += [nn.Conv2d(channels, out, 3, padding=1, bias=False),
                       nn.BatchNorm2d(out), nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, x):
        kept = []
        for block in self.down[:-1]:
            kept.append(block(x))
            x = nn.functional.max_pool2d(kept[-1], 2)
        x = self.down[-1](x)
        for level in reversed(range(len(kept))):
            x = self.merge[level](torch.cat([kept[level], self.up[level](x)],
                                            1))
        return self.head(x)


class Lstm(nn.Module):
    """Predicts the next token."""

    def __init__(self, width=128, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids):
        return self.head(self.lstm(self.tokens(ids))[0])


def token_inputs(batch, name="ids"):
    return {name: torch.randint(0, VOCABULARY, (batch, TOKENS))}


def masked_inputs(batch):
    mask = torch.randint(0, 2, (batch, TOKENS))
    mask[:, 0] = 1
    return {**token_inputs(batch, "input_ids"), "attention_mask": mask}


# By name: a function that returns the model, and one that returns its inputs
# for a batch size.
MODELS = {
    "bert_base": (bert_base, masked_inputs),
    "gpt2": (gpt2, masked_inputs),
    "lstm": (Lstm, token_inputs),
    "unet": (UNet, lambda batch: {"x": torch.randn(batch, 3, SIDE, SIDE)}),
}

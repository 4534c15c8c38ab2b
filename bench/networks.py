"""The networks of the PyTorch scripts in this folder: ResNet-18 (100 classes), ResNet-20 (10), 32x32 images; gpt-char (65
characters, context 128)."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class ResidualBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.short = nn.Identity()
        if stride != 1 or cin != cout:
            self.short = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.short(x))


def make_resnet(model):
    width, per_stage, classes = (64, 2, 100) if model == "resnet18" else (16, 3, 10)
    stages = 4 if model == "resnet18" else 3
    layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for stage in range(stages):
        for i in range(per_stage):
            cout = (64 if model == "resnet18" else 16) << stage
            layers.append(ResidualBlock(width, cout, 2 if stage > 0 and i == 0 else 1))
            width = cout
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)), classes


class TransformerBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        samples, positions, width = x.shape
        parts = self.qkv(self.norm1(x)).view(samples, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(samples, positions, width))
        return x + self.outer(F.gelu(self.inner(self.norm2(x)), approximate="tanh"))


class Transformer(nn.Module):
    """The model gpt-char of `natgrad train`."""

    def __init__(self, width=128, blocks=4, heads=4, tokens=65, context=128):
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)

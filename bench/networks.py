"""The networks of the PyTorch scripts in this folder: ResNet-18 (100 classes), ResNet-20 (10), 32x32 images."""
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

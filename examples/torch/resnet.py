#!/usr/bin/env python3
"""Residual networks: CIFAR-10 (ResNet-20, 32, 44, 56, 110) and ImageNet (ResNet-18, 34, 50, 101, 152); other networks by timm.

    resnet.py [--data FOLDER of cifar-10-batches-bin] [--samples 5000] [--depth 32] [--method kaisa]
    resnet.py --imagenet [--data FOLDER of train/CLASS/*.JPEG; needs torchvision] [--depth 50] [--lr 0.0125]
    resnet.py --imagenet --model mobilenetv1_100 | mobilenetv2_100 | densenet121 | vit_tiny_patch16_224, or another network of timm
"""
import os
import sys

import torch
from torch import nn

import common


def make_conv(ins, outs, kernel, stride=1):
    return nn.Conv2d(ins, outs, kernel, stride, kernel // 2, bias=False)


class ResidualBlock(nn.Module):
    """A residual block: two convolutions (three in a bottleneck block) and a shortcut."""

    def __init__(self, ins, width, stride, bottleneck):
        super().__init__()
        outs = width * (4 if bottleneck else 1)
        sizes = [(ins, width, 1, 1), (width, width, 3, stride), (width, outs, 1, 1)] if bottleneck else [
            (ins, width, 3, stride), (width, outs, 3, 1)]
        layers = [layer for size in sizes for layer in (make_conv(*size), nn.BatchNorm2d(size[1]), nn.ReLU(inplace=True))]
        self.body = nn.Sequential(*layers[:-1])
        self.shortcut = nn.Identity() if stride == 1 and ins == outs else nn.Sequential(
            make_conv(ins, outs, 1, stride), nn.BatchNorm2d(outs))
        self.outs = outs

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def make_resnet(depth, imagenet):
    if imagenet:
        counts = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}[depth]
        stem, ins = [make_conv(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    else:
        counts, stem, ins = ((depth - 2) // 6,) * 3, [make_conv(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()], 16
    width = ins
    for stage, count in enumerate(counts):
        for i in range(count):
            stem.append(ResidualBlock(ins, width << stage, 2 if i == 0 and stage > 0 else 1, imagenet and depth >= 50))
            ins = stem[-1].outs
    return nn.Sequential(*stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, 1000 if imagenet else 10))


def make_model(args):
    if not args.model:
        return make_resnet(args.depth, args.imagenet)
    try:
        import timm
    except ImportError as missing:
        sys.exit(f"--model: {missing}")
    return timm.create_model(args.model, num_classes=1000 if args.imagenet else 10)


def read_cifar(folder, names):
    """Return images and labels of binary files; those missing in `folder` are left out.  No file: None."""
    mean, deviation = ((torch.tensor(v) * 255).reshape(1, 3, 1, 1) for v in ((0.4914, 0.4822, 0.4465),
                                                                            (0.2470, 0.2435, 0.2616)))
    rows = []
    for path in (os.path.join(folder, name) for name in names):
        if os.path.exists(path):
            with open(path, "rb") as file:
                rows.append(torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).reshape(-1, 3073))
    if not rows:
        return None
    rows = torch.cat(rows)
    return (rows[:, 1:].reshape(-1, 3, 32, 32).float() - mean) / deviation, rows[:, 0].long()


def published_defaults(imagenet):
    """Return, for each method, the values of its own script that differ from kfac-pytorch's, which are the defaults."""
    step = dict(inv_update_steps=1, factor_update_steps=1)
    if imagenet:
        of_dp, eva = dict(step, damping=0.002), dict(step, damping=0.001, batch_size=64)
        efcp = dict(lr=0.001, momentum=0.0, weight_decay=0.01, damping=1e-7, epochs=88, lr_decay=[], ngrads=1024)
        mfac = dict(lr=0.001, momentum=0.0, damping=1e-5)
    else:
        of_dp = eva = dict(step, damping=0.03)
        both = dict(lr=0.001, momentum=0.0, epochs=164, lr_decay=[82, 123])
        efcp = dict(both, weight_decay=0.1, damping=1e-4, ngrads=1024)
        mfac = dict(both, weight_decay=0.003, damping=1e-5, ngrads=512)
    return dict(eigen_dp=of_dp, inverse_dp=of_dp, eigen=of_dp, inverse=of_dp, eva=eva, efcp=efcp, mfac=mfac)


def make_image_batches(args):
    """Return the functions batches() and evaluate() of common.train: ImageNet, CIFAR-10, or generated images.  Only CIFAR-10 has a
    test, of test_batch.bin."""
    if args.imagenet and args.data:
        try:
            from torchvision import datasets, transforms
        except ImportError as missing:
            sys.exit(f"--data: {missing}")
        change = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(),
                                     transforms.ToTensor(), transforms.Normalize([0.485, 0.456, 0.406],
                                                                                 [0.229, 0.224, 0.225])])
        images = datasets.ImageFolder(os.path.join(args.data, "train"), change)
        sampler = torch.utils.data.DistributedSampler(images, args.ranks, args.rank, seed=args.seed, drop_last=True)
        loader = torch.utils.data.DataLoader(images, args.batch_size * args.accumulation_steps, sampler=sampler, drop_last=True,
                                             num_workers=4)

        def batches():
            yield from loader
            sampler.set_epoch(sampler.epoch + 1)  # the next epoch has another order
        return batches, None
    if args.data:
        found = read_cifar(args.data, [f"data_batch_{i}.bin" for i in range(1, 6)])
        if found is None:
            sys.exit(f"--data: {args.data} has none of data_batch_1.bin to data_batch_5.bin")
        test = read_cifar(args.data, ["test_batch.bin"])
        images, labels = (tensor[:args.samples or None] for tensor in found)
        return common.shuffled_batches(args, images, labels), common.make_accuracy_test(args, *test) if test else None
    size, count = (args.image or (64 if args.imagenet else 32)), 512
    labels = torch.randint(10, (count,))
    return common.shuffled_batches(args, torch.randn(10, 3, size, size)[labels] + torch.randn(count, 3, size, size), labels), None


def main():
    imagenet = "--imagenet" in sys.argv
    standard = dict(batch_size=32, lr=0.0125, lr_decay=(25, 35, 40, 45, 50), weight_decay=5e-5, damping=0.001,
                    factor_update_steps=10, inv_update_steps=100, epochs=55, label_smoothing=0.1) if imagenet else dict(
                        batch_size=128, lr=0.1, lr_decay=(35, 75, 90), weight_decay=5e-4, epochs=100)
    parser = common.make_parser(__doc__, depth=50 if imagenet else 32, image=0, warmup_epochs=5.0, **standard)
    parser.add_argument("--imagenet", action="store_true")
    parser.add_argument("--samples", type=int, default=0, help="the first images of CIFAR-10; 0: all images")
    parser.add_argument("--model", help="a network of timm, instead of --depth; vit_tiny_patch16_224 needs images of 224 pixels")
    args = common.parse_arguments(parser, published_defaults(imagenet))
    torch.manual_seed(args.seed)
    batches, evaluate = make_image_batches(args)
    return common.train(args, make_model(args), batches, common.make_classification_loss(args),
                        common.accuracy_of_batch, evaluate)


if __name__ == "__main__":
    main()

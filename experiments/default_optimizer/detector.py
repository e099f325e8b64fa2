"""A small RetinaNet of torchvision's on images of different sizes, each with one bright square."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator


class Boxes(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        h, w = (int(x) for x in torch.randint(40, 64, (2,), generator=g))
        img = torch.rand(3, h, w, generator=g) * 0.2
        x, y = (int(v) for v in torch.randint(2, 20, (2,), generator=g))
        img[:, y : y + 16, x : x + 16] += 0.7
        return img, {"boxes": torch.tensor([[x, y, x + 16, y + 16]]).float(), "labels": torch.tensor([1])}


def block(a, b):
    return [nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU()]


def build_model():
    body = nn.Sequential(*block(3, 16), *block(16, 24))
    body.out_channels = 24
    anchors = AnchorGenerator(((16,),), ((1.0,),))
    return RetinaNet(body, num_classes=2, anchor_generator=anchors, min_size=64, max_size=64)


def train_data():
    return DataLoader(Boxes(), batch_size=3, shuffle=True, collate_fn=lambda b: tuple(zip(*b, strict=True)))


def test_data():
    return DataLoader(Boxes(), batch_size=3, collate_fn=lambda b: tuple(zip(*b, strict=True)))

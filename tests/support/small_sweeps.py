"""A small model file and digits: what sweeps in tests are made of."""

import torch
from torch import nn

from dst_analyze.sweep.data.digits import load_digits

IMAGES, LABELS = load_digits()
TRAIN = IMAGES[:512].flatten(1), LABELS[:512]
TEST = IMAGES[1500:].flatten(1), LABELS[1500:]
FILE = """
import torch
from torch import nn
from sklearn.datasets import load_digits

class Net(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.one, self.two = nn.Linear(64, hidden), nn.Linear(hidden, 10)
    def forward(self, x):
        return self.two(self.one(x).relu())

def _data():
    digits = load_digits()
    return torch.tensor(digits.data / 16, dtype=torch.float32)[:500], torch.tensor(digits.target)[:500]

train_data = _data
"""


def mlp():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

"""A VAE on the digits."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.e1 = nn.Linear(64, 128)
        self.e2 = nn.Linear(128, 64)
        self.mu = nn.Linear(64, 8)
        self.lv = nn.Linear(64, 8)
        self.d1 = nn.Linear(8, 64)
        self.d2 = nn.Linear(64, 128)
        self.d3 = nn.Linear(128, 64)

    def forward(self, x):
        h = self.e2(self.e1(x.flatten(1)).relu()).relu()
        mu, lv = self.mu(h), self.lv(h)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp()
        return torch.sigmoid(self.d3(self.d2(self.d1(z).relu()).relu())), mu, lv


X = torch.tensor(load_digits().images, dtype=torch.float32).flatten(1) / 16


def build_model():
    return VAE()


def train_data():
    return X[:1500]


def test_data():
    return X[1500:]


def loss(outputs, batch):
    r, mu, lv = outputs
    return (F.binary_cross_entropy(r, batch, reduction="sum") - 0.5 * (1 + lv - mu**2 - lv.exp()).sum()) / len(batch)

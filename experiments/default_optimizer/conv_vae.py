"""A convolutional VAE on the digits, with the squared error."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.mu = nn.Linear(128, 8)
        self.lv = nn.Linear(128, 8)
        self.up = nn.Linear(8, 128)
        self.dec = nn.Sequential(nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1))

    def forward(self, x):
        h = self.enc(x)
        mu, lv = self.mu(h), self.lv(h)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp()
        return self.dec(self.up(z).relu().view(-1, 32, 2, 2)), mu, lv


X = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 16


def build_model():
    return VAE()


def train_data():
    return X[:1500]


def test_data():
    return X[1500:]


def loss(outputs, batch):
    r, mu, lv = outputs
    return F.mse_loss(r, batch, reduction="sum") / len(batch) - 0.5 * (1 + lv - mu**2 - lv.exp()).sum() / len(batch)

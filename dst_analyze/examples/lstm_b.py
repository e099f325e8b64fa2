"""LSTM-b: an image read row by row by two LSTM layers of 256 hidden units.

The paper's training on MNIST: Adam, learning rate 0.001 throughout, batches of 100, 20 epochs, alpha 1e-3.

    dst-analyze example:lstm-b --data mnist --recipe paper --epochs 20 --batch-size 100 \
        --schedule constant --alphas 1e-3
"""

from torch import nn

from dst_analyze.examples.lstm_a import Lstm, example_inputs, optimizer

__all__ = ["build_model", "example_inputs", "optimizer"]


def build_model(hidden: int = 256) -> nn.Module:
    return Lstm(hidden)

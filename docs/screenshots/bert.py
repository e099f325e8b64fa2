"""BERT's small configuration of four blocks, narrow, on made-up texts of four topics."""

import torch
from torch import nn
from torch.utils.data import Dataset

from dst_analyze.examples.hf_text_classification import LENGTH, TOPICS, WORDS, rows


class Texts(Dataset):
    """Texts as dicts, as Hugging Face's models want them."""

    def __init__(self, seed: int, count: int) -> None:
        self.rows = rows(seed, count)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return self.rows[at]


def build_model() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=384,
        max_position_embeddings=LENGTH,
        num_labels=len(TOPICS),
    )
    model: nn.Module = BertForSequenceClassification(config)
    return model


def train_data() -> Texts:
    return Texts(0, 1024)


def test_data() -> Texts:
    return Texts(1, 256)

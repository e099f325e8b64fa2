"""A small BERT that classifies sequences: does token 5 come before token 6?"""

import torch
from transformers import BertConfig, BertForSequenceClassification


def build_model():
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=32,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=32,
            num_labels=2,
        )
    )


def made(n, seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(7, 32, (n, 16), generator=g)
    where = torch.rand(n, 16, generator=g).argsort(1)[:, :2]
    ids[torch.arange(n), where[:, 0]] = 5
    ids[torch.arange(n), where[:, 1]] = 6
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": (where[:, 0] < where[:, 1]).long()}


def train_data():
    return made(2048, 0)


def test_data():
    return made(512, 1)

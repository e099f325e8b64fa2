"""SlimVit: 44,626 parameters.

Written by dst-analyze. `build_model()` gives the model, its weights from the safetensors file beside it.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

WEIGHTS = Path(__file__).with_suffix(".safetensors")


class HeadAttention(nn.Module):
    """nn.MultiheadAttention with independent sizes of heads, embedding and output.

    Its parameters have the names, and its call the arguments, of nn.MultiheadAttention.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        out_dim: int,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim, self.out_dim = embed_dim, num_heads, head_dim, out_dim
        self.kdim, self.vdim = kdim, vdim
        self.dropout, self.bias, self.batch_first = dropout, bias, batch_first
        inner = num_heads * head_dim
        separate = kdim is not None or vdim is not None
        if separate:
            self.register_parameter("in_proj_weight", None)
            self.q_proj_weight = nn.Parameter(torch.empty(inner, embed_dim))
            self.k_proj_weight = nn.Parameter(torch.empty(inner, embed_dim if kdim is None else kdim))
            self.v_proj_weight = nn.Parameter(torch.empty(inner, embed_dim if vdim is None else vdim))
        else:
            self.in_proj_weight = nn.Parameter(torch.empty(3 * inner, embed_dim))
            for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
                self.register_parameter(name, None)
        if bias:
            self.in_proj_bias = nn.Parameter(torch.empty(3 * inner))
        else:
            self.register_parameter("in_proj_bias", None)
        self.out_proj = nn.Linear(inner, out_dim, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for name, parameter in self.named_parameters(recurse=False):
            if name.endswith("_weight"):
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        unbatched = query.dim() == 2
        if unbatched:
            query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        q, k, v = (
            F.linear(x, weight, bias).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for x, weight, bias in zip((query, key, value), self._weights(), self._biases(), strict=True)
        )
        hidden = is_causal and key_padding_mask is None and not need_weights  # then the mask is a hint only
        mask = None if hidden else self._mask(attn_mask, key_padding_mask, q)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = (q * self.head_dim**-0.5) @ k.transpose(-2, -1)
            weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
            weights = F.dropout(weights, dropout)
            heads = weights @ v
            if average_attn_weights:
                weights = weights.mean(dim=1)
        else:
            heads = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=hidden)
        output = self.out_proj(heads.transpose(1, 2).flatten(2))
        if unbatched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def _weights(self) -> tuple[torch.Tensor, ...]:
        if self.kdim is None and self.vdim is None:
            return self.in_proj_weight.chunk(3)
        return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight

    def _biases(self) -> tuple[torch.Tensor | None, ...]:
        return self.in_proj_bias.chunk(3) if self.bias else (None, None, None)

    def _mask(
        self, attn_mask: torch.Tensor | None, padding: torch.Tensor | None, like: torch.Tensor
    ) -> torch.Tensor | None:
        """Return both masks as one additive mask: [L, S], [N·heads, L, S] and [N, S] broadcast to the scores."""
        masks = []
        if attn_mask is not None:
            mask = attn_mask.unflatten(0, (-1, self.num_heads)) if attn_mask.dim() == 3 else attn_mask
            masks.append(mask)
        if padding is not None:
            masks.append(padding[..., None, None, :])
        total = None
        for mask in masks:
            if mask.dtype == torch.bool:
                mask = torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))
            total = mask if total is None else total + mask
        return total


class TransformerEncoderLayer(nn.Module):
    def __init__(self, linear1_out: int) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(48, 3, kdim=48, vdim=48, batch_first=True)
        self.linear1 = nn.Linear(48, linear1_out)
        self.dropout = nn.Dropout(p=0.0)
        self.linear2 = nn.Linear(linear1_out, 48)
        self.norm1 = nn.LayerNorm(48)
        self.norm2 = nn.LayerNorm(48)
        self.dropout1 = nn.Dropout(p=0.0)
        self.dropout2 = nn.Dropout(p=0.0)

    def forward(self, src: torch.Tensor):
        norm1 = self.norm1(src)
        x = src + self.dropout1(self.self_attn(norm1, norm1, norm1, need_weights=False)[0])
        dropout = self.dropout(F.gelu(self.linear1(self.norm2(x))))
        x = x + self.dropout2(self.linear2(dropout))
        return x


class TransformerEncoderLayer2(nn.Module):
    def __init__(self, self_attn_heads: int) -> None:
        super().__init__()
        self.self_attn = HeadAttention(48, self_attn_heads, 16, 48, batch_first=True)
        self.linear1 = nn.Linear(48, 8)  # was out_features=96
        self.dropout = nn.Dropout(p=0.0)
        self.linear2 = nn.Linear(8, 48)  # was in_features=96
        self.norm1 = nn.LayerNorm(48)
        self.norm2 = nn.LayerNorm(48)
        self.dropout1 = nn.Dropout(p=0.0)
        self.dropout2 = nn.Dropout(p=0.0)

    def forward(self, src: torch.Tensor):
        norm1 = self.norm1(src)
        x = src + self.dropout1(self.self_attn(norm1, norm1, norm1, need_weights=False)[0])
        dropout = self.dropout(F.gelu(self.linear1(self.norm2(x))))
        x = x + self.dropout2(self.linear2(dropout))
        return x


class TransformerEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                TransformerEncoderLayer(72),  # was linear1_out=96
                TransformerEncoderLayer(32),  # was linear1_out=96
                TransformerEncoderLayer2(2),  # was self_attn_heads=3
                TransformerEncoderLayer2(1),  # was self_attn_heads=3
            ]
        )

    def forward(self, src: torch.Tensor):
        output = src
        for layer in self.layers:
            output = layer(output)
        return output


class SlimVit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn((1, 16, 48)) * 0.02)
        self.patches = nn.Conv2d(1, 48, 7, stride=7)
        self.blocks = TransformerEncoder()
        self.norm = nn.LayerNorm(48)
        self.head = nn.Linear(48, 10)

    def forward(self, images: torch.Tensor):
        x = self.patches(images).flatten(2).transpose(1, 2) + self.position
        scores = self.head(self.norm(self.blocks(x)).mean(1))
        return scores


def build_model(weights: Path | None = WEIGHTS) -> nn.Module:
    """Return the model with its weights; with None, with new ones."""
    model = SlimVit()
    if weights is not None:
        tensors = load_file(weights)
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.shape != tensors[name].shape:
                raise ValueError(f"{name} is {list(tensors[name].shape)} in {weights}")
            tensor.data = tensors[name].clone()  # into memory that is aligned, as the file need not be
    return model


def example_inputs() -> tuple[torch.Tensor, ...]:
    return (torch.randn((2, 1, 28, 28)),)

"""Multi-head attention with fewer heads than the embedding needs; replaces a slimmed nn.MultiheadAttention."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


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

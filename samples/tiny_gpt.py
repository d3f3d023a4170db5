"""A small GPT and the text that it learns. Everything is generated from a seed, so two runs agree bit for bit.

The training samples use it. It needs neither taskd nor torch.distributed.
"""

from __future__ import annotations

import hashlib
import random

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

ALPHABET = "abcdefghijklmnopqrstuvwxyz .,"


def make_text(seed: int, length: int) -> str:
    """Sentences of invented words. A fixed table says which words follow which, so there is something to learn."""
    dice = random.Random(seed)
    words = ["".join(dice.choices(ALPHABET[:26], k=dice.randint(2, 7))) for _ in range(64)]
    followers = {word: dice.sample(words, 4) for word in words}
    pieces: list[str] = []
    word, size = words[0], 0
    while size < length:
        ending = dice.choices([" ", ", ", ". "], weights=[8, 1, 1])[0]
        pieces.append(word + ending)
        size += len(word) + len(ending)
        word = dice.choice(followers[word])
    return "".join(pieces)[:length]


class TextWindows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Windows of the text. The answer to a window is the same window, one character later."""

    def __init__(self, seed: int, context: int, count: int) -> None:
        text = make_text(seed, count * 4 + context + 1)
        self.tokens = torch.tensor([ALPHABET.index(letter) for letter in text])
        self.context, self.count = context, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * 4
        window = self.tokens[start : start + self.context + 1]
        return window[:-1], window[1:]


class Block(nn.Module):
    """One transformer layer: attention, then a small network, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_attention, self.norm_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.project_in(self.norm_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project_out(mixed.transpose(1, 2).reshape(batch, length, width))
        x = x + self.network(self.norm_network(x))
        return functional.dropout(x, self.dropout, self.training)


class TinyGPT(nn.Module):
    """Predicts the next character at each position of a window. Its forward returns the loss."""

    def __init__(
        self, width: int = 64, layers: int = 2, heads: int = 4, context: int = 64, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(ALPHABET), width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(ALPHABET))

    def forward(self, tokens: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        x = self.letters(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), answers.flatten())


def weights_hash(module: nn.Module) -> str:
    """Return the SHA-256 over the names and the bits of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

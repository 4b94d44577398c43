"""How far the next-token distributions of a model are from those of a reference, position by position."""

from dataclasses import dataclass
from math import exp

import torch


@dataclass
class Agreement:
    """Add up positions; the means are over all that were added."""

    positions: int = 0
    equal_tops: int = 0
    divergence_nats: float = 0.0
    """Sum of KL(reference || model)."""
    reference_loss_nats: float = 0.0
    """Sum of the reference's negative log-probabilities of the text's tokens."""
    loss_nats: float = 0.0
    """The same of the model."""

    def add(self, reference: torch.Tensor, logits: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Add rows: float32 [rows, vocabulary] logits of both, and the [rows] tokens that follow in the text."""
        expected, found = (torch.log_softmax(each.float(), dim=-1) for each in (reference, logits))
        divergences = (expected.exp() * (expected - found)).sum(-1).clamp(min=0)  # rounding goes below
        self.positions += len(token_ids)
        self.equal_tops += int((reference.argmax(-1) == logits.argmax(-1)).sum())
        self.divergence_nats += divergences.double().sum().item()
        self.reference_loss_nats -= _of_tokens(expected, token_ids)
        self.loss_nats -= _of_tokens(found, token_ids)

    @property
    def kl_nats(self) -> float:
        """Return the mean KL(reference || model)."""
        return self.divergence_nats / self.positions

    @property
    def top1_agreement(self) -> float:
        """Return the share of positions at which both find the same token likeliest."""
        return self.equal_tops / self.positions

    @property
    def reference_perplexity(self) -> float:
        """Return the reference's perplexity."""
        return exp(self.reference_loss_nats / self.positions)

    @property
    def perplexity(self) -> float:
        """Return the model's perplexity."""
        return exp(self.loss_nats / self.positions)

    @property
    def perplexity_change(self) -> float:
        """Return by what share the model's perplexity is above the reference's."""
        return self.perplexity / self.reference_perplexity - 1


def _of_tokens(log_probabilities: torch.Tensor, token_ids: torch.Tensor) -> float:
    return log_probabilities.gather(1, token_ids[:, None]).double().sum().item()
